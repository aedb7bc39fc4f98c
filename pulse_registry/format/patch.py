"""The patch object as it is read: a safetensors file whose tensors ``directory`` and ``groups`` are byte streams.

``directory`` is in the head (`patch_head`), ``groups`` holds the coded groups end to end (see docs/spec.md and
``pulse_kernels.format.group``). A group can be fetched by range, checked and decoded alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Self

from blake3 import blake3

from pulse_kernels import Backend, Cells, CodecError, RankError, decode_group
from pulse_registry.errors import BaseMismatch, CorruptObject, about
from pulse_registry.format.patch_head import Entry, read_head
from pulse_registry.format.sparse_update import Delta
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.verified_read import verified
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import PatchRef

FetchRange = Callable[[ByteRange], bytes]
"""Reads a range of an object."""
_MOST_CHANGE = 16
"""Bytes of a changed cell, coded: two symbols of at most 12 bits, and 22 and 62 raw bits (docs/spec.md, 5.3)."""
_MOST_TABLES = 128 << 10
"""Of a coded group before its chunks: fewer than 2^16 bytes of tables, and its classes."""


class Patch:
    """A patch object being read: its head is checked at once, its groups as they are decoded.

    Attributes:
        ref: what the record says of it.
        entries: the directory by group number.
        begun: bytes that it began with; the rest is ``missing``.
    """

    def __init__(
        self, ref: PatchRef, entries: dict[int, Entry], places: dict[int, range], read: FetchRange, data: bytes
    ) -> None:
        self.ref = ref
        self.entries = entries
        self.begun = len(data)
        self._places = places
        self._read = read
        self._groups: dict[int, memoryview] = {}
        self._take((number for number, place in places.items() if place.stop <= len(data)), 0, data)

    @classmethod
    def parse(cls, geometry: Geometry, ref: PatchRef, data: bytes, read: FetchRange | None = None) -> Self:
        """Check an object's size, its head's BLAKE3 and every count against the layout.

        Args:
            geometry: of the layout of both versions.
            ref: what the record says.
            data: the object's bytes, or, with ``read``, its first ones, no fewer than its head.
            read: reads a range of the object: groups that are damaged, or that ``data`` does not hold.

        Raises:
            CorruptObject: the bytes are not those that were committed, or break the format.
            UnsupportedFormat: written by another release.
        """
        key, size = ref.object.key, ref.object.size
        if (read is None and len(data) != size) or len(data) > size or len(data) < ref.head_size:
            raise CorruptObject(f"{key}: {len(data)} bytes, {size} were committed")
        view = memoryview(data)
        if blake3(view[: ref.head_size]).hexdigest() != ref.head_blake3:
            raise CorruptObject(f"{key}: the head's BLAKE3 differs from the one committed")
        head, directory = read_head(key, bytes(view[: ref.head_size]), size)
        named = geometry.id, ref.base, ref.target, ref.changed
        if (head.layout, head.base, head.target, head.changed) != named:
            raise CorruptObject(f"{key}: it is not the patch that the record names")
        entries, places, at, last = {}, {}, ref.head_size, -1
        for entry in directory:
            if not last < entry.group < len(geometry.groups):
                raise CorruptObject(f"{key}: the directory names groups that are not of the layout or out of order")
            if not 0 < entry.changed <= geometry.groups[entry.group].cells:
                raise CorruptObject(f"{key}: group {entry.group} claims {entry.changed} changed cells")
            last = entry.group
            entries[entry.group] = entry
            places[entry.group] = range(at, at + entry.size)
            at += entry.size
        if sum(entry.changed for entry in directory) != head.changed:
            raise CorruptObject(f"{key}: the directory does not add up to the object")
        for entry in entries.values():
            if entry.size > _MOST_TABLES + _MOST_CHANGE * entry.changed:
                raise CorruptObject(
                    f"{key}: group {entry.group} claims {entry.size} bytes for {entry.changed} changed cells"
                )
        return cls(ref, entries, places, read or (lambda byte_range: data[slice(*byte_range)]), data)

    def missing(self, nbytes: int) -> list[list[int]]:
        """Return the groups that are not at hand, as runs that lie end to end and take about so many bytes."""
        runs: list[list[int]] = []
        for number, place in self._places.items():
            if number in self._groups:
                continue
            if runs and place.stop - self._places[runs[-1][0]].start <= nbytes:
                runs[-1].append(number)
            else:
                runs.append([number])
        return runs

    def fetch(self, run: list[int]) -> int:
        """Read a run of ``missing`` and return its bytes; its groups are checked as they are decoded.

        Raises:
            CorruptObject: the object ends before them.
            NotFound, StoreUnavailable: as the store.
        """
        start, stop = self._places[run[0]].start, self._places[run[-1]].stop
        with about(self.ref.object.key):
            self._take(run, start, self._read((start, stop)))
        return stop - start

    def _take(self, numbers: Iterable[int], start: int, data: bytes) -> None:
        view = memoryview(data)
        for number in numbers:
            place = self._places[number]
            self._groups[number] = view[place.start - start : place.stop - start]

    def decode(self, backend: Backend, group: Group, base: list[Cells] | None = None) -> Delta:
        """Check and decode one group that the directory names; ``class`` groups need the ``base`` cells.

        Its bytes are let go of.

        Raises:
            CorruptObject: the group's bytes are not those that were committed, or break the format.
            BaseMismatch: (``class``) the base cells are not those that it was coded against.
            StoreUnavailable: it was to be read again, and the store failed.
        """
        entry, key, data = self.entries[group.number], self.ref.object.key, self.coded(group.number)
        with about(key):
            try:
                return Delta(
                    *decode_group(backend, entry.coder, group.cell_type, group.cells, entry.changed, data, base)
                )
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
        key, digest = self.ref.object.key, self.entries[number].blake3
        place, taken = self._places[number], self._groups.pop(number, None)
        if taken is not None and blake3(taken).digest() == digest:
            return taken
        with about(key):
            return verified(partial(self._read_view, place), digest, f"{key}: the BLAKE3 of group {number}", taken)

    def _read_view(self, place: range) -> memoryview:
        return memoryview(self._read((place.start, place.stop)))
