"""Sizes of layouts: what all cells of a run's newest version take, worked out once a layout."""

from __future__ import annotations

import asyncio
from typing import Final

from pulse_registry.errors import PulseError
from pulse_registry.log import RunState
from pulse_registry.log.layouts import fetch_layout_bytes
from pulse_registry.store import RunStore, Store
from pulse_schemas import SchemaError
from pulse_server.runs.layouts import Layouts
from pulse_server.scheduling.threads import Calls, in_turn
from pulse_server.scheduling.turns import Turns, begin_for_all

_MAX_LAYOUTS: Final = 1_000


class LayoutSizes:
    """Sizes of layouts, by their ids. Not thread-safe: one event loop asks."""

    def __init__(self, store: Store, call: Calls) -> None:
        """Know none yet; the store holds all runs, and ``call`` asks it."""
        self._store, self._call = store, call
        self._layouts, self._turns = Layouts(), Turns(1, 1)
        self._known: dict[str, asyncio.Task[int | None]] = {}

    async def newest(self, state: RunState) -> int | None:
        """Return what all cells of a run's newest version take, in bytes; None where its layout can't be read."""
        latest = state.latest
        if latest is None:
            return None
        task = self._known.get(latest.layout)
        if task is None:
            if len(self._known) >= _MAX_LAYOUTS:
                self._known.clear()
            sizing = self._fetched(RunStore(self._store, state.run), latest.layout)
            task = self._known[latest.layout] = begin_for_all(sizing, f"size {latest.layout}")
        try:
            return await asyncio.shield(task)
        except PulseError:
            self._known.pop(latest.layout, None)
            return None

    async def nbytes_of(self, layout: bytes) -> int:
        """Return what all cells of a layout take, in bytes.

        Raises:
            SchemaError: it is no layout.
            StoreUnavailable: the service is being stopped.
        """
        return await in_turn(self._turns, self._layouts.pool, self._layouts.nbytes_of, layout)

    def close(self) -> None:
        """End: a layout that is being read is given up."""
        self._layouts.close()

    async def _fetched(self, store: Store, layout_id: str) -> int | None:
        data = await self._call(fetch_layout_bytes, store, layout_id)
        try:
            return await self.nbytes_of(data)
        except SchemaError:  # as long as it is there
            return None
