"""Waiting for what follows in a run's log: by looking again over a bucket, by asking once over a service."""

from __future__ import annotations

import time
from collections.abc import Callable

from pulse_registry.errors import NotFound
from pulse_registry.log import LogReader, RunState
from pulse_registry.store import Gateway


def await_record(
    reader: LogReader,
    gateway: Gateway | None,
    state: RunState,
    *,
    poll_seconds: float,
    timeout_s: float,
    sleep: Callable[[float], object] = time.sleep,
) -> RunState:
    """Wait for what follows a state, and return the state after it; or the same one, if there was nothing.

    Over a service it folds what the answer brought, so that a record costs one request; over a bucket it looks once,
    after a pause.

    Raises:
        AccessDenied, CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
    """
    if gateway is not None:
        try:
            if not gateway.wait_for_record(reader.run, state.seq + 1, timeout_s):
                return state
            found = reader.read(state.seq + 1)
            return state if found is None else reader.accept(found[1])
        except NotFound:
            pass  # the run is yet to be made
    sleep(min(poll_seconds, timeout_s))
    return reader.refresh()
