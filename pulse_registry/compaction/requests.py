"""Requests for direct patches: small objects under the run, one a reader and pair of versions.

Their keys say it all, so that one LIST tells what is wanted. A request is removed once its patch is there, once it
can't be, or when it is old by the store's clock. Nothing but bytes on the way depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Final

from pulse_registry.compaction.ladder import Merge, patch_of
from pulse_registry.errors import AccessDenied, AlreadyExists, CorruptObject, Gone, InvalidArgument, NotFound
from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.log.store_clock import StoreClock
from pulse_registry.store import Store
from pulse_schemas import DirectRequest

_logger = logging.getLogger(__name__)

MOST: Final = 100_000
"""Requests that are looked at, however many there are."""
LIFE = timedelta(days=7)
"""A request that nobody renewed for so long is forgotten."""


def check_request(state: RunState, base: int, target: int) -> bool:
    """Tell whether a direct patch is still to be made.

    Raises:
        InvalidArgument: no patch can lead there: the base is not the older one, or the layouts differ.
        Gone, NotFound: a version was retired, or was never committed.
    """
    if not 0 <= base < target:
        raise InvalidArgument(f"a direct patch leads from an older to a newer version, not from {base} to {target}")
    entries = [state.version(version) for version in (base, target)]
    if entries[0].layout != entries[1].layout:
        raise InvalidArgument(
            f"versions {base} and {target} have different layouts: no patch leads from one to the other"
        )
    for version in (base, target):
        if state.is_retired(version):
            raise Gone(f"version {version} of run {state.run!r} was retired")
    return patch_of(state, base, target) is None


def ask(store: Store, run: str, base: int, target: int, reader: str) -> None:
    """Store a reader's request. Idempotent.

    Raises:
        AccessDenied, StoreUnavailable: the store did not take it.
    """
    request = DirectRequest(run=run, base=base, target=target, reader=reader)
    with suppress(AlreadyExists):
        store.put(keys.request_key(base, target, reader), request.seal(), if_absent=True)


class Requests:
    """What readers of a run ask for, as a compactor sees it."""

    def __init__(self, store: Store) -> None:
        """Look at a store, scoped to the run; no I/O yet."""
        self._store = store

    def wanted(self, state: RunState, readers: int) -> Iterator[Merge]:
        """Yield the patches that at least so many readers ask for and that can be made, oldest target first.

        Requests that are done, or can't be met any more, are removed.

        Raises:
            StoreUnavailable: the store failed.
        """
        asked: dict[tuple[int, int], list[str]] = {}
        for key, pair in self._listed().items():
            asked.setdefault(pair, []).append(key)
        for (base, target), found in sorted(asked.items(), key=lambda item: (item[0][1], item[0][0])):
            if not _open(state, base, target):
                self._remove(found)
            elif len(alive := self._alive(found)) >= readers:
                yield Merge(base, target)
            else:
                self._remove([key for key in found if key not in alive])

    def _listed(self) -> Mapping[str, tuple[int, int]]:
        try:
            found = {key: keys.requested(key) for key in islice(self._store.list(keys.REQUESTS), MOST)}
        except (InvalidArgument, AccessDenied) as error:
            _logger.info("requests for direct patches can't be listed here: %s", error)
            return {}
        return {key: request[:2] for key, request in found.items() if request is not None}

    def _alive(self, found: list[str]) -> list[str]:
        """Return those that are not too old; all of them where the store does not tell the time."""
        clock, alive = StoreClock(self._store), []
        try:
            now = clock.now()
            for key in found:
                with suppress(NotFound, CorruptObject):  # done by another, or no object any more
                    if now - clock.written(key) <= LIFE:
                        alive.append(key)
        except (InvalidArgument, AccessDenied):
            return found
        return alive

    def _remove(self, found: list[str]) -> None:
        for key in found:
            try:
                self._store.delete(key)
            except (InvalidArgument, AccessDenied, CorruptObject) as error:
                _logger.info("%s is of no use any more and can't be removed: %s", key, error)


def _open(state: RunState, base: int, target: int) -> bool:
    try:
        return check_request(state, base, target)
    except (InvalidArgument, NotFound):
        return False
