"""Study of a run: stretch by stretch and band by band, what was counted of groups is put together to steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log import RunState
from pulse_registry.results import VersionName
from pulse_registry.stats.band import Band, bands
from pulse_registry.stats.counts import Counts, ExponentCounts, StepStats, WindowStats
from pulse_registry.stats.group_walk import GroupStep
from pulse_registry.stats.kept import Kept, name_of
from pulse_registry.stats.run_stats import RunStats
from pulse_registry.stats.steps import Step, Unseen, steps_of, stretches, windows_of
from pulse_registry.versions import Versions
from pulse_registry.weights.cell_space import Geometry, Group

MOST_VERSIONS = 1000
"""That are looked at where nobody says how many."""


def stats_of(
    context: Context,
    versions: Versions,
    first: VersionName | None,
    last: VersionName,
    *,
    weights: bool,
    keep: Path | None = None,
) -> RunStats:
    """Count what the steps between two versions change; see ``Registry.stats``."""
    kept = Kept(keep)
    while True:
        state = versions.state()
        end = versions.entry(state, last).version
        begin = max(0, end - MOST_VERSIONS) if first is None else versions.entry(state, first).version
        if begin > end:
            raise InvalidArgument(f"version {begin} is newer than version {end}: give the older one first")
        try:
            found = study(context, state, begin, end, kept, weights=weights)
        except NotFound:
            # What a collector has retired meanwhile is no damage: what is left is counted.
            now = versions.state()
            if all(now.is_retired(v) == state.is_retired(v) for v in range(begin, end + 1)):
                raise
        else:
            kept.write()
            return found


def study(context: Context, state: RunState, first: int, last: int, kept: Kept, *, weights: bool) -> RunStats:
    """Count what the steps between two versions change; nothing is written to the store.

    Memory: a band, the patches of a batch, and the counts, which are a few numbers for each tensor and step.

    Args:
        context: store, kernels and threads.
        state: the run.
        first, last: versions.
        kept: what was counted before; it is told of all.
        weights: follow the weights, too: signs, exponents, and steps that only these show.

    Raises:
        NotFound, CorruptObject: an object is gone or damaged; the message names it.
        UnsupportedFormat, StoreUnavailable: as the store.
    """
    steps = list(steps_of(state, first, last, weights=weights))
    found = [_Stretch(context, state, stretch, kept, weights=weights).walked() for stretch in stretches(steps)]
    counted = list(chain.from_iterable(tables for tables, _ in found))
    return RunStats(
        run=state.run,
        first=first,
        last=last,
        layouts={step.layout: context.geometry(step.layout).layout for step in counted},
        steps=counted,
        windows=list(chain.from_iterable(windows for _, windows in found)),
        unseen=[step for step in steps if isinstance(step, Unseen)],
    )


class _Stretch:
    """Steps that follow each other, and what was counted of them so far."""

    def __init__(self, context: Context, state: RunState, steps: Sequence[Step], kept: Kept, *, weights: bool) -> None:
        self._context, self._state, self._steps, self._kept, self._weights = context, state, steps, kept, weights
        layout = steps[0].layout
        self._geometry = context.geometry(layout)
        count = len(self._geometry.sizes)
        self._windows = {
            (base, target): WindowStats(base, target, layout, np.zeros(count, np.int64), np.zeros(count, np.int64))
            for base, target in windows_of(steps)
        }

    def walked(self) -> tuple[list[StepStats], list[WindowStats]]:
        """Count what is not kept, and return all."""
        count = len(self._geometry.sizes)
        known = [self._kept.step(self._name(place), step, count) for place, step in enumerate(self._steps)]
        windows = [self._kept.window(self._name_of_window(*ends), one) for ends, one in self._windows.items()]
        if all(one is not None for one in (*known, *windows)):
            found = [one for one in known if one is not None], [one for one in windows if one is not None]
        else:
            begin = self._begin(known, windows)
            found = [one for one in known[:begin] if one is not None], []
            found[0].extend(self._walk(begin))
            found[1].extend(old or new for old, new in zip(windows, self._windows.values(), strict=True))
        for place, step in enumerate(found[0]):
            self._kept.keep(self._name(place), step)
        for window in found[1]:
            self._kept.keep(self._name_of_window(window.base, window.target), window)
        return found

    def _begin(self, known: Sequence[StepStats | None], windows: Sequence[WindowStats | None]) -> int:
        """Return the first step that has to be walked: before the windows that lack, and before what comes again."""
        lacking = [step.base for step, one in zip(self._steps, known, strict=True) if one is None]
        lacking += [base for (base, _), one in zip(self._windows, windows, strict=True) if one is None]
        return bisect_left(self._steps, min(lacking), key=lambda step: step.base)

    def _walk(self, begin: int) -> list[StepStats]:
        """Walk all bands, one after the other, from a step on; the one before it tells what comes again."""
        context, geometry = self._context, self._geometry
        steps = self._steps[max(0, begin - 1) :]
        tables = [_Table(step, geometry, known=step is not self._steps[0], weights=self._weights) for step in steps]
        for numbers in bands(geometry, steps, weights=self._weights):
            band = Band(context, self._state, geometry, numbers)
            if self._weights:
                band.load(steps[0].base)
            for table, (_, groups) in zip(tables, band.walk(steps), strict=True):
                for number, counted in groups.items():
                    table.add(geometry.groups[number], counted)
                    self._add_windows(geometry.groups[number], counted)
        return [table.stats() for table in tables[min(1, begin) :]]

    def _add_windows(self, group: Group, counted: GroupStep) -> None:
        for base, target, changed, touched in counted.windows:
            window = self._windows[base, target]
            _add(window.changed, group, changed)
            _add(window.touched, group, touched)

    def _name(self, place: int) -> str:
        """Return what the row of a step is called: the step before it counts, too."""
        step, before = self._steps[place], None if place == 0 else self._steps[place - 1].base
        what = "weights" if self._weights else "patches"
        return name_of(self._state, what, step.layout, (before, step.base, step.target))

    def _name_of_window(self, base: int, target: int) -> str:
        return name_of(self._state, "window", self._steps[0].layout, range(base, target + 1))


class _Table:
    """The counts of one step, to which each group adds."""

    def __init__(self, step: Step, geometry: Geometry, *, known: bool, weights: bool) -> None:
        count = len(geometry.sizes)
        self._step = step
        self._changed = np.zeros(count, np.int64)
        self._again = np.zeros(count, np.int64) if known else None
        self._flipped = np.zeros(count, np.int64) if weights else None
        self._sizes: dict[str, Counts] = {}
        self._exponents: dict[str, ExponentCounts] | None = {} if weights else None

    def add(self, group: Group, counted: GroupStep) -> None:
        """Add what was counted of a group."""
        dtype = group.cell_type.name
        _add(self._changed, group, counted.changed)
        _add(self._again, group, counted.again)
        _add(self._flipped, group, counted.flipped)
        self._sizes[dtype] = self._sizes.get(dtype, 0) + counted.sizes
        if self._exponents is not None and counted.exponents is not None:
            one, so_far = counted.exponents, self._exponents.get(dtype)
            if so_far is not None:
                one = ExponentCounts(so_far.cells + one.cells, so_far.changed + one.changed)
            self._exponents[dtype] = one

    def stats(self) -> StepStats:
        """Return them."""
        step = self._step
        rest = self._changed, self._again, self._flipped, self._sizes, self._exponents
        return StepStats(step.base, step.target, step.layout, *rest)


def _add(total: Counts | None, group: Group, by_span: Counts | None) -> None:
    if total is not None and by_span is not None:
        total[[span.tensor for span in group.spans]] += by_span
