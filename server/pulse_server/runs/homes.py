"""Homes: which of the runs that have moved live at another root than the one that is served."""

from __future__ import annotations

from pulse_registry.errors import PulseError
from pulse_registry.log import RunState
from pulse_registry.log.home import proved_move
from pulse_registry.store import RunStore, Store
from pulse_server.scheduling.threads import Calls


class Homes:
    """Asks the root whether a run's last move led to it. Not thread-safe: one event loop asks."""

    def __init__(self, store: Store, call: Calls) -> None:
        """Know nothing yet; the store holds all runs, and ``call`` asks it."""
        self._store, self._call = store, call
        self._proved: dict[str, str] = {}  # moves that led here, by run

    async def elsewhere(self, state: RunState) -> str | None:
        """Return where a run lives that is written at another root; None where it lives here, as far as is known.

        Costs a GET of a run that has moved: each time where it lives elsewhere, once a move where it lives here.
        """
        home = state.home
        if home is None or self._proved.get(state.run) == home.move:
            return None
        try:
            proved = await self._call(proved_move, RunStore(self._store, state.run), state.run)
        except PulseError:  # what is known stays
            return None
        if proved != home.move:
            return home.to
        self._proved[state.run] = home.move
        return None
