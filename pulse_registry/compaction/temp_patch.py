"""Temporary file of a merged patch, which is verified before it is uploaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from pulse_registry.errors import StoreUnavailable
from pulse_registry.format.patch_coding import Coded, PatchFile
from pulse_registry.format.patch_parts import Places
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.store import Store, Stream, create
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas import PatchRef

_CHUNK = 8 << 20


class _Made(Stream):
    """What is made anew each time it is asked for."""

    def __init__(self, make: Callable[[], Iterator[bytes]], nbytes: int) -> None:
        self.nbytes = nbytes
        self._make = make

    def __iter__(self) -> Iterator[bytes]:
        return self._make()


class TempPatch:
    """A coded patch on disk. A context manager that removes the file, which has no name, at its end.

    Attributes:
        delta: what the patch adds to the state digest.
        nbytes: size of the object.
    """

    def __init__(self, geometry: Geometry, base: int, target: int, coded: Iterable[Coded], folder: Path | None) -> None:
        """Write the groups down as they come; of each, only what the directory says stays in memory.

        Raises:
            StoreUnavailable: the disk did not take them.
            What ``coded`` raises.
        """
        self._where = folder or temporary_folder()
        with self._disk():
            self._file = tempfile.TemporaryFile(dir=self._where)  # noqa: SIM115 - closed at the end of this object's block
        try:
            entries = []
            for group in coded:
                with self._disk():
                    self._file.write(group.data)
                entries.append(group.entry)
            # The head needs what is said of the groups, not their bytes.
            self._head = PatchFile.of(geometry, base, target, [Coded(entry, b"") for entry in entries])
        except BaseException:
            self._file.close()
            raise
        self.delta: Digest = self._head.delta
        self.nbytes = self._head.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def store(self, store: Store, key: str) -> PatchRef:
        """Store the patch under a key of its own, its head last if it is in parts; return what a record says of it.

        Raises:
            AlreadyExists, StoreUnavailable: as ``create``.
        """
        head, groups = self._head, range(int(self._head.directory.sizes.sum()))
        ref = head.ref(key, self._bytes(groups))
        if not head.parted:
            create(store, key, _Made(lambda: chain([head.head], self._bytes(groups)), self.nbytes))
            return ref
        for part in Places(ref, head.directory).parts():
            place, groups = groups[: part.size], groups[part.size :]
            create(store, part.key, _Made(partial(self._bytes, place), part.size))
        create(store, key, head.head)
        return ref

    def _bytes(self, place: range) -> Iterator[bytes]:
        """Yield a range of the groups, end to end."""
        with self._disk():
            self._file.seek(place.start)
        for start in place[::_CHUNK]:
            with self._disk():
                chunk = self._file.read(min(_CHUNK, place.stop - start))
            yield chunk

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"a merged patch can't be written to {self._where}: {error.strerror}") from error
