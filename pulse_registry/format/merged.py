"""A round's contributions, added up: totals of levels, in the container of contributions (docs/spec.md, 5.10)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_kernels.cells import Index
from pulse_kernels.protocol import Totals
from pulse_registry.format.contribution import Weights, contribution_bytes, decoded, opened
from pulse_registry.format.directory import Directory
from pulse_registry.format.patch_coding import Coded
from pulse_registry.format.patch_head import most_head_bytes
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import ObjectRef
from pulse_schemas.heads import MergedHead

Bits = Literal[16, 32, 64]
_WIDTHS: Final[tuple[Bits, ...]] = (16, 32, 64)
_DTYPES: Final[dict[Bits, np.dtype[Any]]] = {16: np.dtype(np.int16), 32: np.dtype(np.int32), 64: np.dtype(np.int64)}
_MOST_TABLES: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class Merged:
    """Totals that are read: head and directory are checked, groups as they are decoded.

    Attributes:
        key: of the object, for messages.
        head: what it says of itself.
        entries: of its groups, by number.
    """

    key: str
    head: MergedHead
    entries: Directory
    _data: Mapping[int, memoryview]

    @classmethod
    def parse(cls, ref: ObjectRef, geometry: Geometry, data: bytes) -> Self:
        """Read an object.

        Raises:
            CorruptObject, UnsupportedFormat: as ``Contribution.parse``.
        """
        head, entries, groups = opened(ref, geometry, data, MergedHead)
        return cls(ref.key, head, entries, groups)

    @classmethod
    def of_groups(cls, key: str, head: MergedHead, coded: Sequence[Coded]) -> Self:
        """Return some groups of an object that was read elsewhere, and checked there."""
        data = {one.entry.group: memoryview(one.data) for one in coded}
        return cls(key, head, Directory.of(one.entry for one in coded), data)

    def coded(self, numbers: Collection[int]) -> list[Coded]:
        """Return those of some groups that have totals, in group order."""
        return [Coded(self.entries[n], bytes(self._data[n])) for n in self.entries if n in numbers]

    def decode(self, backend: Backend, group: Group, weights: list[Cells]) -> tuple[Index, Totals]:
        """Return (index, totals) of a group that has some, checked against its sums.

        Raises:
            CorruptObject, BaseMismatch: as ``Contribution.decode``.
        """
        entry, data = self.entries[group.number], self._data[group.number]
        index, totals = decoded(self.key, backend, group, entry, data, weights, _DTYPES[self.head.bits])
        return index, totals.astype(np.int64)


def most_merged_bytes(geometry: Geometry) -> int:
    """Return how many bytes totals have at most: of a cell its place and 64 bits, and the tables of each group."""
    return 16 * geometry.cells + _MOST_TABLES * len(geometry.groups) + most_head_bytes(geometry)


def merged_bytes(
    backend: Backend,
    geometry: Geometry,
    base: str,
    round_: int,
    exponent: int,
    totals: Sequence[tuple[Group, Index, Totals]],
    weights: Weights,
) -> bytes:
    """Code the totals of a round: the same bytes for the same arguments, on every backend.

    Args:
        backend: computes.
        geometry: of the weights.
        base: digest of these.
        round_: that the totals are of.
        exponent: they are in steps of 2 to this.
        totals: by group, in group order, none of them 0; in as many bits as the largest takes.
        weights: by whose classes they are coded.
    """
    largest = max((max(int(total.max()), -int(total.min())) for _, _, total in totals), default=0)
    bits = next(width for width in _WIDTHS if largest < 2 ** (width - 1))

    def head(changed: int, groups: int) -> MergedHead:
        return MergedHead(
            layout=geometry.id, base=base, round=round_, bits=bits, exponent=exponent, changed=changed, groups=groups
        )

    parts = [(group, index, total.astype(_DTYPES[bits])) for group, index, total in totals]
    return contribution_bytes(backend, geometry, head, parts, weights)
