"""The live objects of a run, and its versions, chosen by columns of numbers: pages of them, and sums. Pure.

Nothing is looked at one by one but what a page shows: a run has hundreds of thousands of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from pulse_registry.log import RunState
from pulse_schemas.api import ChainBody, ChainTotals, KeyframeMark, PatchMark

Numbers = npt.NDArray[np.int64]


def chain_body(state: RunState, after: int, until: int | None, limit: int) -> ChainBody:
    """Return a page of the live objects, by the version that each leads to, and then in the order of the log.

    Args:
        state: of the run.
        after: only objects that lead to a version over this one.
        until: only objects that begin at this version, or at an earlier one; None: all.
        limit: objects in a page; a page has all that lead to its last version, and so perhaps more.
    """
    start, end, nbytes, live = _rows(state)
    wanted = live & (end > after)
    if until is not None:
        wanted &= np.where(start < 0, end, start) <= until
    ends = end[wanted]
    following: int | None = None
    if len(ends) > limit:
        last = int(np.partition(ends, limit - 1)[limit - 1])
        if np.any(ends > last):
            following = last
            wanted &= end <= last
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(end[rows], kind="stable")]
    found = [*zip(start[rows].tolist(), end[rows].tolist(), nbytes[rows].tolist(), strict=True)]
    return ChainBody.model_construct(
        run=state.run,
        keyframes=tuple(KeyframeMark.model_construct(version=to, nbytes=size) for base, to, size in found if base < 0),
        patches=tuple(
            PatchMark.model_construct(base=base, target=to, nbytes=size) for base, to, size in found if base >= 0
        ),
        next=following,
        totals=_totals(start[live], end[live], nbytes[live]),
    )


def versions_where(
    state: RunState, first: int, kind: Literal["keyframe", "patch"] | None, low: int | None, high: int | None
) -> Iterator[int]:
    """Yield the numbers of the versions from ``first`` on that are of a kind, and of steps from ``low`` to ``high``.

    Those that were retired are among them, those forgotten are not.
    """
    versions, patches = state.tables.versions, state.tables.patches
    numbers, steps = versions.column("version"), versions.column("step")
    wanted = versions.alive & (numbers >= first)
    if low is not None:
        wanted &= steps >= low
    if high is not None:
        wanted &= steps <= high
    if kind is not None:
        base, target = patches.column("base"), patches.column("target")
        patched = np.zeros(len(state.versions), np.bool_)
        patched[target[patches.alive & (base == target - 1)]] = True
        wanted &= patched[numbers] == (kind == "patch")
    return map(int, numbers[wanted])


def _totals(start: Numbers, end: Numbers, nbytes: Numbers) -> ChainTotals:
    keyframes = int(np.count_nonzero(start < 0))
    spans = (end - start)[start >= 0]
    return ChainTotals.model_construct(
        keyframes=keyframes,
        patches=len(start) - keyframes,
        merged=int(np.count_nonzero(spans > 1)),
        longest=int(spans.max(initial=0)),
        nbytes=sum(nbytes.tolist()),  # Python's: a sum of 64 bits may overflow
    )


def _rows(state: RunState) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Return where the object of each row begins (-1: from nothing) and ends, its bytes, and which objects are live."""
    patches, keyframes = state.tables.patches, state.tables.keyframes
    return (
        np.concatenate((patches.column("base"), np.full(len(keyframes), -1))),
        np.concatenate((patches.column("target"), keyframes.column("version"))),
        np.concatenate((patches.column("nbytes"), keyframes.column("nbytes"))),
        np.concatenate((patches.alive, keyframes.alive)),
    )
