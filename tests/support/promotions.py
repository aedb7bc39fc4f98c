"""Two roots of one run, and promotions from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.mirror.promotion import Promoted, Promotion, Site
from pulse_registry.outer.log import OuterLog
from pulse_registry.store import RunStore, Store
from pulse_registry.store.wrappers.wrapper import WrapperStore
from tests.support.mirrors import mirror, retrying
from tests.support.records import DictStore
from tests.support.registries import RUN


class Killed(Exception):
    """The process is dead: whatever it had begun, it does nothing more."""


class Life:
    """So many operations on stores, after which the process dies, before or after the last of them had an effect."""

    def __init__(self, operations: int, *, acts: bool) -> None:
        self.left, self.acts = operations, acts

    def over(self, store: Store) -> Store:
        """Return a store as this process sees it."""
        return _Mortal(store, self)

    def spend(self, act: Callable[[], object]) -> object:
        if self.left <= 0:
            raise Killed
        self.left -= 1
        if self.left > 0:
            return act()
        if self.acts:
            act()
        raise Killed


class _Mortal(WrapperStore):
    """Counts what changes a store, and what is read."""

    def __init__(self, store: Store, life: Life) -> None:
        super().__init__(store)
        self.url, self._life = store.url, life

    def get(self, *args, **named):
        return self._life.spend(partial(self._store.get, *args, **named))

    def put(self, *args, **named):
        return self._life.spend(partial(self._store.put, *args, **named))

    def size(self, *args):
        return self._life.spend(partial(self._store.size, *args))

    def delete(self, *args):
        return self._life.spend(partial(self._store.delete, *args))

    def list(self, *args):
        return self._life.spend(partial(self._store.list, *args))


def root(name: str) -> DictStore:
    """Return an empty root that differs from others by its URL."""
    store = DictStore()
    store.url = f"dict://{name}"
    return store


def site(store: Store) -> Site:
    """Return what a promotion works with at a root."""
    scoped = RunStore(retrying(store), RUN)
    reader = LogReader(scoped, RUN)
    writer = LogWriter(scoped, RUN, reader, utc_now, random_id, "operator")
    return Site(store.url, scoped, reader, writer, OuterLog(scoped, RUN))


def promotion(destination: Store, source: Store) -> Promotion:
    """Return a promotion of the run, as a process makes it that begins now."""
    return Promotion(site(destination), site(source), lambda: mirror(source, destination), random_id)


def promote(destination: Store, source: Store) -> Promoted:
    """Move the run as planned."""
    return promotion(destination, source).planned()


def promote_lost(destination: Store, source: Store) -> Promoted:
    """Let the run go on at a copy; its home is dead: who asks it anything is told so."""
    return promotion(destination, Life(0, acts=False).over(source)).lost()


def fence(destination: Store, source: Store) -> list[int]:
    """Let the run go on at a copy, if it does not, and fence the lost home, which is back; return what is given up."""
    found = promotion(destination, source)
    return [entry.version for entry in found.fence(found.lost().home)]
