"""Exchange of changes between ranks: each sends what it found changed of a group to the rank where that is at home.

There the changes of all ranks are those that one process with the whole model would have found, in the same order, and
are coded to the same bytes. Eight bytes a changed BF16 cell travel, in rounds that bound what is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from pulse_kernels import Cells, Index
from pulse_registry.errors import CorruptObject
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.push.changed_columns import ChangedColumns
from pulse_registry.weights.box import Box, Positions
from pulse_registry.weights.cell_space import Geometry, Group, Numbers
from pulse_registry.weights.slice_map import Held, SliceMap

ROUND_BYTES: Final = 32 << 20
"""What a rank sends in a round, about."""
_SLICE: Final = np.dtype("<i8")
Reader: TypeAlias = Callable[[int, slice], Cells]
"""Returns a run of a tensor's cells, in the local layout."""
Places: TypeAlias = slice | Positions
"""Which cells of a group."""


def to_homes(
    peers: Peers, geometry: Geometry, changes: list[ChangedColumns], homes: Numbers, attempt: Attempt
) -> list[SparseUpdate]:
    """Send changes to the homes of their groups, and return those of the groups that are at home here; a collective.

    Args:
        peers: the ranks.
        geometry: of the whole layout.
        changes: of this rank, of cells that lie apart; they are taken out as they are sent.
        homes: the rank of each group, by number; the same on all ranks.
        attempt: this rank's; after a failure it sends nothing.

    Returns:
        The changes of all ranks, one a group, in group order.
    """
    nbytes = sum(change.nbytes for change in changes)
    mine = -(-nbytes // ROUND_BYTES) if attempt.failure is None else 0
    rounds = max(int.from_bytes(said, "little") for said in peers.all_gather(mine.to_bytes(4, "little"), "rounds"))
    found: list[SparseUpdate] = []
    nothing: list[bytes] = [b""] * peers.size
    for low, high in pairwise(len(geometry.groups) * k // max(1, rounds) for k in range(rounds + 1)):
        parts = attempt.run(partial(_by_rank, changes, homes, peers.size, range(low, high)), nothing)
        changes[:] = [change for change in changes if change.numbers[-1] >= high]
        came = peers.exchange(parts, "changes")
        del parts
        here = range(low, high), homes == peers.rank
        attempt.run(partial(_take, geometry, came, found, here), None)
    return found if attempt.failure is None else []


def _by_rank(changes: Iterable[ChangedColumns], homes: Numbers, ranks: int, groups: range) -> list[bytes]:
    """Return what each rank gets."""
    to: list[list[ChangedColumns]] = [[] for _ in range(ranks)]
    for change in changes:
        for home, part in change.by_home(homes, groups.start, groups.stop):
            to[home].append(part)
    return [ChangedColumns.packed(parts) for parts in to]


def _take(
    geometry: Geometry, came: Sequence[memoryview], found: list[SparseUpdate], here: tuple[range, Numbers]
) -> None:
    """Put together what all ranks have sent of some groups, and of these only those that are at home here.

    Raises:
        CorruptObject: a rank has sent others, or cells that there are not.
    """
    groups, at_home = here
    of: dict[int, list[tuple[Index, Cells, Cells]]] = {}
    for rank, data in enumerate(came):
        for columns in ChangedColumns.unpacked(geometry, data, rank):
            index, old, new, numbers = columns.index, columns.old, columns.new, columns.numbers
            strange = numbers[(numbers < groups.start) | (numbers >= groups.stop) | ~at_home[numbers]]
            if len(strange):
                raise CorruptObject(
                    f"rank {rank} sent changes of group {strange[0]}, which is not at home here, or not of this round"
                )
            for number, cells in columns.fragments():
                of.setdefault(number, []).append((index[cells], old[cells], new[cells]))
    found += [_united(geometry.groups[number], of.pop(number)) for number in sorted(of)]


def _united(group: Group, parts: Sequence[tuple[Index, Cells, Cells]]) -> SparseUpdate:
    """Return the changes of one group, in order of their cells.

    Raises:
        CorruptObject: two ranks changed one cell, or one is past the group.
    """
    index, old, new = parts[0] if len(parts) == 1 else (np.concatenate(column) for column in zip(*parts, strict=True))
    if (index[1:] <= index[:-1]).any():
        order = np.argsort(index, kind="stable")
        index, old, new = index[order], old[order], new[order]
        if (index[1:] == index[:-1]).any():
            raise CorruptObject(f"two ranks changed one cell of group {group.number}")
    if int(index[-1]) >= group.cells:
        raise CorruptObject(f"a rank changed cell {int(index[-1])} of group {group.number}, which has {group.cells}")
    return SparseUpdate(group, index, old, new)


def cells_to(
    peers: Peers,
    slices: SliceMap,
    wanted: Mapping[int, Sequence[int]],
    read: Reader,
    attempt: Attempt,
) -> Iterator[tuple[int, Cells]]:
    """Send the cells of groups to the ranks that want them, a group a rank in each round; a collective.

    Args:
        peers: the ranks.
        slices: what this rank speaks for.
        wanted: numbers of groups, by rank; the same on all ranks.
        read: returns cells of this rank, by tensor and range in the local layout.
        attempt: this rank's; after a failure it sends nothing.

    Yields:
        Each group that this rank wants, in order, with all of its cells.
    """
    geometry = slices.geometry
    for turn in range(max((len(numbers) for numbers in wanted.values()), default=0)):
        asked = [numbers[turn] if turn < len(numbers) else None for _, numbers in sorted(wanted.items())]
        nothing: list[bytes] = [b""] * peers.size
        parts = attempt.run(partial(_all_held, slices, asked, read), nothing)
        came = peers.exchange(parts, "cells")
        number = asked[peers.rank]
        if number is not None:
            group = geometry.groups[number]
            empty = np.empty(0, group.cell_type.dtype)
            cells = attempt.run(partial(_filled, geometry, group, came), empty)
            yield number, cells


def _all_held(slices: SliceMap, asked: Sequence[int | None], read: Reader) -> list[bytes]:
    return [_held(slices, number, read) for number in asked]


def _held(slices: SliceMap, number: int | None, read: Reader) -> bytes:
    """Return what this rank holds of a group: each slice's box and the cells, end to end."""
    if number is None:
        return b""
    found = []
    for part in slices.held(slices.geometry.groups[number]):
        found += [_head(part), read(part.slice.number, slice(part.first, part.stop)).tobytes()]
    return b"".join(found)


def _filled(geometry: Geometry, group: Group, came: Sequence[memoryview]) -> Cells:
    """Return a group's cells, put together from what ranks sent.

    Raises:
        CorruptObject: they are not each cell of the group once.
    """
    cells, filled = np.empty(group.cells, group.cell_type.dtype), 0
    for rank, data in enumerate(came):
        at = 0
        while at < len(data):
            where, count, at = _place(geometry, group, rank, data, at)
            size = count * group.cell_type.width
            if at + size > len(data):
                raise CorruptObject(f"rank {rank} sent cells of group {group.number} that are cut short")
            cells[where] = np.frombuffer(data[at : at + size], group.cell_type.dtype)
            at, filled = at + size, filled + count
    if filled != group.cells:
        raise CorruptObject(f"{filled} of {group.cells} cells of group {group.number} came from all ranks")
    return cells


def cells_from(
    peers: Peers, slices: SliceMap, homes: Numbers, read: Callable[[Group], Cells], attempt: Attempt
) -> Iterator[tuple[int, int, Cells]]:
    """Get the cells that this rank speaks for from the homes of their groups, one of each in each round; a collective.

    Args:
        peers: the ranks.
        slices: what this rank speaks for.
        homes: the rank of each group, by number; the same on all ranks.
        read: returns all cells of a group that is at home here.
        attempt: this rank's; after a failure it sends nothing.

    Yields:
        Runs of cells: the tensor of the local layout, and the index in it of the first one.
    """
    geometry, nothing = slices.geometry, [b""] * peers.size
    at_home: list[list[int]] = [[] for _ in range(peers.size)]
    for number, rank in enumerate(homes.tolist()):
        at_home[rank].append(number)
    for turn in range(max(map(len, at_home))):
        served = [numbers[turn] if turn < len(numbers) else None for numbers in at_home]
        asked = peers.exchange(attempt.run(partial(_all_asked, slices, served), nothing), "cells wanted")
        answers = attempt.run(partial(_all_answered, geometry, served[peers.rank], asked, read), nothing)
        came = peers.exchange(answers, "cells")
        none: list[tuple[int, int, Cells]] = []
        yield from attempt.run(partial(_taken, slices, served, came), none)


def _all_asked(slices: SliceMap, served: Sequence[int | None]) -> list[bytes]:
    """Return, for the home of each group, the boxes of the cells that this rank wants of it."""
    groups = slices.geometry.groups
    return [b"" if n is None else b"".join(map(_head, slices.held(groups[n]))) for n in served]


def _all_answered(
    geometry: Geometry, number: int | None, asked: Sequence[memoryview], read: Callable[[Group], Cells]
) -> list[bytes]:
    """Return the cells of a group that each rank asked for, end to end."""
    if number is None:
        return [b""] * len(asked)
    group = geometry.groups[number]
    cells, answers = read(group), []
    for rank, data in enumerate(asked):
        at, found = 0, []
        while at < len(data):
            where, _, at = _place(geometry, group, rank, data, at)
            found.append(cells[where].tobytes())
        answers.append(b"".join(found))
    return answers


def _taken(slices: SliceMap, served: Sequence[int | None], came: Sequence[memoryview]) -> list[tuple[int, int, Cells]]:
    """Return the runs of cells that came, in the order in which they were asked for."""
    found = []
    for rank, (number, data) in enumerate(zip(served, came, strict=True)):
        at = 0
        for part in () if number is None else slices.held(slices.geometry.groups[number]):
            dtype = slices.geometry.groups[number or 0].cell_type.dtype
            size = (part.stop - part.first) * dtype.itemsize
            if at + size > len(data):
                raise CorruptObject(f"rank {rank} sent cells of group {number} that are cut short")
            found.append((part.slice.number, part.first, np.frombuffer(data[at : at + size], dtype)))
            at += size
    return found


def _head(part: Held) -> bytes:
    """Return which cells of a group a part of a slice is."""
    box = part.slice.box
    head = [len(box.shape), part.slice.tensor, part.first, part.stop, *box.shape, *box.offsets, *box.sizes]
    return np.array(head, _SLICE).tobytes()


def _place(geometry: Geometry, group: Group, rank: int, data: memoryview, at: int) -> tuple[Places, int, int]:
    """Read which cells of a group are meant: where they are in it, how many, and where the data go on.

    Raises:
        CorruptObject: they are none of the group's.
    """
    try:
        dims, tensor, first, stop = np.frombuffer(data[at : at + 32], _SLICE).tolist()
        if dims < 0:
            raise ValueError(f"{dims} dimensions")
        numbers = np.frombuffer(data[at + 32 : at + 32 + 24 * dims], _SLICE).tolist()
        box = Box.of(numbers[:dims], numbers[dims : 2 * dims], numbers[2 * dims :])
        [span] = [span for span in group.spans if span.tensor == tensor]
        if (box.below(span.start), box.below(span.stop)) != (first, stop):
            raise ValueError("another run of cells")
    except ValueError as error:
        raise CorruptObject(f"rank {rank} sent other cells than those of group {group.number}: {error}") from None
    start, at = geometry.tensor_start(tensor) - group.start, at + 32 + 24 * dims
    if box.start is None:
        return box.to_flat(np.arange(first, stop, dtype=np.int64)) + start, stop - first, at
    begin = start + box.start + first
    return slice(begin, begin + stop - first), stop - first, at
