"""The contribution: a member's levels of one round, in the container of patches (docs/spec.md, 5).

Its groups are coded by the classes of the BF16 weights that all members hold; an entry's sums are those of h over these
weights, and over the levels as I16 cells, where there are levels. Float32 values, where these are sent, are F32 cells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend, Cells, CodecError, RankError
from pulse_kernels.cells import Index
from pulse_kernels.format.levels import Sendable, decode_levels, encode_levels
from pulse_kernels.protocol import Floats, Levels
from pulse_registry.errors import BaseMismatch, CorruptObject, UnsupportedFormat
from pulse_registry.format.directory import Directory, Entry
from pulse_registry.format.patch import check_directory
from pulse_registry.format.patch_coding import Coded
from pulse_registry.format.patch_head import MOST_HEADER, H, head_bytes, most_head_bytes, read_container
from pulse_registry.format.safetensors import parse_head
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import Fault, ObjectRef, SchemaError
from pulse_schemas.heads import ContributionHead, MergedHead
from pulse_schemas.objects import Values

LARGEST: Final = float(2**60)
"""Below which float32 values are sent: their sums, of 256 members by 16 bits of weight, stay far below infinity."""
_DTYPES: Final[dict[Values, np.dtype[Any]]] = {"levels": np.dtype(np.int16), "float32": np.dtype(np.float32)}
Weights = Callable[[Group], list[Cells]]
"""Lends the BF16 weights of a group, in spans that lie end to end."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A contribution that is read: its head and directory are checked, its groups as they are decoded.

    Attributes:
        key: of the object, for messages.
        head: what it says of itself.
        entries: of its groups, by number.
    """

    key: str
    head: ContributionHead
    entries: Directory
    _data: Mapping[int, memoryview]

    @classmethod
    def parse(cls, ref: ObjectRef, geometry: Geometry, data: bytes) -> Self:
        """Read an object.

        Raises:
            CorruptObject: its bytes are not those that the record names; or it breaks the format, or is of another
                layout.
            UnsupportedFormat: another release wrote it.
        """
        head, entries, groups = opened(ref, geometry, data, ContributionHead)
        return cls(ref.key, head, entries, groups)

    @classmethod
    def of_groups(cls, key: str, head: ContributionHead, coded: Sequence[Coded]) -> Self:
        """Return some groups of an object that was read elsewhere, and checked there."""
        data = {one.entry.group: memoryview(one.data) for one in coded}
        return cls(key, head, Directory.of(one.entry for one in coded), data)

    def coded(self, numbers: Collection[int]) -> list[Coded]:
        """Return those of some groups that have levels, in group order."""
        return [Coded(self.entries[n], bytes(self._data[n])) for n in self.entries if n in numbers]

    def decode(self, backend: Backend, group: Group, weights: list[Cells]) -> tuple[Index, Levels | Floats]:
        """Return (index, levels) of a group that has some, or float32 values, checked against its sums.

        Raises:
            CorruptObject: its bytes break the format.
            BaseMismatch: it was coded by other weights.
        """
        entry, data = self.entries[group.number], self._data[group.number]
        index, levels = decoded(self.key, backend, group, entry, data, weights, _DTYPES[self.head.values])
        if levels.dtype == np.float32 and not (np.abs(levels) < LARGEST).all():
            raise CorruptObject(f"{self.key}: group {group.number} has a value that is not below 2^60")
        return index, levels


def opened(
    ref: ObjectRef, geometry: Geometry, data: bytes, kind: type[H]
) -> tuple[H, Directory, Mapping[int, memoryview]]:
    """Return the head, directory and groups of an object of some kind; see ``Contribution.parse``."""
    key = ref.key
    if len(data) != ref.size or blake3(data).hexdigest() != ref.blake3:
        raise CorruptObject(f"{key}: its bytes are not those that were recorded")
    size = _head_size(key, geometry, data)
    head, entries = read_container(key, data[:size], len(data), kind)
    if head.layout != geometry.id:
        raise CorruptObject(f"{key}: it is of another layout")
    check_directory(key, geometry, entries, head.changed)
    ends = size + entries.sizes.cumsum()
    starts = ends - entries.sizes
    view = memoryview(data)
    return head, entries, {
        number: view[a:b] for number, a, b in zip(entries, starts.tolist(), ends.tolist(), strict=True)
    }  # fmt: skip


def decoded(
    key: str,
    backend: Backend,
    group: Group,
    entry: Entry,
    data: memoryview,
    weights: list[Cells],
    dtype: np.dtype[Any],
) -> tuple[Index, Any]:
    """Return (index, levels) of a group, checked against its sums; see ``Contribution.decode``."""
    other = f"{key}: group {group.number} was coded by other weights than these"
    try:
        index, cells, levels = decode_levels(backend, weights, entry.changed, data, dtype)
    except RankError as error:
        raise BaseMismatch(other) from error
    except CodecError as error:
        raise CorruptObject(f"{key}: group {group.number}: {error}") from error
    old, new = _sums(backend, group, index, cells, levels)
    if old != entry.old_sum:
        raise BaseMismatch(other)
    if new != entry.new_sum or not levels.all():
        raise CorruptObject(f"{key}: the levels of group {group.number} are not those that were coded")
    return index, levels


def most_bytes(geometry: Geometry) -> int:
    """Return how many bytes a contribution has at most: two words of 32 bits for each cell, and its head."""
    return 8 * geometry.cells + most_head_bytes(geometry)


def told_head(key: str, begin: bytes, size: int) -> ContributionHead:
    """Return what an object of so many bytes says of itself in its first ``MOST_HEADER`` ones; no more is checked.

    Raises:
        CorruptObject: it is no contribution.
        UnsupportedFormat: another release wrote it.
    """
    try:
        return ContributionHead.parse(parse_head(begin[:MOST_HEADER], size).metadata["pulse"].encode())
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{key}: {error}") from error
    except (ValueError, KeyError) as error:
        raise CorruptObject(f"{key}: this is not a contribution: {error}") from error


def contribution_bytes(
    backend: Backend,
    geometry: Geometry,
    head: Callable[[int, int], ContributionHead | MergedHead],
    parts: Iterable[tuple[Group, Index, Sendable]],
    weights: Weights,
    each: Callable[..., Iterable[Any]] = map,
) -> bytes:
    """Code a contribution, or the totals of a round: the same bytes for the same arguments, on every backend.

    Args:
        backend: computes.
        geometry: of the weights.
        head: makes the head from the number of levels, and of groups that have some.
        parts: levels, or float32 values, by group, in group order; groups without any are left out.
        weights: by whose classes they are coded.
        each: calls a function on each part, maybe in threads.
    """

    def code(part: tuple[Group, Index, Sendable]) -> Coded:
        return code_levels(backend, *part, weights(part[0]))

    return joined_groups(geometry, head, [*each(code, [part for part in parts if len(part[1])])])


def code_levels(backend: Backend, group: Group, index: Index, levels: Sendable, weights: list[Cells]) -> Coded:
    """Code the levels of one group, or its float32 values, of which there are some; see ``contribution_bytes``."""
    old = backend.gather_spans(weights, index)
    data = encode_levels(backend, weights, index, old, levels)
    sums = _sums(backend, group, index, old, levels)
    return Coded(Entry(group.number, len(index), len(data), "class", blake3(data).digest(), *sums), data)


def joined_groups(
    geometry: Geometry, head: Callable[[int, int], ContributionHead | MergedHead], coded: Sequence[Coded]
) -> bytes:
    """Return a contribution of coded groups, which come in group order; see ``contribution_bytes``."""
    directory = Directory.of(one.entry for one in coded)
    begins = head_bytes(head(int(directory.changed.sum()), len(directory)), directory)
    if len(begins) > most_head_bytes(geometry):
        raise ValueError("the directory has more groups than the layout")
    return b"".join((begins, *(one.data for one in coded)))


def _sums(backend: Backend, group: Group, index: Index, old: Cells, levels: Sendable) -> tuple[Digest, Digest]:
    new = levels.view(f"<u{levels.itemsize}")
    if new.itemsize == old.itemsize:
        first, second = backend.digest_changes(index, old, new, group.start)
    else:
        first, second = (backend.digest_sparse(index, column, group.start) for column in (old, new))
    return Digest(*first), Digest(*second)


def _head_size(key: str, geometry: Geometry, data: bytes) -> int:
    """Return the bytes before the first group."""
    try:
        header = parse_head(data[: most_head_bytes(geometry)], len(data))
        directory = header.tensors["directory"]
    except (ValueError, KeyError) as error:
        raise CorruptObject(f"{key}: this is not a contribution: {error}") from error
    return header.nbytes + directory.stop
