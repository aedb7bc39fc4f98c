"""A folder that keeps what was seen of one run, from one process to the next; processes of one user share it.

It is this user's alone: what another could take away, or put there, would be no memory.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from blake3 import blake3

from pulse_kernels import other_writers
from pulse_registry.errors import CorruptObject, InvalidArgument, StoreUnavailable
from pulse_registry.process import environment
from pulse_registry.process.private_files import NotOurs, hold_lock, open_file, own_folder, release_lock, replace_file
from pulse_schemas import Schema, SchemaError

_LOCK_S: Final = 30.0
_MAX_BYTES: Final = 64 << 20
"""Of a file: far more than a record, or the hashes of some thousands, take."""
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_logger = logging.getLogger(__name__)
S = TypeVar("S", bound=Schema)


class SeenFolder:
    """Sealed documents in one folder, read whole and replaced whole.

    Attributes:
        folder: its path.
    """

    def __init__(self, folder: Path, run: str) -> None:
        """Prepare; no I/O yet. ``run`` is for messages."""
        self.folder, self._run = folder, run
        self._looked = False

    def read(self, name: str, kind: type[S]) -> S | None:
        """Return a document, None where there is none.

        Raises:
            CorruptObject: it is damaged.
            InvalidArgument: the folder may not be used, or it or the file is not this user's alone.
            StoreUnavailable: it can't be read.
        """
        try:
            with own_folder(self.folder, make=False) as folder:
                return self.read_in(folder, name, kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error

    def read_in(self, folder: int, name: str, kind: type[S]) -> S | None:
        """Return a document of the folder, of which ``locked`` gave a descriptor; see ``read``."""
        try:
            descriptor = open_file(name, os.O_RDONLY, folder)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            # One that is larger is damaged; none is read whole before that is known.
            data = file.read() if os.fstat(descriptor).st_size <= _MAX_BYTES else b""
        try:
            return kind.unseal(data)
        except SchemaError as error:
            raise CorruptObject(
                f"{self.folder / name}, which says what was seen of run {self._run!r}, is damaged: {error}. Without "
                "it, a rollback is not seen: look at the log, then delete the file to begin anew"
            ) from error

    def keep_evidence(self, seq: int, *records: bytes) -> list[Path]:
        """Keep sealed records that contradict each other, each in a file of its own, and return the files.

        Raises:
            InvalidArgument, StoreUnavailable: they can't be written.
        """
        with self.locked() as folder:
            names = [f"fork-{seq:012d}-{blake3(sealed).hexdigest()[:16]}.json" for sealed in records]
            for name, sealed in zip(names, records, strict=True):
                replace_file(folder, name, sealed)
            return [self.folder / name for name in names]

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Open the folder, which is made if need be, and hold its lock: one process at a time writes.

        Raises:
            InvalidArgument, StoreUnavailable: as ``read``, or a file can't be written.
        """
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
