"""After the first step nothing is compiled: what differs from step to step is not compiled in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_kernels import CELL_TYPES
from pulse_kernels.gpu import apply
from pulse_kernels.gpu.coding.decode import decode_changes
from pulse_kernels.gpu.coding.encode import encode_changes
from pulse_kernels.gpu.digest import digest, digest_sparse
from pulse_registry.gpu.trial import follow_step
from tests.unit.kernels.gpu.coding import CODERS, SHORT, Step, moved, weights
from tests.unit.kernels.gpu.inputs import policy
from tests.unit.kernels.gpu.variants import variants_of

pytestmark = pytest.mark.slow

STEPS = 20
SIZES = (1, 255, 44, 130)


def steps(device: str) -> list[Step]:
    """Return steps of one model that change other numbers of cells, of other numbers of groups."""
    model, random = policy(device, "BF16", SIZES, group=30, tile=8192), np.random.default_rng(0)
    model.cells[:] = weights(len(model.cells))
    found = []
    for number in range(STEPS):
        groups = np.flatnonzero(random.random(15) < random.random())
        some = np.flatnonzero(np.isin(np.arange(len(model.cells)) // 30, groups))
        where = random.choice(some, min(len(some), 1 + 2 * number), replace=False) if len(some) else some
        found.append(Step(model, moved(model.cells, np.sort(where), model)))
    return found


def test_steps_of_differing_sizes_compile_nothing_that_was_not_compiled_before(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with variants_of(device, monkeypatch) as variants:
        follow_step(torch.device(device), CELL_TYPES["BF16"])
        compiled = variants.copy()
        assert len(variants.kernels) > 25
        if device == "cpu":
            variants.dry = True
            monkeypatch.setattr(torch, "empty", torch.zeros)  # what nothing writes
        for step in steps(device):
            changes, base, tiles = step.changes(), step.tiling(), step.model.tiles
            digest(base)
            digest_sparse(changes)
            for coder in CODERS:
                for batch in (2**27, 7):
                    encode_changes(changes, coder, base, SHORT, batch)
                    moves = decode_changes(tiles, coder, step.counts(), step.coded(coder), base, SHORT, batch)
                offsets = apply.locate(tiles, moves.index, moves.group_offsets)
                apply.move(tiles, offsets, apply.gather(base, offsets, moves.index), moves.distance)
            apply.scatter(base, changes)
            apply.undo(base, changes)
    assert variants - compiled == set()
