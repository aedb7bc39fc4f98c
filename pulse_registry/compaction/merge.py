"""Merging: the patches of a route, joined group by group into one, coded, decoded again, and written to a file.

The local copy stands at one end of the route. At its target, patches are followed backwards: what they change of these
cells is what the merged patch changes of the base, with old and new exchanged, and the sums of every patch on the way
are checked at the cells themselves. A ``class`` patch can't be followed backwards: then it stands at the base.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, nullcontext
from typing import TypeVar

import numpy as np

from pulse_kernels import Backend, Cells, CoderName, decode_group
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.format.delta_step import WrongBase, join_steps, patch_step
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import Coded, code_change
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.process.parallel import end
from pulse_registry.pull.group_stream import arriving
from pulse_registry.pull.route import Leg
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights

_IN_HAND = 4
"""Groups that are being merged, or wait to be written, at most."""
Result = TypeVar("Result")


def merge(
    backend: Backend,
    pool: Executor,
    fetchers: Executor,
    weights: Weights,
    legs: Sequence[Leg],
    patches: Sequence[Patch],
    *,
    backwards: bool,
) -> Generator[Coded]:
    """Yield each group that the legs together change, in group order, coded and seen to decode to the same.

    A group is coded by ``gap`` if all patches have it so, else by ``class``. Memory: a few groups, and the ranges of
    the patches that are on their way.

    Args:
        backend: computes.
        pool: its threads merge, a group each.
        fetchers: its threads wait for the store.
        weights: the cells at the legs' end, if ``backwards``, else at their start; only read.
        legs: patches and inverses, the first one from the merged patch's base.
        patches: of the legs, in the same order, with their heads at hand.
        backwards: whether ``weights`` stand at the end; no patch may need its base to be undone.

    Raises:
        BaseMismatch: the weights are not the version that they were taken for.
        CorruptObject, NotFound, StoreUnavailable: as the patches.
    """
    geometry = weights.geometry
    chain = list(zip(legs, patches, strict=True))[:: -1 if backwards else 1]

    def merged(number: int) -> Coded | None:
        group = geometry.groups[number]
        links = [
            patch_step(backend, group, patch, inverse=(leg.kind == "inverse") != backwards)
            for leg, patch in chain
            if number in patch.entries
        ]
        try:
            change = join_steps(backend, group, weights, links)
        except WrongBase:
            version = legs[-1].target if backwards else legs[0].base
            raise BaseMismatch(
                f"the compactor's copy of version {version} is not that version: cells of group {number} differ from "
                "what the patches say"
            ) from None
        if backwards:
            change = SparseUpdate(group, change.index, change.new, change.old)
        if not len(change.index):
            return None
        by_class = any(link.needs_base for link in links)
        return _coded(backend, change, weights if by_class else None)

    numbers = sorted({number for patch in patches for number in patch.entries})
    arrived = arriving(patches, numbers, fetchers, Timeline())
    with closing(in_order(pool, merged, arrived)) as groups:
        for group in groups:
            if group is not None:
                yield group


def in_order(pool: Executor, work: Callable[[int], Result], numbers: Generator[int]) -> Generator[Result]:
    """Do the work of each number on a pool's threads as the numbers come; yield the results in order, few in hand."""
    flying: deque[Future[Result]] = deque()
    try:
        with closing(numbers):
            for number in numbers:
                flying.append(pool.submit(work, number))
                if len(flying) > _IN_HAND:
                    yield flying.popleft().result()
            while flying:
                yield flying.popleft().result()
    finally:
        end(flying)


def _coded(backend: Backend, change: SparseUpdate, base: Weights | None) -> Coded:
    """Code a group, by ``class`` if its base is given, and decode it again: what is stored must be what was merged."""

    def spans() -> list[Cells]:
        return [] if base is None else base.spans(change.group)

    coder: CoderName = "gap" if base is None else "class"
    coded = code_change(backend, change, coder, lambda: nullcontext(spans()))
    group, meant = change.group, change.delta(backend)
    changed = len(change.index)
    index, distance = decode_group(backend, coder, group.cell_type, group.cells, changed, coded.data, spans())
    if not (np.array_equal(index, meant.index) and np.array_equal(distance, meant.distance)):
        raise CorruptObject(f"group {change.group.number} was coded wrongly: check this machine's memory and processor")
    return coded
