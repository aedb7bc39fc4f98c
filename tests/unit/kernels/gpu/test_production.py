"""Every kernel at the constants that it runs with, once a width: tiles of 8,192 cells, chunks of 2,048 changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_kernels import CoderName, encode_group
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.format.symbols import outward
from pulse_kernels.gpu.apply import copy, distance, gather, locate, move, scatter, undo
from pulse_kernels.gpu.coding.class_rank import CLASSES, Classing, class_counts, class_ranks
from pulse_kernels.gpu.coding.class_select import class_select
from pulse_kernels.gpu.coding.decode import decode_changes
from pulse_kernels.gpu.coding.encode import encode_changes
from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.digest import as_lanes, digest, digest_sparse
from pulse_kernels.gpu.merge import merge
from pulse_kernels.gpu.tiling import TILE
from tests.unit.kernels.gpu.coding import CODERS, Step, moved, weights
from tests.unit.kernels.gpu.inputs import (
    REFERENCE,
    Policy,
    by_group,
    changed_at,
    flat_cells,
    policy,
    to_device,
    to_host,
)
from tests.unit.kernels.inputs import all_same, same

pytestmark = pytest.mark.slow

NAMES = ("F8_E4M3", "BF16", "F32", "F64")
SIZES = (TILE, 300)
"""A whole tile, and a short one behind it in the same group."""
EDGES = np.array([0, 1, 31, 32, 1023, 1024, 4099, TILE - 2, TILE - 1, TILE, TILE + 299])
FEW = EDGES[[0, 6, 8, 10]]
"""To code: the interpreter takes long for each."""


def model_of(device: str, name: str) -> Policy:
    """Return a model whose first tile is read by the branch for whole tiles that are aligned."""
    model = policy(device, name, SIZES, group=sum(SIZES), tile=TILE, flat=0)
    if name == "BF16":
        model.cells[:] = weights(len(model.cells))
    assert model.tiles.count.tolist() == list(SIZES)
    assert model.tiling().address[0].item() % 16 == 0
    return model


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_compared_summed_moved_and_merged(device: str, name: str) -> None:
    model = model_of(device, name)
    live = changed_at(model.cells, EDGES)
    base, changes = model.tiling(), diff(model.tiling(live), model.tiling())
    assert all_same(by_group(changes)[0], REFERENCE.diff(live, model.cells))
    assert as_lanes(digest(base)) == [list(REFERENCE.digest(model.cells, 0))]
    sums = [REFERENCE.digest_sparse(EDGES.astype(np.uint32), cells[EDGES], 0) for cells in (model.cells, live)]
    assert as_lanes(digest_sparse(changes)) == [[lane for lanes in sums for lane in lanes]]
    offsets = locate(model.tiles, changes.index, changes.group_offsets)
    assert torch.equal(offsets, changes.tile_offsets)
    assert same(to_host(gather(base, offsets, changes.index)), model.cells[EDGES])
    steps = distance(changes)
    assert same(to_host(steps), REFERENCE.distance(model.cells[EDGES], live[EDGES], model.cell_type))
    assert same(to_host(move(model.tiles, offsets, changes.old, steps)), live[EDGES])
    tensors = model.tensors()
    tiling = model.tiles.over(tensors)
    scatter(tiling, changes)
    assert same(flat_cells(tensors), live)
    assert len(merge(changes, diff(base, tiling))) == 0
    undo(tiling, changes)
    assert same(flat_cells(tensors), model.cells)
    targets = [torch.zeros_like(tensor) for tensor in tensors]
    copy(tiling, model.tiles.over(targets))
    assert same(flat_cells(targets), model.cells)


def test_float32_tensors_are_rounded(device: str) -> None:
    model = model_of(device, "BF16")
    wide = np.frombuffer(np.random.default_rng(3).bytes(4 * TILE), np.uint32).copy()
    rounded = np.empty(TILE, np.uint16)
    REFERENCE.cast_f32(wide, rounded)
    live = np.concatenate([rounded, model.cells[TILE:]])
    model.cells[:TILE:3] = rounded[::3]
    tiling = model.tiles.over([to_device(wide, device).view(torch.float32), model.tensors(live)[1]])
    assert all_same(by_group(diff(tiling, model.tiling(), 1.0))[0], REFERENCE.diff(live, model.cells))
    targets = [torch.zeros_like(tensor) for tensor in model.tensors()]
    copy(tiling, model.tiles.over(targets))
    assert same(flat_cells(targets), live)


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_ranked_within_their_class_and_found_again(device: str, name: str) -> None:
    model = model_of(device, name)
    places = np.unique(np.concatenate([EDGES, np.random.default_rng(4).choice(sum(SIZES), 300, replace=False)]))
    step = Step(model, changed_at(model.cells, places))
    first, classes = (108, 20) if name == "BF16" else (3, CLASSES)
    classing = Classing.of(model.tiles, np.array([first]), np.array([classes]))
    changes, base = step.changes(), step.tiling()
    counts = class_counts(base, classing)
    found = to_host(class_ranks(base, changes, classing, counts)).view(np.int32)
    index, old = places.astype(np.uint32), model.cells[places]
    rank, kind, population = REFERENCE.class_ranks([model.cells], index, old, model.cell_type, first, classes)
    assert np.array_equal(counts.population.cpu().numpy()[0, :classes], population)
    assert np.array_equal(found, kind.astype(np.int32) << 24 | rank.astype(np.int32))
    assert len(set(kind.tolist())) > 8 or name == "F8_E4M3"
    by_kind = np.argsort(kind, kind="stable")
    steps = step.distances()
    ends = np.cumsum(np.bincount(kind, minlength=CLASSES))
    begins = ends - np.bincount(kind, minlength=CLASSES)
    index, inward = class_select(
        *(base, classing, counts),
        *(torch.from_numpy(bounds[None, :]).to(device) for bounds in (begins, ends)),
        torch.tensor([0, len(places)], device=device),
        to_device(rank[by_kind].astype(np.uint32), device),
        to_device(outward(steps, model.cells[places], model.cell_type)[by_kind], device),
    )
    assert np.array_equal(to_host(index), places)
    assert same(to_host(inward), steps)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("name", NAMES)
def test_changes_are_coded_and_read_back(device: str, name: str, coder: CoderName) -> None:
    model = model_of(device, name)
    step = Step(model, moved(model.cells, FEW, model))
    ((base, *change),) = step.groups()
    expected = encode_group(REFERENCE, coder, model.cell_type, len(base), *change, [base])
    assert expected == step.coded(coder, CHUNK)[0]
    assert encode_changes(step.changes(), coder, step.tiling()).data.cpu().numpy().tobytes() == expected
    found = decode_changes(model.tiles, coder, step.counts(), [expected], step.tiling())
    assert np.array_equal(to_host(found.index), FEW)
    assert same(to_host(found.distance), step.distances())
