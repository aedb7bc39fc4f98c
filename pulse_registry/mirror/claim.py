"""Claim of a run's place in a root as a copy: only where nobody may write to a run of this name."""

from __future__ import annotations

from collections.abc import Sequence

from pulse_registry.errors import Conflict
from pulse_registry.log.home import proved_move
from pulse_registry.log.mirror_mark import read_mark, write_mark
from pulse_registry.mirror.followed_log import FollowedLog
from pulse_registry.store import Store


def claim(store: Store, run: str, source: str, logs: Sequence[FollowedLog]) -> None:
    """Mark a run as a copy, where it is one, or there is nothing yet, or it has moved away.

    Args:
        store: of the copy, scoped to the run.
        run: its name.
        source: URL of the root that it is to be a copy of.
        logs: those of the run at the copy, read; the run's own first.

    Raises:
        Conflict: there is a run of this name that is no copy.
        AccessDenied, StoreUnavailable: the store did not do it.
    """
    if read_mark(store) is not None:
        return
    if any(log.seq >= 0 for log in logs) and may_live(store, run, logs[0]):
        raise Conflict(
            f"run {run!r}: {store.url} has a run of this name that is no copy: writers work there. Copy to another root"
        )
    write_mark(store, run, source)


def may_live(store: Store, run: str, log: FollowedLog) -> bool:
    """Tell whether a run may be written to at a root, as its log there says: it has not moved from it."""
    return log.home is None or proved_move(store, run) == log.home.move
