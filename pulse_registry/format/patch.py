"""The patch object: a safetensors file whose tensors ``directory`` and ``groups`` are byte streams.

``directory`` has one entry of 80 bytes a group that changes, in group order; ``groups`` holds the coded groups end to
end (see docs/spec.md and ``pulse_kernels.format.group``). The head, all bytes before the first group, commits to every
group by its BLAKE3: so a group can be fetched by range, checked and decoded alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from blake3 import blake3

from pulse_kernels import Backend, Cells, CodecError, CoderName, RankError, decode_group, encode_group
from pulse_registry.errors import BaseMismatch, CorruptObject, UnsupportedFormat, about
from pulse_registry.format.safetensors import header_bytes, parse_head, tensor_entry
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.verified_read import verified
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import Fault, ObjectRef, PatchHead, PatchRef, SchemaError

CoderChoice = Literal["auto", "gap", "class"]
FetchRange = Callable[[ByteRange], bytes]
"""Reads a range of an object."""
_ENTRY = struct.Struct("<IIII32sQQQQ")
_MOST_HEADER = 4096
"""Bytes that a patch's safetensors header never has: its fields are a hash and four numbers."""
_LEAST_LIMIT = 64 << 10
"""Of a head, whatever its layout: with room for a header that is too long, which is told as such."""
_MOST_CHANGE = 16
"""Bytes of a changed cell, coded: two symbols of at most 12 bits, and 22 and 62 raw bits (docs/spec.md, 5.3)."""
_MOST_TABLES = 128 << 10
"""Of a coded group before its chunks: fewer than 2^16 bytes of tables, and its classes."""
_CODERS: tuple[CoderName, ...] = ("gap", "class")

_CLASS_NS_PER_CELL = 0.66
"""Time of class coding and decoding beyond gap's, a cell of the group, one core, BF16 (benchmarks/codec.py)."""
_CLASS_SAVES = 0.41
"""Share of gap's bytes that class saves (recorded steps: 13.5 against 7.8 bits a changed cell)."""
_LINK_BYTES_PER_NS = 0.125
"""1 Gbit/s, the link that ``auto`` weighs time against."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Directory entry of one group: its sums of h over the old and new changed cells check base and result."""

    group: int
    changed: int
    size: int
    coder: CoderName
    blake3: bytes
    old_sum: Digest
    new_sum: Digest


@dataclass(frozen=True, slots=True)
class Coded:
    """One coded group, and its entry in the directory."""

    entry: Entry
    data: bytes


@dataclass(frozen=True, slots=True)
class PatchFile:
    """A coded patch, ready to be stored: ``head`` and ``groups`` end to end are the object."""

    head: bytes
    groups: tuple[bytes, ...]
    base: int
    target: int
    coder: CoderName
    changed: int
    delta: Digest

    @classmethod
    def of(cls, geometry: Geometry, base: int, target: int, coded: Iterable[Coded]) -> Self:
        """Put coded groups, which come in group order, together to the patch from ``base`` to ``target``."""
        groups = list(coded)
        entries = [group.entry for group in groups]
        changed = sum(entry.changed for entry in entries)
        head = PatchHead(layout=geometry.id, base=base, target=target, changed=changed, groups=len(entries))
        delta = sum((entry.new_sum - entry.old_sum for entry in entries), Digest())
        coder: CoderName = "class" if any(entry.coder == "class" for entry in entries) else "gap"
        data = tuple(group.data for group in groups)
        return cls(head_bytes(head, entries), data, base, target, coder, changed, delta)

    @property
    def nbytes(self) -> int:
        """Size of the object."""
        return len(self.head) + sum(map(len, self.groups))

    def ref(self, key: str, groups: Iterable[bytes] | None = None) -> PatchRef:
        """Return what a record says of the object once it is stored under ``key``.

        Args:
            key: of the object.
            groups: the bytes that follow the head, in any pieces, where they are kept elsewhere.
        """
        hasher, size = blake3(self.head), len(self.head)
        for data in self.groups if groups is None else groups:
            hasher.update(data)
            size += len(data)
        return PatchRef(
            base=self.base,
            target=self.target,
            coder=self.coder,
            changed=self.changed,
            object=ObjectRef(key=key, size=size, blake3=hasher.hexdigest()),
            head_size=len(self.head),
            head_blake3=blake3(self.head).hexdigest(),
        )


def encode_patch(
    backend: Backend,
    geometry: Geometry,
    base: int,
    target: int,
    changes: Sequence[SparseUpdate],
    *,
    coder: CoderChoice = "gap",
    base_cells: Callable[[Group], list[Cells]] | None = None,
    map_: Callable[..., Iterator[Any]] = map,
) -> PatchFile:
    """Code the changes from version ``base`` to ``target``; the same changes give the same bytes.

    Args:
        backend: computes.
        geometry: of the layout of both versions.
        base: the older version.
        target: the newer version.
        changes: at most one a group, in group order; empty ones are left out.
        coder: ``auto`` chooses for each group.
        base_cells: returns a group's cells at ``base``; without it only ``gap`` is possible.
        map_: ``map``, or an executor's: groups are coded side by side.
    """

    def code(change: SparseUpdate) -> Coded:
        base_of = None if base_cells is None else lambda: nullcontext(base_cells(change.group))
        return code_change(backend, change, coder, base_of)

    return PatchFile.of(geometry, base, target, map_(code, [change for change in changes if len(change.index)]))


def code_change(
    backend: Backend,
    change: SparseUpdate,
    coder: CoderChoice,
    base_of: Callable[[], AbstractContextManager[list[Cells]]] | None,
    timeline: Timeline | None = None,
) -> Coded:
    """Code what changes in one group, which is not nothing.

    Args:
        backend: computes.
        change: from the base to the target.
        coder: ``auto`` takes the smaller one where the difference is worth the time.
        base_of: lends the group's cells at the base for as long as its block runs; without it only ``gap`` is possible.
        timeline: notes the phases ``code`` and ``hash``.
    """
    group, clock = change.group, timeline or Timeline()
    began = clock.clock()

    def as_(name: CoderName, base: list[Cells] | None = None) -> bytes:
        cells = change.old, change.new
        return encode_group(backend, name, group.cell_type, group.cells, change.index, *cells, base)

    def as_class() -> bytes:
        with nullcontext() if base_of is None else base_of() as base:
            return as_("class", base)

    name: CoderName = "gap" if coder == "auto" else coder
    data = as_("gap") if name == "gap" else as_class()
    if coder == "auto" and base_of is not None and class_pays(group.cells, len(data)):
        name, data = min((name, data), ("class", as_class()), key=lambda found: len(found[1]))
    coded = clock.clock()
    clock.note("code", began, coded, nbytes=len(data))
    digest = blake3(data).digest()
    entry = Entry(group.number, len(change.index), len(data), name, digest, *change.sums(backend))
    clock.note("hash", coded, nbytes=len(data))
    return Coded(entry, data)


def class_pays(cells: int, gap_bytes: int) -> bool:
    """Tell whether ``auto`` tries ``class`` on a group of so many cells that takes so many bytes with ``gap``.

    ADR 0004: the bytes that class would save, in time on the link, against its time at both ends.
    """
    return gap_bytes * _CLASS_SAVES / _LINK_BYTES_PER_NS > cells * _CLASS_NS_PER_CELL


def most_head_bytes(geometry: Geometry) -> int:
    """Return how long a patch's head is at most: an entry for each group of the layout, and the header before them."""
    return _LEAST_LIMIT + _ENTRY.size * len(geometry.groups)


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
        head, directory = _parse_head(key, bytes(view[: ref.head_size]), size)
        if (head.layout, head.base, head.target, head.changed) != (
            geometry.id,
            ref.base,
            ref.target,
            ref.changed,
        ):
            raise CorruptObject(f"{key}: it is not the patch that the record names")
        entries, places, at, last = {}, {}, ref.head_size, -1
        for fields in _ENTRY.iter_unpack(directory):
            entry = _entry(fields)
            if entry is None or not last < entry.group < len(geometry.groups):
                raise CorruptObject(f"{key}: the directory names groups that are not of the layout or out of order")
            if not 0 < entry.changed <= geometry.groups[entry.group].cells:
                raise CorruptObject(f"{key}: group {entry.group} claims {entry.changed} changed cells")
            last = entry.group
            entries[entry.group] = entry
            places[entry.group] = range(at, at + entry.size)
            at += entry.size
        if at != size or sum(e.changed for e in entries.values()) != head.changed:
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


def read_head(name: str, head: bytes, size: int) -> tuple[PatchHead, list[Entry]]:
    """Return what a patch object says of itself, and its directory, checked without its layout: to look at it alone.

    Args:
        name: of the object, for messages.
        head: its bytes up to the first group.
        size: of the object.

    Raises:
        CorruptObject: they break the format.
        UnsupportedFormat: written by another release.
    """
    parsed, directory = _parse_head(name, head, size)
    entries = [_entry(fields) for fields in _ENTRY.iter_unpack(directory)]
    found = [entry for entry in entries if entry is not None]
    if len(found) != len(entries) or sum(entry.size for entry in found) != size - len(head):
        raise CorruptObject(f"{name}: the directory does not add up to the object")
    return parsed, found


def head_bytes(head: PatchHead, entries: Sequence[Entry]) -> bytes:
    """Return the beginning of a patch object: its safetensors header, and the directory of its groups."""
    directory = b"".join(
        _ENTRY.pack(
            *(e.group, e.changed, e.size, _CODERS.index(e.coder), e.blake3),
            *(e.old_sum.lane_0, e.old_sum.lane_1, e.new_sum.lane_0, e.new_sum.lane_1),
        )
        for e in entries
    )
    document = _head_document(head, len(directory), sum(entry.size for entry in entries))
    return header_bytes(document) + directory


def _head_document(head: PatchHead, directory: int, groups: int) -> dict[str, Any]:
    return {
        "__metadata__": {"pulse": head.canonical().decode()},
        "directory": tensor_entry("U8", [directory], 0, directory),
        "groups": tensor_entry("U8", [groups], directory, directory + groups),
    }


def _parse_head(key: str, head: bytes, size: int) -> tuple[PatchHead, bytes]:
    try:
        header = parse_head(head[:_MOST_HEADER], size)
        parsed = PatchHead.parse(header.metadata["pulse"].encode())
        at = header.nbytes
        directory = head[at:]
        expected = _head_document(parsed, len(directory), size - len(head))
    except SchemaError as error:
        if error.fault is Fault.UNSUPPORTED:
            raise UnsupportedFormat(f"{key}: {error}") from error
        raise CorruptObject(f"{key}: {error}") from error
    except (ValueError, KeyError) as error:
        raise CorruptObject(f"{key}: this is not a patch object: {error}") from error
    if header_bytes(expected) != head[:at] or len(directory) != parsed.groups * _ENTRY.size:
        raise CorruptObject(f"{key}: the safetensors header does not fit the object")
    return parsed, directory


def _entry(fields: tuple[Any, ...]) -> Entry | None:
    group, changed, size, coder, digest, *sums = fields
    if coder >= len(_CODERS):
        return None
    return Entry(group, changed, size, _CODERS[coder], digest, Digest(*sums[:2]), Digest(*sums[2:]))
