"""Newest record seen of a run, sealed, kept in a file from one process to the next.

A store that says less than that later was rolled back; one that says something else at its number tells two stories.
The folder is this user's alone: what another could take away, or put there, would be no memory.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from blake3 import blake3

from pulse_kernels import other_writers
from pulse_registry.errors import CorruptObject, InvalidArgument, StoreUnavailable
from pulse_registry.process import environment
from pulse_registry.process.private_files import NotOurs, hold_lock, open_file, own_folder, release_lock, replace_file
from pulse_schemas import Schema, SchemaError

_LOCK_S: Final = 30.0
_FILE: Final = "newest.json"
_MAX_BYTES: Final = 64 << 20
"""Of that file: far more than a record takes."""
_logger = logging.getLogger(__name__)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class Seen(Schema):
    """The newest record that was seen of a run at a URL; ``record`` is its sealed bytes."""

    format: Literal["pulse-seen/1"] = "pulse-seen/1"
    url: str
    run: str
    seq: int
    record: str


class Memory:
    """Keeps what was seen of one run in a folder; processes may share it."""

    def __init__(self, folder: Path, url: str, run: str) -> None:
        """Prepare; no I/O yet. ``folder`` holds all runs of all registries."""
        self._url, self._run = url, run
        self.folder = folder / f"{run}-{blake3(url.encode()).hexdigest()[:16]}"
        self._file = self.folder / _FILE
        self._looked = False

    def newest(self) -> Seen | None:
        """Return the newest record that was seen, None if none ever was.

        Raises:
            CorruptObject: the file is damaged.
            InvalidArgument: the folder may not be used, or it or the file is not this user's alone.
            StoreUnavailable: it can't be read.
        """
        try:
            with own_folder(self.folder, make=False) as folder:
                return self._read(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error

    def _read(self, folder: int) -> Seen | None:
        try:
            descriptor = open_file(_FILE, os.O_RDONLY, folder)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            # One that is larger is damaged; none is read whole before that is known.
            data = file.read() if os.fstat(descriptor).st_size <= _MAX_BYTES else b""
        try:
            seen = Seen.unseal(data)
        except SchemaError as error:
            raise CorruptObject(
                f"{self._file}, which says what was seen of run {self._run!r}, is damaged: {error}. Without it, a "
                "rollback is not seen: look at the log, then delete the file to begin anew"
            ) from error
        if (seen.url, seen.run) != (self._url, self._run):
            raise CorruptObject(
                f"{self._file} is of run {seen.run!r} of {seen.url}, not of {self._run!r} of {self._url}"
            )
        return seen

    def advance(self, seq: int, sealed: bytes) -> Seen | None:
        """Remember a record unless a newer one is remembered; return what is in the way: another record of this number.

        Raises:
            CorruptObject, InvalidArgument, StoreUnavailable: as ``newest``, or it can't be written.
        """
        with self._locked() as folder:
            known = self._read(folder)
            if known is not None and known.seq >= seq:
                return known if known.seq == seq and known.record.encode() != sealed else None
            seen = Seen(url=self._url, run=self._run, seq=seq, record=sealed.decode())
            replace_file(folder, _FILE, seen.seal())
            return None

    def keep_evidence(self, seq: int, *records: bytes) -> list[Path]:
        """Keep sealed records of one number, each in a file of its own, and return the files.

        Raises:
            InvalidArgument, StoreUnavailable: they can't be written.
        """
        with self._locked() as folder:
            names = [f"fork-{seq:012d}-{blake3(sealed).hexdigest()[:16]}.json" for sealed in records]
            for name, sealed in zip(names, records, strict=True):
                replace_file(folder, name, sealed)
            return [self.folder / name for name in names]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the folder, which is made if need be, and hold its lock: one process at a time writes."""
        try:
            with own_folder(self.folder) as folder:
                self._look()
                lock = hold_lock("lock", _LOCK_S, folder)
                if lock is None:
                    raise StoreUnavailable(f"{self.folder} was locked by another process for {_LOCK_S:g} s")
                try:
                    yield folder
                finally:
                    release_lock(lock)
        except OSError as error:
            raise self._failed(error) from error

    def _look(self) -> None:
        """Warn, once, where another user could take this folder away: it is theirs to give the place to."""
        why = None if self._looked else other_writers(self.folder.parent)
        self._looked = True
        if why is not None:
            _logger.warning(
                "%s: whoever writes there could take away what was seen of run %s, so that a rollback is not noticed; "
                "give a folder that is this user's alone as state_dir, or in %s",
                why,
                self._run,
                environment.STATE_DIR.name,
            )

    def _failed(self, error: OSError) -> InvalidArgument | StoreUnavailable:
        file = f"{error.filename}: " if isinstance(error, NotOurs) else ""
        what = f"what was seen of run {self._run!r} can't be kept in {self.folder}: {file}{error.strerror or error}"
        if error.errno in _NOT_ALLOWED:
            return InvalidArgument(f"{what}; give another folder as state_dir, or in {environment.STATE_DIR.name}")
        return StoreUnavailable(what)


def state_folder(given_dir: Path | None, url: str) -> Path | None:
    """Return the folder that keeps what was seen of a registry: the one given, PULSE_STATE_DIR, or the user's (XDG).

    None for a registry in the process' own memory, which is new each time.
    """
    if given_dir is not None or url.startswith("memory:"):
        return given_dir
    given = environment.STATE_DIR.read()
    if given:
        return Path(given)
    base = environment.XDG_STATE_HOME.read()
    return (Path(base) if base else Path.home() / ".local" / "state") / "pulse-registry"
