"""Home: whether a store is the one root at which a run that has moved is written.

A log can't tell where it lies: a copy of it says the same. So a `move` record names the run's home by its own write id,
and only that root has the document `home` which names it, too. Writers elsewhere are fenced, whatever they have cached.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulse_registry.errors import CorruptObject, Fenced, NotFound
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.unsealing import unsealed_home
from pulse_registry.store.verified_read import checked
from pulse_schemas import Home, HomeEntry

if TYPE_CHECKING:
    from pulse_registry.store import Store


def proved_move(store: Store, run: str) -> str | None:
    """Return the write id of the newest move that led to a root; None where none did.

    Args:
        store: scoped to the run, at that root.
        run: its name.

    Raises:
        CorruptObject, UnsupportedFormat: what should tell is damaged, of another run, or of another release.
        StoreUnavailable: the store failed.
    """
    try:
        home = checked(partial(read_document, store, keys.HOME), unsealed_home)
    except NotFound:
        return None
    if home.run != run:
        raise CorruptObject(f"{keys.HOME} is of run {home.run!r}, not of {run!r}: whoever copied it should not have")
    return home.move


def prove(store: Store, run: str, move: str) -> None:
    """Make a root the home that a move led to; the one that it was before it is no more. Idempotent."""
    store.put(keys.HOME, Home(run=run, move=move).seal())


class Residence:
    """Whether one root is a run's home, as far as it was asked; for whoever is to append there. Thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        """Prepare to ask; no I/O yet. ``store`` is scoped to the run."""
        self._store, self._run = store, run
        self._proved: str | None = None

    def check(self, home: HomeEntry | None) -> None:
        """Raise Fenced unless this root is where the log says that the run lives.

        Costs nothing for a run that has never moved, nor behind a service, which asks itself; else a GET, once a move:
        what proves it is written after the move, and only the next move makes another root the home.

        Args:
            home: of the newest state.

        Raises:
            Fenced: the run has moved elsewhere.
            CorruptObject, UnsupportedFormat, StoreUnavailable: what would prove it can't be read.
        """
        if home is None or home.move == self._proved or self._store.gateway() is not None:
            return
        if proved_move(self._store, self._run) != home.move:
            raise Fenced(moved(self._run, home, self._store.url))
        self._proved = home.move


def moved(run: str, home: HomeEntry, url: str) -> str:
    """Return what to tell whoever would write at a root that is not the run's home."""
    return (
        f"run {run!r}: record {home.seq} moved it to {home.to}: nothing is written to it in {url} any more. Open it "
        "there; readers may go on here"
    )
