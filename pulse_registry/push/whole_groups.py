"""Whole groups: how ranks follow patches that only those can read who hold all cells of a group.

Patches of coder ``class`` are decoded against all cells of a group, which no rank of a sharded model need hold. So the
groups are fetched whole by the ranks at which they are at home, from a keyframe on, each once; these hand holders the
cells that they speak for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from pulse_registry.context import Context
from pulse_registry.log import RunState
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.pull.destination import HostDestination
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.sliced_cells import SlicedCells
from pulse_registry.pull.sliced_destination import SlicedDestination, host_weights
from pulse_registry.pull.stage import stage_version
from pulse_registry.push.exchange import cells_from
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.box import Box
from pulse_registry.weights.cell_space import Geometry, Numbers
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import Layout, Tensor, VersionEntry


def follow_whole_groups(
    context: Context, peers: Peers, homes: Numbers, state: RunState, entry: VersionEntry, cells: SlicedDestination
) -> None:
    """Bring the cells that all ranks speak for to a version, through the homes of their groups; a collective.

    Args:
        context: store and threads.
        peers: the ranks.
        homes: the rank of each group, by number; the same on all ranks.
        state: of the run.
        entry: the version.
        cells: what this rank speaks for.

    Raises:
        PulseError: on all ranks, what went wrong on one; the cells may then be those of no version.
    """
    attempt, slices = Attempt(peers), cells.slices
    nothing: list[SlicedCells] = []
    numbers = np.flatnonzero(homes == peers.rank).tolist()
    fetched = attempt.run(lambda: [fetch_groups(context, slices.geometry, numbers, state, entry)], nothing)
    attempt.agree("whole groups")
    [at_home] = fetched
    live = host_weights(cells)
    weights = Weights.empty(slices.local) if live is None else live
    for run in cells_from(peers, slices, homes, at_home.copy_of, attempt):
        attempt.run(partial(weights.store, *run), None)
    if live is None:
        attempt.run(partial(_fill, context, cells, weights), None)
    attempt.agree("cells of groups")


def fetch_groups(
    context: Context, geometry: Geometry, numbers: Sequence[int], state: RunState, entry: VersionEntry
) -> SlicedCells:
    """Fetch some groups of a version, whole, checked by their sums where they are read from a chain of patches.

    Args:
        context: store and threads.
        geometry: of the version's layout.
        numbers: of the groups.
        state: of the run.
        entry: the version.

    Raises:
        NotFound, CorruptObject, StoreUnavailable: as ``Registry.pull``.
    """
    slices = slices_of_groups(geometry, numbers)
    weights = Weights.empty(slices.local)
    if slices.slices:
        inner = HostDestination(weights, context.backend, context.pool)
        destination = SlicedDestination(inner, slices, context.backend, context.pool)
        staged = stage_version(context, PullRequest(state, entry, destination, Timeline()))
        staged.store()
        staged.close()
    return SlicedCells(slices, weights.cells)


def slices_of_groups(geometry: Geometry, numbers: Sequence[int]) -> SliceMap:
    """Return groups as slices: a run of each tensor that they hold cells of."""
    spans = [span for number in numbers for span in geometry.groups[number].spans]
    boxes = [
        (span.tensor, Box((geometry.sizes[span.tensor],), (span.start,), (span.stop - span.start,))) for span in spans
    ]
    if not boxes:  # a layout has at least one tensor, and a rank of many may be home to no group
        boxes = [(0, Box((geometry.sizes[0],), (0,), (0,)))]
    tensors = geometry.layout.tensors
    found = [
        Tensor(name=f"{number:09d}", dtype=tensors[tensor].dtype, shape=(box.cells,))
        for number, (tensor, box) in enumerate(boxes)
    ]
    return SliceMap(geometry, Layout(tensors=tuple(found)), boxes, {})


def _fill(context: Context, cells: SlicedDestination, weights: Weights) -> None:
    """Copy cells to where they are worked on."""
    with cells.filling() as fill:
        list(context.map_(lambda group: fill(group, weights.copy_of(group)), weights.geometry.groups))
