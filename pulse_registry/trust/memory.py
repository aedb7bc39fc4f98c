"""What was seen of a run, kept from one process to the next: the newest record, sealed.

A store that says less than that later was rolled back; one that says something else at its number tells two stories.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from blake3 import blake3
from filelock import FileLock, Timeout

from pulse_registry.errors import CorruptObject, InvalidArgument, StoreUnavailable
from pulse_schemas import Schema, SchemaError

STATE_VARIABLE: Final = "PULSE_STATE_DIR"
_LOCK_S: Final = 30.0
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


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
        self._file = self.folder / "newest.json"

    def newest(self) -> Seen | None:
        """Return the newest record that was seen, None if none ever was.

        Raises:
            CorruptObject: the file is damaged.
            InvalidArgument: the folder may not be used.
            StoreUnavailable: it can't be read.
        """
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error
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
        with self._locked():
            known = self.newest()
            if known is not None and known.seq >= seq:
                return known if known.seq == seq and known.record.encode() != sealed else None
            self._write(self._file, Seen(url=self._url, run=self._run, seq=seq, record=sealed.decode()).seal())
            return None

    def keep_evidence(self, seq: int, *records: bytes) -> list[Path]:
        """Keep sealed records of one number, each in a file of its own, and return the files.

        Raises:
            InvalidArgument, StoreUnavailable: they can't be written.
        """
        with self._locked():
            files = [self.folder / f"fork-{seq:012d}-{blake3(sealed).hexdigest()[:16]}.json" for sealed in records]
            for file, sealed in zip(files, records, strict=True):
                self._write(file, sealed)
            return files

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(self.folder / "lock", timeout=_LOCK_S):
                yield
        except Timeout as error:
            raise StoreUnavailable(f"{self.folder} was locked by another process for {_LOCK_S:g} s") from error
        except OSError as error:
            raise self._failed(error) from error

    def _write(self, file: Path, data: bytes) -> None:
        """Replace a file, whole or not at all; under the lock, so that one name will do for what is not whole yet."""
        new = self.folder / "new"
        with new.open("wb") as writing:
            writing.write(data)
            writing.flush()
            os.fsync(writing.fileno())
        new.replace(file)

    def _failed(self, error: OSError) -> InvalidArgument | StoreUnavailable:
        what = f"what was seen of run {self._run!r} can't be kept in {self.folder}: {error.strerror or error}"
        if error.errno in _NOT_ALLOWED:
            return InvalidArgument(f"{what}; give another folder as state_dir, or in {STATE_VARIABLE}")
        return StoreUnavailable(what)


def state_folder(given_dir: Path | None, url: str) -> Path | None:
    """Return the folder that keeps what was seen of a registry: the one given, PULSE_STATE_DIR, or the user's (XDG).

    None for a registry in the process' own memory, which is new each time.
    """
    if given_dir is not None or url.startswith("memory:"):
        return given_dir
    given = os.environ.get(STATE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "pulse-registry"
