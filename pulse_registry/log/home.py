"""Home: whether a store is the one root at which a run that has moved is written.

A log can't tell where it lies: a copy of it says the same. So a `move` record names the run's home by its own write id,
and only that root has the document `home` which names it, too. Writers elsewhere are fenced, whatever they have cached.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from pulse_registry.errors import CorruptObject, Fenced, NotFound
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.mirror_mark import check_not_mirror
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


class _State(Protocol):
    """The state of a run, or of its outer rounds."""

    seq: int
    home: HomeEntry | None


class Residence:
    """Whether one root is a run's home, as far as it was asked; for whoever is to append there. Thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        """Prepare to ask; no I/O yet. ``store`` is scoped to the run."""
        self._store, self._run = store, run
        self._proved: str | None = None
        self._looked = False

    def check(self, state: _State) -> None:
        """Raise unless the run lives here: this root has no copy of it, and its last move, as the log says, led here.

        Costs a GET before the first record, and one after each move: what proves that is written after it, and only the
        next one makes another root the home. An empty log may become a copy meanwhile, so that it is looked at each
        time. Behind a service it costs nothing: that asks itself.

        Args:
            state: the newest one.

        Raises:
            Fenced: the run has moved elsewhere.
            Mirrored: this root has a copy of it.
            CorruptObject, UnsupportedFormat, StoreUnavailable: what would prove it can't be read.
        """
        if self._store.gateway() is not None:
            return
        home = state.home
        if home is not None and home.move != self._proved:
            if proved_move(self._store, self._run) != home.move:
                raise Fenced(moved(self._run, home, self._store.url))
            self._proved = home.move
        if not self._looked:
            check_not_mirror(self._store, self._run)
            self._looked = state.seq >= 0


def moved(run: str, home: HomeEntry, url: str) -> str:
    """Return what to tell whoever would write at a root that is not the run's home."""
    return f"{moved_to(run, home)}: nothing is written to it in {url} any more. Open it there; readers may go on here"


def moved_to(run: str, home: HomeEntry) -> str:
    """Return the words for a run's last move."""
    return f"run {run!r}: record {home.seq} moved it to {home.to}"
