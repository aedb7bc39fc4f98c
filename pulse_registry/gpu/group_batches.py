"""Batches of patch groups as they arrive, for a device that decodes many of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

from pulse_registry.gpu.tile_table import TileTable
from pulse_registry.pull.destination import Source
from pulse_registry.pull.group_stream import arriving
from pulse_registry.timeline import Timeline

Arrived: TypeAlias = Mapping[int, Mapping[int, memoryview]]
"""By number of the source and of the group: the coded bytes, checked."""


class Arrival:
    """Waits for the groups of each tile table, in order; the next ones are fetched meanwhile. To be closed."""

    def __init__(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> None:
        self._patches = {number: source.patch for number, source in enumerate(sources) if source.patch is not None}
        touched = sorted({group for patch in self._patches.values() for group in patch.entries})
        self._coming = arriving(list(self._patches.values()), touched, fetchers, timeline)
        self._here: dict[int, dict[int, memoryview]] = {number: {} for number in self._patches}
        self._left = touched[::-1]

    def of(self, table: TileTable) -> Arrived:
        """Return a table's groups, which are let go of.

        Raises:
            CorruptObject, NotFound, StoreUnavailable: as the patches.
        """
        while self._left and self._left[-1] <= table.groups[-1].number:
            self._left.pop()
            group = next(self._coming)
            for number, patch in self._patches.items():
                if group in patch.entries:
                    self._here[number][group] = patch.coded(group)
        numbers = {group.number for group in table.groups}
        return {
            source: {number: groups.pop(number) for number in sorted(numbers & groups.keys())}
            for source, groups in self._here.items()
        }

    def close(self) -> None:
        """Stop the reading."""
        self._coming.close()
