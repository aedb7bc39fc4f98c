"""Changes go to the homes of their groups: what arrives there is what was changed, as a list of single cells says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_registry import Slice
from pulse_registry.errors import CorruptObject
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.peers.peers import Bytes
from pulse_registry.peers.vote import Attempt
from pulse_registry.push import exchange
from pulse_registry.push.changed_columns import ChangedColumns
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import read_model
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import DTYPE_ORDER, Layout, Tensor
from tests.support.groups import small_groups
from tests.support.ranks import MortalPeers

DTYPES = {"U64": np.uint64, "U16": np.uint16, "U8": np.uint8}
BACKEND = get_backend("reference")
Cell = tuple[int, int, int]
"""Flat index in the whole layout, old and new value."""


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = draw(st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=5))
    tensors = [
        Tensor(name=f"t{number}", dtype=draw(st.sampled_from(sorted(DTYPES))), shape=tuple(shape))
        for number, shape in enumerate(shapes)
    ]
    return Layout(tensors=tuple(sorted(tensors, key=lambda t: (DTYPE_ORDER.index(t.dtype), t.name))))


@st.composite
def dealt(draw: st.DrawFn, layout: Layout, ranks: int) -> list[dict[str, list[Slice]]]:
    """Deal each tensor among ranks along a dimension, or as runs; a rank may hold several of its pieces."""
    models: list[dict[str, list[Slice]]] = [{} for _ in range(ranks)]
    for tensor in layout.tensors:
        dtype, shape = DTYPES[tensor.dtype], tensor.shape
        flat = not shape or draw(st.booleans())
        dim = 0 if flat else draw(st.integers(0, len(shape) - 1))
        size = math.prod(shape) if flat else shape[dim]
        cuts = sorted([0, size, *draw(st.lists(st.integers(0, size), max_size=2 * ranks))])
        for first, stop in pairwise(cuts):
            sizes = (stop - first,) if flat else (*shape[:dim], stop - first, *shape[dim + 1 :])
            if math.prod(sizes):
                at: Any = first if flat else (*(0,) * dim, first, *(0,) * (len(shape) - dim - 1))
                held = models[draw(st.integers(0, ranks - 1))].setdefault(tensor.name, [])
                held.append(Slice(np.zeros(sizes, dtype), of=shape, at=at))
    return models


def changed(slices: SliceMap, rng: np.random.Generator) -> tuple[list[SparseUpdate], list[Cell]]:
    """Return random changes of a rank's cells, by local groups, and each by its place in the whole layout."""
    places = {
        slices.local.tensor_start(one.number) + local: one.start + int(flat)
        for one in slices.slices
        for local, flat in enumerate(one.box.to_flat(np.arange(one.box.cells)))
    }
    updates, cells = [], []
    for group in slices.local.groups:
        index = np.flatnonzero(rng.random(group.cells) < 0.5).astype(np.uint32)
        if len(index):
            old, new = (rng.integers(0, 2**8, len(index)).astype(group.cell_type.dtype) for _ in range(2))
            updates.append(SparseUpdate(group, index, old, new))
            columns = index.tolist(), old.tolist(), new.tolist()
            cells += [(places[group.start + at], a, b) for at, a, b in zip(*columns, strict=True)]
    return updates, cells


@given(data=st.data(), layout=layouts(), ranks=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_what_all_ranks_changed_arrives_once_at_its_home(
    data: st.DataObject, layout: Layout, ranks: int, seed: int
) -> None:
    models, rng = data.draw(dealt(layout, ranks)), np.random.default_rng(seed)
    with small_groups(16), pytest.MonkeyPatch.context() as patched:
        patched.setattr(exchange, "ROUND_BYTES", 100)
        geometry = Geometry(layout)
        homes = rng.integers(0, ranks, len(geometry.groups))
        found = []
        for model in models:
            if not any(model.values()):
                found.append(([], [], Digest()))
                continue
            slices = SliceMap.of(geometry, read_model(model), partial=True, alone=False)
            updates, cells = changed(slices, rng)
            made = [ChangedColumns.of(slices, update, BACKEND) for update in updates]
            found.append(([columns for columns, _ in made], cells, sum((delta for _, delta in made), Digest())))

        def life(peers: LocalPeers) -> list[SparseUpdate]:
            attempt, changes = Attempt(peers), found[peers.rank][0]
            came = exchange.to_homes(peers, geometry, changes, homes, attempt)
            attempt.agree("exchange")
            assert not changes
            return came

        came = [result.result() for result in run_ranks(life, LocalGroup(ranks))]
    for rank, updates in enumerate(came):
        numbers = [update.group.number for update in updates]
        assert numbers == sorted(set(numbers))
        assert all(homes[number] == rank for number in numbers)
    assert sorted(_cells(came)) == sorted(cell for _, cells, _ in found for cell in cells)
    told = sum((delta for _, _, delta in found), Digest())
    sums = [update.sums(BACKEND) for updates in came for update in updates]
    assert sum((new - old for old, new in sums), Digest()) == told


def _cells(came: Sequence[Sequence[SparseUpdate]]) -> list[Cell]:
    found = []
    for updates in came:
        for one in updates:
            assert (np.diff(one.index.astype(np.int64)) > 0).all()
            columns = one.index.tolist(), one.old.tolist(), one.new.tolist()
            found += [(one.group.start + at, a, b) for at, a, b in zip(*columns, strict=True)]
    return found


def test_a_slice_that_reaches_over_more_cells_than_an_index_does_has_their_sums() -> None:
    """Rows of many tensors lie further apart in the whole layout than 32 bits count."""
    tensors = tuple(Tensor(name=f"t{n}", dtype="U8", shape=(2**31, 2)) for n in range(3))
    geometry = Geometry(Layout(tensors=tensors))
    zero = np.zeros((1, 2), np.uint8)
    model = {one.name: Slice(zero.copy(), of=one.shape, at=(2**30, 0)) for one in tensors}
    slices = SliceMap.of(geometry, read_model(model))
    index = np.arange(6, dtype=np.uint32)
    change = SparseUpdate(slices.local.groups[0], index, index.astype(np.uint8), index.astype(np.uint8) + np.uint8(7))
    columns, delta = ChangedColumns.of(slices, change, BACKEND)
    expected = Digest()
    for number, cells in columns.fragments():
        one = SparseUpdate(geometry.groups[number], columns.index[cells], columns.old[cells], columns.new[cells])
        old, new = one.sums(BACKEND)
        expected += new - old
    assert len(columns.numbers) == 3
    assert delta == expected


def columns_of(numbers: Sequence[int], counts: Sequence[int], index: Sequence[int]) -> ChangedColumns:
    cells = np.arange(len(index), dtype=np.uint16)
    return ChangedColumns(np.array(numbers), np.array(counts), np.array(index, np.uint32), cells, cells + np.uint16(1))


def refused(geometry: Geometry, sent: bytes, homes: Sequence[int] = (0, 0, 0)) -> None:
    """Let rank 1 send these bytes as its changes; raise what the rank at which the groups are at home finds wrong."""

    class Wire(MortalPeers):
        def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
            return super().exchange([sent if self.rank else b"", b""], what)

    def life(peers: LocalPeers) -> Exception | None:
        columns, attempt = columns_of([0], [1], [0]), Attempt(peers)  # there is a round
        at = np.array(homes[: len(geometry.groups)])
        found = exchange.to_homes(Wire(peers), geometry, [columns], at, attempt)
        assert peers.rank or not found
        return attempt.failure

    [failure, _] = [future.result() for future in run_ranks(life, LocalGroup(2))]
    if failure is not None:
        raise failure


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (columns_of([9], [1], [0]), "rank 1 sent 1 changes of group 9"),
        (columns_of([0], [9], range(9)), "rank 1 sent 9 changes of group 0"),
        (columns_of([0, 0], [1, 1], [0, 1]), "not those of its groups"),
        (columns_of([0], [2], [0]), "not those of its groups"),
        (columns_of([], [], []), "not those of its groups"),
        (columns_of([0, 2], [1, 1], [0, 1]), "two dtypes"),
        (columns_of([0], [2], [3, 3]), "two ranks changed one cell of group 0"),
        (columns_of([1], [1], [4]), "cell 4 of group 1, which has 4"),
    ],
)
def test_changes_that_can_not_be_are_refused(columns: ChangedColumns, said: str) -> None:
    layout = Layout(
        tensors=(Tensor(name="a", dtype="U16", shape=(12,)), Tensor(name="b", dtype="U8", shape=(4,))),
    )
    with small_groups(16):
        geometry = Geometry(layout)
        with pytest.raises(CorruptObject, match=said):
            refused(geometry, ChangedColumns.packed([columns]))


def test_changes_of_what_is_at_home_elsewhere_or_of_another_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_groups(16):
        geometry = Geometry(Layout(tensors=(Tensor(name="a", dtype="U16", shape=(20,)),)))
        strange = ChangedColumns.packed([columns_of([1], [1], [0])])
        with pytest.raises(CorruptObject, match="rank 1 sent changes of group 1, which is not at home here"):
            refused(geometry, strange, homes=(0, 1, 0))
        monkeypatch.setattr(exchange, "ROUND_BYTES", 11)  # two rounds: the first one is of group 0
        with pytest.raises(CorruptObject, match="group 1, which is not at home here, or not of this round"):
            refused(geometry, strange)


@pytest.mark.parametrize("left", [1, 7, 8, 12, 20, 25])
def test_changes_that_are_cut_short_are_refused(left: int) -> None:
    with small_groups(16):
        geometry = Geometry(Layout(tensors=(Tensor(name="a", dtype="U16", shape=(12,)),)))
        data = ChangedColumns.packed([columns_of([0], [2], [0, 3])])
        with pytest.raises(CorruptObject, match="cut short"):
            refused(geometry, data[:left])
