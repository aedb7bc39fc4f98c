"""The patch as it is read: a safetensors file whose tensors ``directory`` and ``groups`` are byte streams.

``directory`` is in the head (`patch_head`), ``groups`` holds the coded groups end to end (see docs/spec.md and
``pulse_kernels.format.group``), in the same object or in parts (`patch_parts`). A group can be fetched by range,
checked and decoded alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend, Cells, CodecError, RankError, Spans, decode_group, move_group, step_group
from pulse_registry.errors import BaseMismatch, CorruptObject, about
from pulse_registry.format.directory import Directory
from pulse_registry.format.patch_head import committed_head
from pulse_registry.format.patch_parts import Places
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.verified_read import verified
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import PatchRef

FetchRange = Callable[[str, ByteRange], bytes]
"""Reads a range of the object under a key."""
_MOST_CHANGE = 16
"""Bytes of a changed cell, coded: two symbols of at most 12 bits, and 22 and 62 raw bits (docs/spec.md, 5.3)."""
_MOST_TABLES = 128 << 10
"""Of a coded group before its chunks: fewer than 2^16 bytes of tables, and its classes."""


class Run(NamedTuple):
    """Groups of a patch that lie end to end: ``first`` to ``last`` by number, which are the entries ``rows``."""

    first: int
    last: int
    rows: range


class Patch:
    """A patch being read: its head is checked at once, its groups as they are decoded.

    Attributes:
        ref: what the record says of it.
        entries: the directory by group number.
        begun: bytes that it began with; the rest is ``missing``.
        places: where its groups lie.
    """

    def __init__(self, ref: PatchRef, entries: Directory, read: FetchRange, data: bytes) -> None:
        self.ref = ref
        self.entries = entries
        self.begun = len(data)
        self.places = Places(ref, entries)
        self._read = read
        self._at_hand: dict[int, memoryview] = {}  # by row
        self._take(self.places.at_hand(len(data)), 0, data)

    @classmethod
    def parse(cls, geometry: Geometry, ref: PatchRef, data: bytes, read: FetchRange | None = None) -> Self:
        """Check the size of a patch's object, its head's BLAKE3 and every count against the layout.

        Args:
            geometry: of the layout of both versions.
            ref: what the record says.
            data: the object's bytes, or, with ``read``, its first ones, no fewer than its head.
            read: reads a range of the object, or of a part: groups that are damaged, or that ``data`` does not hold.

        Raises:
            CorruptObject: the bytes are not those that were committed, or break the format.
            UnsupportedFormat: written by another release.
        """
        key, size = ref.object.key, ref.object.size
        if (read is None and len(data) != size) or len(data) > size or len(data) < ref.head_size:
            raise CorruptObject(f"{key}: {len(data)} bytes, {size} were committed")
        view = memoryview(data)
        head, directory = committed_head(ref, bytes(view[: ref.head_size]))
        if head.layout != geometry.id:
            raise CorruptObject(f"{key}: it is not the patch that the record names")
        check_directory(key, geometry, directory, head.changed)
        return cls(ref, directory, read or (lambda _, byte_range: data[slice(*byte_range)]), data)

    def missing(self, nbytes: int, numbers: Sequence[int]) -> list[Run]:
        """Return those of some groups that are not at hand, as runs that take about ``nbytes`` each.

        Args:
            nbytes: no run is longer, unless it is one group.
            numbers: of the groups that are wanted; those that the patch does not have are passed over.
        """
        rows = self.entries.rows_of(numbers)
        rows = rows[~np.isin(rows, np.fromiter(self._at_hand, np.int64))]
        groups = self.entries.groups
        return [Run(int(groups[run[0]]), int(groups[run[-1]]), run) for run in self.places.runs(rows, nbytes)]

    def fetch(self, run: Run) -> int:
        """Read a run of ``missing`` and return its bytes; its groups are checked as they are decoded.

        Raises:
            CorruptObject: the object ends before them.
            NotFound, StoreUnavailable: as the store.
        """
        start, stop = self.places.place(run.rows[0]).start, self.places.place(run.rows[-1]).stop
        key = self.places.key(run.rows[0])
        with about(key):
            self._take(run.rows, start, self._read(key, (start, stop)))
        return stop - start

    def _take(self, rows: range, start: int, data: bytes) -> None:
        view = memoryview(data)
        for row in rows:
            place = self.places.place(row)
            self._at_hand[row] = view[place.start - start : place.stop - start]

    def decode(self, backend: Backend, group: Group, base: list[Cells] | None = None) -> Delta:
        """Check and decode one group that the directory names; ``class`` groups need the ``base`` cells.

        Its bytes are let go of.

        Raises:
            CorruptObject: the group's bytes are not those that were committed, or break the format.
            BaseMismatch: (``class``) the base cells are not those that it was coded against.
            StoreUnavailable: it was to be read again, and the store failed.
        """
        (coder, changed), data = self.entries.coding(group.number), self.coded(group.number)
        with self._naming(group):
            return Delta(*decode_group(backend, coder, group.cell_type, group.cells, changed, data, base))

    def look(self, backend: Backend, group: Group, cells: Spans) -> SparseUpdate:
        """Check and decode one group that the directory names, and find what it makes of its cells; they are only read.

        Its bytes are let go of.

        Raises:
            CorruptObject, BaseMismatch, StoreUnavailable: as ``decode``.
        """
        (coder, changed), data = self.entries.coding(group.number), self.coded(group.number)
        with self._naming(group):
            of = coder, group.cell_type, group.cells, changed
            index, old, new, *sums = step_group(backend, *of, data, cells, group.start)
            return SparseUpdate(group, index, old, new, [(Digest(*sums[0]), Digest(*sums[1]))])

    def move(self, backend: Backend, group: Group, cells: Cells) -> tuple[Digest, Digest]:
        """Move all cells of a group, in place, by what coder ``gap`` has of it, as it is decoded; its bytes are let go.

        Returns:
            The sums of h over the changed cells, before and after.

        Raises:
            CorruptObject, StoreUnavailable: as ``decode``; some cells are moved.
        """
        (_, changed), data = self.entries.coding(group.number), self.coded(group.number)
        with self._naming(group):
            before, after = move_group(backend, group.cell_type, cells, changed, data, group.start)
            return Digest(*before), Digest(*after)

    @contextmanager
    def _naming(self, group: Group) -> Iterator[None]:
        """Name the object and the group in the errors of decoding."""
        key = self.ref.object.key
        with about(key):
            try:
                yield
            except RankError as error:
                raise BaseMismatch(
                    f"{key}: group {group.number} was coded against other weights than version {self.ref.base}: {error}"
                ) from error
            except CodecError as error:
                raise CorruptObject(f"{key}: group {group.number}: {error}") from error

    def coded(self, number: int) -> memoryview:
        """Return a group's checked bytes, which are kept no longer; damaged or missing ones are read, alone.

        Raises:
            CorruptObject: they are not those that were committed.
            NotFound, StoreUnavailable: as the store.
        """
        row = self.entries.row(number)
        if row is None:
            raise KeyError(number)
        key, digest, taken = self.places.key(row), self.entries.hash(row), self._at_hand.pop(row, None)
        if taken is not None and blake3(taken).digest() == digest:
            return taken
        place = self.places.place(row)
        with about(key):
            return verified(partial(self._read_view, key, place), digest, f"{key}: the BLAKE3 of group {number}", taken)

    def _read_view(self, key: str, place: range) -> memoryview:
        return memoryview(self._read(key, (place.start, place.stop)))


def check_directory(key: str, geometry: Geometry, directory: Directory, changed: int) -> None:
    """Check a directory's entries against the layout, and that they add up."""
    groups, cells = directory.groups, geometry.groups.cells
    if int(groups.max(initial=-1)) >= len(cells):
        raise CorruptObject(f"{key}: the directory names groups that are not of the layout")
    wrong = np.flatnonzero((directory.changed == 0) | (directory.changed > cells[groups]))
    if len(wrong):
        raise CorruptObject(f"{key}: group {groups[wrong[0]]} claims {directory.changed[wrong[0]]} changed cells")
    if int(directory.changed.sum()) != changed:
        raise CorruptObject(f"{key}: the directory does not add up to the object")
    wrong = np.flatnonzero(directory.sizes > _MOST_TABLES + _MOST_CHANGE * directory.changed)
    if len(wrong):
        raise CorruptObject(
            f"{key}: group {groups[wrong[0]]} claims {directory.sizes[wrong[0]]} bytes for "
            f"{directory.changed[wrong[0]]} changed cells"
        )
