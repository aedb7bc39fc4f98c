"""Stats of a run: the counts of its steps and windows, and what they add up to by tensor, layer and kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pulse_registry.stats.counts import WINDOWS, Counts, ExponentCounts, StepStats, WindowStats
from pulse_registry.stats.steps import Unseen
from pulse_registry.stats.tensor_names import KINDS, in_order, kind_of, layer_of
from pulse_schemas import Layout

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Total:
    """What steps did to some tensors, added up over the steps.

    Attributes:
        name: of the tensor, the layer or the kind.
        cells: once for each step; ``changed`` of them differ after it.
        changed: cells that differ.
        again: of those that changed in a step whose predecessor was seen, ``changed_after``, those that it changed too.
        flipped: cells whose sign differs; None without the weights.
    """

    name: str
    cells: int
    changed: int
    again: int
    changed_after: int
    flipped: int | None

    @property
    def share(self) -> float:
        """Of the cells, those that a step changes."""
        return self.changed / self.cells if self.cells else 0.0

    @property
    def overlap(self) -> float | None:
        """Of the cells that a step changes, those that the step before changed too."""
        return self.again / self.changed_after if self.changed_after else None


@dataclass(frozen=True, slots=True)
class WindowTotal:
    """All windows of one length: of ``cells``, once for each window, ``changed`` differ between its ends.

    Attributes:
        length: in versions; 1 stands for the steps that lead from a version to the next one.
        windows: how many there are.
        cells, changed: see above.
        touched: cells that a step in the window changes; the others of these went and came back.
    """

    length: int
    windows: int
    cells: int
    changed: int
    touched: int

    @property
    def share(self) -> float:
        """Of the cells, those that differ between the ends."""
        return self.changed / self.cells if self.cells else 0.0

    @property
    def came_back(self) -> int:
        """Cells that changed, and are at the end what they were at the beginning."""
        return self.touched - self.changed


@dataclass(frozen=True)
class RunStats:
    """What a run's updates are like, from version ``first`` to version ``last``.

    Attributes:
        run: its name.
        first, last: the oldest and the newest version that were looked at.
        layouts: of the steps, by id.
        steps: in order.
        windows: in order of their ends, the shorter first.
        unseen: the steps of which nothing was counted.
    """

    run: str
    first: int
    last: int
    layouts: Mapping[str, Layout]
    steps: Sequence[StepStats]
    windows: Sequence[WindowStats]
    unseen: Sequence[Unseen]

    @cached_property
    def total(self) -> Total:
        """All tensors together."""
        [total] = self._totals(lambda name: "all", ["all"])
        return total

    @cached_property
    def by_tensor(self) -> list[Total]:
        """The tensors, in the order of their names."""
        return self._totals(lambda name: name, in_order(self._names))

    @cached_property
    def by_layer(self) -> list[Total]:
        """The layers, in their order; see ``layer_of``."""
        return self._totals(layer_of, in_order(set(map(layer_of, self._names))))

    @cached_property
    def by_kind(self) -> list[Total]:
        """Attention, MLP, experts, norms, embeddings, others: those that there are."""
        there = set(map(kind_of, self._names))
        return self._totals(kind_of, [kind for kind in KINDS if kind in there])

    @cached_property
    def by_window(self) -> list[WindowTotal]:
        """Single versions, and windows of 2, 4, 8, 16 and 32, those that there are."""
        found = []
        for length in (1, *WINDOWS):
            steps = self.steps if length == 1 else self.windows
            there = [one for one in steps if one.target - one.base == length]
            if there:
                cells = sum(int(self._sizes[one.layout].sum()) for one in there)
                changed = sum(int(one.changed.sum()) for one in there)
                touched = sum(
                    int((one.touched if isinstance(one, WindowStats) else one.changed).sum()) for one in there
                )
                found.append(WindowTotal(length, len(there), cells, changed, touched))
        return found

    @cached_property
    def sizes(self) -> dict[str, Counts]:
        """Changed cells by how far they moved, of all steps, by dtype; see ``StepStats``."""
        found: dict[str, Counts] = {}
        for step in self.steps:
            for dtype, counts in step.sizes.items():
                found[dtype] = found.get(dtype, 0) + counts
        return found

    @cached_property
    def exponents(self) -> dict[str, ExponentCounts]:
        """Cells and changed cells by exponent, once for each step, by dtype; empty without the weights."""
        found: dict[str, ExponentCounts] = {}
        for step in self.steps:
            for dtype, one in (step.exponents or {}).items():
                so_far = found.get(dtype)
                cells, changed = (
                    (one.cells, one.changed)
                    if so_far is None
                    else (
                        so_far.cells + one.cells,
                        so_far.changed + one.changed,
                    )
                )
                found[dtype] = ExponentCounts(cells, changed)
        return found

    def layer_counts(self) -> tuple[list[str], list[list[int | None]]]:
        """Return the layers, and for each step the cells of each that it changes; None: its layout has not got it."""
        layers, cells, changed = self._by_step(layer_of, in_order(set(map(layer_of, self._names))))
        pairs = zip(changed.tolist(), cells.tolist(), strict=True)
        return layers, [[c if n else None for c, n in zip(*pair, strict=True)] for pair in pairs]

    def layer_shares(self) -> tuple[list[str], Shares]:
        """Return the layers, and for each step the share of the cells of each that it changes; NaN: there are none."""
        layers, cells, changed = self._by_step(layer_of, in_order(set(map(layer_of, self._names))))
        return layers, np.divide(changed, cells, out=np.full(cells.shape, np.nan), where=cells > 0)

    def kind_shares(self) -> dict[str, list[float]]:
        """Return, by kind, the share of the cells that each step changes; NaN: its layout has none of it."""
        kinds, cells, changed = self._by_step(kind_of, [one.name for one in self.by_kind])
        shares = np.divide(changed, cells, out=np.full(cells.shape, np.nan), where=cells > 0)
        return dict(zip(kinds, shares.T.tolist(), strict=True))

    def _by_step(self, key: Callable[[str], str], keys: list[str]) -> tuple[list[str], Counts, Counts]:
        """Return the keys, and for each step the cells of each, and those that it changes."""
        cells, changed = np.zeros((2, len(self.steps), len(keys)), np.int64)
        for number, step in enumerate(self.steps):
            places = self._places(step.layout, key, keys)
            np.add.at(cells[number], places, self._sizes[step.layout])
            np.add.at(changed[number], places, step.changed)
        return keys, cells, changed

    @cached_property
    def _names(self) -> set[str]:
        return {tensor.name for layout in self.layouts.values() for tensor in layout.tensors}

    @cached_property
    def _sizes(self) -> dict[str, Counts]:
        return {
            key: np.array([np.prod(tensor.shape, dtype=np.int64) for tensor in layout.tensors], np.int64)
            for key, layout in self.layouts.items()
        }

    def _places(self, layout: str, key: Callable[[str], str], keys: Sequence[str]) -> Counts:
        """Return, for each tensor of a layout, the place of what it counts towards."""
        place = {name: number for number, name in enumerate(keys)}
        return np.array([place[key(tensor.name)] for tensor in self.layouts[layout].tensors], np.int64)

    def _totals(self, key: Callable[[str], str], keys: Sequence[str]) -> list[Total]:
        sums = np.zeros((5, len(keys)), np.int64)
        for layout in self.layouts:
            steps = [step for step in self.steps if step.layout == layout]
            after = [step for step in steps if step.again is not None]
            count = len(self.layouts[layout].tensors)
            columns = (
                len(steps) * self._sizes[layout],
                _sum((step.changed for step in steps), count),
                _sum((step.again for step in after), count),
                _sum((step.changed for step in after), count),
                _sum((step.flipped for step in steps), count),
            )
            np.add.at(sums.T, self._places(layout, key, keys), np.stack(columns, axis=1))
        known = all(step.flipped is not None for step in self.steps)
        return [
            Total(name, cells, changed, again, changed_after, flipped if known else None)
            for name, (cells, changed, again, changed_after, flipped) in zip(keys, sums.T.tolist(), strict=True)
        ]


def _sum(arrays: Iterable[Counts | None], count: int) -> Counts:
    total = np.zeros(count, np.int64)
    for array in arrays:
        if array is not None:
            total += array
    return total
