"""The live objects of a run, by columns of numbers: pages of them, their sums, and the versions without a patch. Pure.

No object is looked at one by one but those of a page: a run has hundreds of thousands.
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
    start, end, nbytes, live = _live(state)
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


def versions_of_kind(state: RunState, kind: Literal["keyframe", "patch"], first: int) -> Iterator[int]:
    """Yield the numbers of the versions from ``first`` on to which a patch leads from the one before, or of the others.

    To versions that were retired or forgotten nothing leads.
    """
    start, end, _, live = _live(state)
    patched = np.zeros(len(state.versions), np.bool_)
    patched[end[live & (start == end - 1) & (start >= 0)]] = True
    return map(int, first + np.flatnonzero(patched[first:] == (kind == "patch")))


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


def _live(state: RunState) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Return where each row begins (-1: from nothing) and ends, its bytes, and which are usable, and no way back."""
    edges = state.edges
    start, end = edges.start, edges.end
    return start, end, edges.nbytes, start < end
