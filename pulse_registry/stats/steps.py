"""Steps of a run: which versions follow each other, and by which objects their difference is known. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pulse_registry.errors import NotFound
from pulse_registry.log import RunState
from pulse_registry.log.leg import Leg
from pulse_registry.pull.route import plan
from pulse_registry.stats.counts import WINDOWS

Why = Literal["layout", "class", "keyframe", "gone"]


@dataclass(frozen=True, slots=True)
class Step:
    """Two versions, none between them but retired ones, and the objects that lead from one to the other."""

    base: int
    target: int
    layout: str
    legs: tuple[Leg, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the objects."""
        return sum(leg.nbytes for leg in self.legs)


@dataclass(frozen=True, slots=True)
class Unseen:
    """A step of which nothing is counted.

    Attributes:
        why: ``layout``: the tensors are others; ``class``, ``keyframe``: only a patch of that coder, or a keyframe,
            leads there, and the weights are not followed; ``gone``: nothing leads there.
    """

    base: int
    target: int
    why: Why


def steps_of(state: RunState, first: int, last: int, *, weights: bool) -> Iterator[Step | Unseen]:
    """Yield the steps between the versions ``first`` to ``last`` that are not retired, in order.

    Args:
        state: the run.
        first, last: versions; both may be retired.
        weights: whether the weights are followed, so that any object will do.
    """
    live = [e for e in state.versions_since(first) if e.version <= last and not state.is_retired(e.version)]
    for before, after in pairwise(live):
        if before.layout != after.layout:
            yield Unseen(before.version, after.version, "layout")
            continue
        legs = _legs(state, before.version, after.version, weights=weights)
        if isinstance(legs, str):
            yield Unseen(before.version, after.version, legs)
        else:
            yield Step(before.version, after.version, after.layout, legs)


def stretches(steps: Sequence[Step | Unseen]) -> list[list[Step]]:
    """Return the runs of steps of which each begins where the one before it ends."""
    found: list[list[Step]] = [[]]
    for step in steps:
        if isinstance(step, Step):
            found[-1].append(step)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def windows_of(stretch: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """Yield the windows of a stretch, by their ends and then by their lengths: those without a retired version."""
    single = {step.target for step in stretch if step.target == step.base + 1}
    for step in stretch:
        for length in WINDOWS:
            if step.target % length == 0 and all(step.target - back in single for back in range(length)):
                yield step.target - length, step.target


def _legs(state: RunState, base: int, target: int, *, weights: bool) -> tuple[Leg, ...] | Why:
    direct = [patch for patch in state.patches_into(target) if patch.base == base]
    fit = [patch for patch in direct if weights or patch.coder == "gap"]
    if fit:
        return (Leg("patch", base, target, fit[0]),)
    try:
        return plan(state, target, have=base, keyframes=weights, only_gap=not weights).legs
    except NotFound:
        if direct:
            return "class"
        return "gone" if weights or state.keyframe(target) is None else "keyframe"
