"""Merged contributions: the totals of each outer round, so that who joins fetches one object a round.

plan -> move the local copy -> fetch and add up -> code -> read back -> upload -> attach. Whoever adds up, it is exact.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pulse_kernels import Cells
from pulse_kernels.select import outer_loops
from pulse_registry.compaction.local_copy import LocalCopy
from pulse_registry.context import Context
from pulse_registry.errors import Gone
from pulse_registry.log import RunState
from pulse_registry.outer.checkpoint_turn import round_bytes
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.mean import GroupLevels, GroupTotals, added_up
from pulse_registry.outer.round_parts import contributed
from pulse_registry.outer.state import OuterState
from pulse_registry.peers.lone import LonePeers
from pulse_registry.process.parallel import Map
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group
from pulse_schemas.outer import MergedRecord

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundTask:
    """The task of the totals of an outer round."""

    round: int

    def __str__(self) -> str:
        return f"the totals of outer round {self.round}"


class _Held:
    """The weights that a round began with, all of them at one rank."""

    def __init__(self, weights: Weights, each: Map) -> None:
        self.peers, self.homes = LonePeers(), [range(len(weights.geometry.groups))]
        self._weights, self.each = weights, each

    def version_cells(self, group: Group) -> Cells:
        return self._weights.copy_of(group)


def rounds_due(state: OuterState) -> Iterator[RoundTask]:
    """Yield the rounds whose totals are missing: those after the newest checkpoint, of several contributions; pure."""
    if state.start is None or state.start.values != "levels":
        return
    newest = state.checkpoints[-1].round if state.checkpoints else 0
    for closed in state.closed:
        sent = sum(one.object is not None for one in closed.contributions.values())
        if closed.number > newest and sent > 1 and closed.number not in state.merged:
            yield RoundTask(closed.number)


class RoundMerger:
    """Makes the totals of one run's rounds. For one thread."""

    def __init__(self, context: Context, log: OuterLog, copy: LocalCopy) -> None:
        """Prepare; no I/O yet.

        Args:
            context: of the run.
            log: of its outer rounds.
            copy: of the weights, which goes from version to version.
        """
        self._context, self._log, self._copy = context, log, copy
        self._left: set[int] = set()

    def pending(self) -> list[RoundTask]:
        """Return the rounds whose totals are missing, as the log says now, and would be worth it.

        Raises:
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: the log can't be read.
        """
        return [task for task in rounds_due(self._log.refresh()) if task.round not in self._left]

    def make(self, run: RunState, task: RoundTask) -> int | None:
        """Make and attach the totals of a round, and return their bytes; None if they are not needed, or larger.

        Raises:
            NotFound, CorruptObject, BaseMismatch: a contribution, or the version that the round began with, can't be
                read.
            StoreUnavailable: the store, or the disk, did not do it.
        """
        state = self._log.state
        closed, start = state.ended(task.round), state.start
        if closed is None or start is None:
            return None
        version = start.version + task.round - 1
        try:
            self._copy.move_to(run, version)
        except Gone:
            self._left.add(task.round)
            return None
        held, geometry = _Held(self._copy.weights, self._context.map_), self._copy.weights.geometry
        contributions = Contributions(self._context.store, geometry, self._context.backend)
        parts, exponent = contributed(contributions, held, closed, start)
        totals, loops = dict[int, GroupTotals](), outer_loops(self._context.backend.name)
        for number, found in sorted(parts.items()):
            levels = [part for part in found if isinstance(part, GroupLevels)]
            index, total = added_up(loops, geometry.groups[number].cells, levels, exponent)
            if len(index):
                totals[number] = GroupTotals(index, total)
        if not totals or task not in rounds_due(self._log.refresh()):
            self._left.add(task.round)
            return None
        digest = run.version(version).digest
        stored = contributions.put_merged(held, digest, task.round, exponent, totals, round_bytes(closed))
        if stored is None:
            _logger.info("run %s: %s take no fewer bytes than the contributions", run.run, task)
            self._left.add(task.round)
            return None
        entries = sum(len(part.index) for part in totals.values())

        def wanted(state: OuterState, common: dict[str, Any]) -> MergedRecord | None:
            if task not in rounds_due(state):
                return None
            return MergedRecord(**common, round=task.round, exponent=exponent, entries=entries, object=stored)

        return stored.size if self._log.append(wanted) is not None else None
