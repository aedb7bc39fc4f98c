"""The home of a run among several roots: the one that it is written at. The others are copies, and say so."""

from __future__ import annotations

from collections.abc import Sequence

from pulse_registry.errors import AccessDenied, Conflict, Fenced, Mirrored, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_registry.log.home import moved, proved_move
from pulse_registry.store import Store
from pulse_registry.store.wrappers.run import RunStore


def find_home(roots: Sequence[Store], run: str) -> int:
    """Return which of some roots a run is written at.

    It is the root that has the run's log, and neither the mark of a mirror nor a move that led elsewhere. A run that
    none of them has begins at the first one.

    Raises:
        Fenced: the run has moved to a root that is none of these.
        Mirrored: all are copies.
        Conflict: more than one says that it is the home.
        StoreUnavailable, AccessDenied: a root that may be it can't be asked.
        CorruptObject, UnsupportedFormat: a log can't be read.
    """
    homes, copies = list[int](), list[str]()
    gone: Fenced | None = None
    silent: StoreUnavailable | AccessDenied | None = None
    for number, root in enumerate(roots):
        store = RunStore(root, run)
        try:
            if store.exists(keys.MIRROR):
                copies.append(root.url)
                continue
            state = LogReader(store, run).refresh()
            if state.seq < 0:
                continue
            if state.home is None or proved_move(store, run) == state.home.move:
                homes.append(number)
            else:
                gone = Fenced(moved(run, state.home, root.url))
        except (StoreUnavailable, AccessDenied) as error:
            silent = error
    if len(homes) > 1:
        urls = " and ".join(roots[number].url for number in homes)
        raise Conflict(
            f"run {run!r}: {urls} both say that they are its home, and none that it is a copy: take the one that was "
            "given up off the list"
        )
    if homes:
        return homes[0]
    if silent is not None:
        raise silent
    if gone is not None:
        raise gone
    if copies:
        raise Mirrored(
            f"run {run!r}: {' and '.join(copies)} hold copies of it, and nothing is written to a copy: put its home "
            "on the list"
        )
    return 0
