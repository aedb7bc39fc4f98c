"""Steps for coding tests: the changes of a small model, and the bytes that the reference makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels import Cells, CoderName, Index
from pulse_kernels.format.gap_tables import parameters_of
from pulse_kernels.format.group import choose_classes
from pulse_kernels.format.group_bytes import join
from pulse_kernels.format.symbols import outward
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.tiling import Tiling
from pulse_kernels.protocol import Coded
from pulse_kernels.reference.backend import order, unorder
from pulse_kernels.reference.coding import encode_changes
from tests.unit.kernels.gpu.inputs import REFERENCE, Policy, to_device

CODERS: tuple[CoderName, ...] = ("gap", "class")
SHORT = 5
"""Changes of a chunk in most tests: the interpreter takes milliseconds a change, for any number of chunks."""


def weights(size: int, seed: int = 0) -> Cells:
    """Return BF16 cells as weights are: normal, so that a few exponents hold most."""
    values = np.random.default_rng(seed).normal(0, 0.02, size).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def moved(cells: Cells, where: npt.NDArray[np.int64], model: Policy, seed: int = 1) -> Cells:
    """Return a copy that differs at ``where``: by a few places in the order mostly, by any number now and then."""
    rng = np.random.default_rng(seed)
    steps = rng.geometric(0.4, len(where)) * rng.choice([-1, 1], len(where))
    steps = np.where(rng.random(len(where)) < 0.1, rng.integers(-(2**62), 2**62, len(where)), steps)
    new, kind = cells.copy(), model.cell_type
    target = order(cells[where], kind).astype(np.uint64) + steps.astype(np.uint64)
    new[where] = unorder(target.astype(kind.dtype), kind)
    new[where] ^= (new[where] == cells[where]).astype(kind.dtype)
    return new


@dataclass(frozen=True)
class Step:
    """A model and the cells that a step makes of it."""

    model: Policy
    new: Cells

    def tiling(self, shift: int = 0) -> Tiling:
        """Return the base on the device."""
        return self.model.tiling(shift=shift)

    def groups(self) -> list[tuple[Cells, Index, Cells, Cells]]:
        """Return (base, index, old, new) of each group."""
        pairs = zip(self.model.groups(self.model.cells), self.model.groups(self.new), strict=True)
        return [(base, *REFERENCE.diff(live, base)) for base, live in pairs]

    def counts(self) -> list[int]:
        """Return the changed cells of each group."""
        return [len(index) for _, index, _, _ in self.groups()]

    def changes(self) -> Changes:
        """Return the changes on the device, as a diff does."""
        tiles, groups = self.model.tiles, self.groups()
        device = tiles.device
        offsets = np.concatenate(([0], np.cumsum(self.counts())))
        first, owner = tiles.first.cpu().numpy(), tiles.group.cpu().numpy()
        starts = [int(offsets[g] + np.searchsorted(groups[g][1], at)) for at, g in zip(first, owner, strict=True)]
        index, old, new = (np.concatenate([group[k] for group in groups]) for k in (1, 2, 3))
        return Changes(
            tiles,
            to_device(index, device),
            to_device(old, device),
            to_device(new, device),
            torch.tensor([*starts, int(offsets[-1])], dtype=torch.int64, device=device),
            torch.from_numpy(offsets).to(device),
            offsets,
        )

    def coded(self, coder: CoderName, chunk: int = SHORT) -> list[bytes]:
        """Return the bytes of each group as the reference codes them, in chunks of another size than the format's."""
        return [self._coded(coder, chunk, *group) if len(group[1]) else b"" for group in self.groups()]

    def _coded(self, coder: CoderName, chunk: int, base: Cells, index: Index, old: Cells, new: Cells) -> bytes:
        kind = self.model.cell_type
        steps = REFERENCE.distance(old, new, kind)
        if coder == "gap":
            counts = np.array([len(index)], np.uint32)
            return join(Coded(0, counts, None, *encode_changes(index, steps, counts, None, chunk)))
        first, counts = choose_classes(REFERENCE.count_classes(old, kind))
        ranks, kinds, population = REFERENCE.class_ranks([base], index, old, kind, first, len(counts))
        parameters = parameters_of(counts, population)
        by_kind = np.argsort(kinds, kind="stable")
        parts = encode_changes(ranks[by_kind], outward(steps, old, kind)[by_kind], counts, parameters, chunk)
        return join(Coded(first, counts, parameters, *parts))

    def distances(self) -> Cells:
        """Return the distances of all changes, group by group."""
        return np.concatenate([REFERENCE.distance(old, new, self.model.cell_type) for _, _, old, new in self.groups()])
