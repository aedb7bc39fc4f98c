"""Directory of a patch: what its head says of each group that changes, in columns of numbers.

A layout may have a million groups: whoever looks at a few of them makes objects for these alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pulse_kernels import CoderName
from pulse_registry.errors import CorruptObject
from pulse_registry.weights.digest import Digest

CODERS: Final[tuple[CoderName, ...]] = ("gap", "class")
_ROW = np.dtype(
    [
        ("group", "<u4"),
        ("changed", "<u4"),
        ("size", "<u4"),
        ("coder", "<u4"),
        ("blake3", "V32"),
        ("old_sum", "<u8", 2),
        ("new_sum", "<u8", 2),
    ]
)
ENTRY_BYTES: Final = _ROW.itemsize
Column = npt.NDArray[np.int64]


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


class Directory(Mapping[int, Entry]):
    """The entries of a patch by group number: each is made when it is asked for.

    Attributes:
        groups, changed, sizes: a number for each entry, in the order of the entries.
    """

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        """Take the rows, as they are stored."""
        self._rows = rows
        self.groups: Column = rows["group"].astype(np.int64)
        self.changed: Column = rows["changed"].astype(np.int64)
        self.sizes: Column = rows["size"].astype(np.int64)

    @classmethod
    def parse(cls, name: str, data: bytes) -> Self:
        """Read the entries of the patch ``name``, whole ones.

        Raises:
            CorruptObject: one names a coder that there is not, or they are out of order.
        """
        rows = np.frombuffer(data, _ROW)
        if np.any(rows["group"][1:] <= rows["group"][:-1]):
            raise CorruptObject(f"{name}: the directory names groups out of order")
        wrong = np.flatnonzero(rows["coder"] >= len(CODERS))
        if len(wrong):
            group, coder = (int(rows[field][wrong[0]]) for field in ("group", "coder"))
            raise CorruptObject(f"{name}: the directory names coder {coder} for group {group}; there are {len(CODERS)}")
        return cls(rows)

    @classmethod
    def joined(cls, name: str, parts: Iterable[bytes]) -> Self:
        """Read the entries of the patch ``name`` from pieces of its directory, in any order.

        Raises:
            CorruptObject: as ``parse``; or two pieces have one group.
        """
        rows = np.frombuffer(b"".join(parts), _ROW)
        return cls.parse(name, rows[rows["group"].argsort(kind="stable")].tobytes())

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """Return the directory of entries, which come in group order."""
        rows = [
            (
                *(entry.group, entry.changed, entry.size, CODERS.index(entry.coder), entry.blake3),
                *((sums.lane_0, sums.lane_1) for sums in (entry.old_sum, entry.new_sum)),
            )
            for entry in entries
        ]
        return cls(np.array(rows, _ROW))

    def to_bytes(self) -> bytes:
        """Return the entries as they are stored."""
        return self._rows.tobytes()

    @property
    def coder(self) -> CoderName:
        """``gap`` if all groups are, else ``class``."""
        return CODERS[int(self._rows["coder"].max(initial=0))]

    @property
    def delta(self) -> Digest:
        """What the patch adds to the state digest."""
        old, new = self.sums
        return new - old

    @property
    def sums(self) -> tuple[Digest, Digest]:
        """The sums of h over all cells that the patch changes: before, and after."""
        lanes = (self._rows[side].sum(axis=0, dtype=np.uint64).tolist() for side in ("old_sum", "new_sum"))
        old, new = (Digest(*pair) for pair in lanes)
        return old, new

    def row(self, group: int) -> int | None:
        """Return which entry is a group's; None where the group has none."""
        table = self._table
        row = table[group] if 0 <= group < len(table) else -1
        return None if row < 0 else row

    def rows_of(self, groups: Iterable[int]) -> Column:
        """Return which entries are those of some groups, in order; groups that have none are left out."""
        wanted = np.fromiter(groups, np.int64)
        return np.flatnonzero(np.isin(self.groups, wanted))

    def coding(self, group: int) -> tuple[CoderName, int]:
        """Return by what a group that has an entry is coded, and how many of its cells change; no object is made.

        Raises:
            KeyError: it has none.
        """
        row = self.row(group)
        if row is None:
            raise KeyError(group)
        return CODERS[int(self._rows["coder"][row])], int(self.changed[row])

    def hash(self, row: int) -> bytes:
        """Return the BLAKE3 of the coded group of one entry."""
        digest: bytes = self._rows["blake3"][row].tobytes()
        return digest

    def __contains__(self, group: object) -> bool:
        return isinstance(group, int) and self.row(group) is not None

    def __getitem__(self, group: int) -> Entry:
        row = self.row(group)
        if row is None:
            raise KeyError(group)
        return self._entry(row)

    def __iter__(self) -> Iterator[int]:
        return iter(self.groups.tolist())

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def _table(self) -> memoryview:
        """Which entry is a group's, for each number up to the last one's; -1: none."""
        table = np.full(int(self.groups.max(initial=-1)) + 1, -1, np.int32)
        table[self.groups] = np.arange(len(self), dtype=np.int32)
        return table.data

    def _entry(self, row: int) -> Entry:
        group, changed, size, coder, digest, old, new = self._rows[row].item()
        return Entry(group, changed, size, CODERS[coder], digest, Digest(*old.tolist()), Digest(*new.tolist()))
