"""URLs by which workers read objects: signed by the store and used again while they are fresh, or the service's own."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from pulse_registry.format.keys import below_root
from pulse_registry.log import timestamp
from pulse_registry.store import Store

_MAX_URLS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Urls:
    """URLs of objects by their keys below the run.

    Attributes:
        by_key: the URLs.
        expires_at: when the first of them ends, UTC; None where they are the service's own, and don't.
        fresh_until: until when they may be handed out again, in the signer's seconds.
    """

    by_key: dict[str, str]
    expires_at: str | None
    fresh_until: float


class UrlSigner:
    """Makes the URLs that read a root's objects. Thread-safe.

    A URL is handed out again until half its life has passed: a signature costs more than an answer, and whoever gets
    one has at least half that time.
    """

    def __init__(
        self,
        store: Store,
        ttl_s: int,
        *,
        clock: Callable[[], float] = time.time,
        signed: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Prepare to sign.

        Args:
            store: holds all runs.
            ttl_s: how long a URL is good.
            clock: seconds since 1970.
            signed: told how many URLs were signed anew.
        """
        self._signer, self._roots = store.presigner(), store.roots()
        self._ttl_s, self._clock, self._signed = ttl_s, clock, signed
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    @property
    def signs(self) -> bool:
        """Whether URLs are the store's, which anybody may use; otherwise they are the service's own."""
        return self._signer is not None

    @property
    def now(self) -> float:
        """The present, in this signer's seconds."""
        return self._clock()

    def known(self, run: str, wanted: Iterable[str]) -> Urls | None:
        """Return URLs of keys of a run if no signing is needed for them."""
        wanted = tuple(wanted)
        if self._signer is None:
            return Urls({key: own_path(run, key) for key in wanted}, None, float("inf"))
        now, by_key, oldest, place = self._clock(), {}, float("inf"), self._place(run)
        with self._lock:
            for key in wanted:
                url, expires = self._known.get(place + below_root(run, key), ("", 0.0))
                if expires - self._ttl_s / 2 <= now:
                    return None
                by_key[key], oldest = url, min(oldest, expires)
        return self._urls(by_key, oldest)

    def sign(self, run: str, wanted: Iterable[str]) -> Urls:
        """Return URLs of keys of a run, signing those that are not fresh; may take a while, for many.

        Raises:
            InvalidArgument: a key is not valid.
            AccessDenied: the service has no credentials to sign with.
        """
        wanted = tuple(wanted)
        signer = self._signer
        if signer is None:
            return Urls({key: own_path(run, key) for key in wanted}, None, float("inf"))
        by_key, oldest, new, place = {}, float("inf"), 0, self._place(run)
        for key in wanted:
            whole, now = below_root(run, key), self._clock()
            with self._lock:
                url, expires = self._known.get(place + whole, ("", 0.0))
            if expires - self._ttl_s / 2 <= now:
                url, expires = signer.presign(whole, self._ttl_s), now + self._ttl_s
                new += 1
                with self._lock:
                    self._known[place + whole] = url, expires
                    self._known.move_to_end(place + whole)
                    if len(self._known) > _MAX_URLS:
                        self._known.popitem(last=False)
            by_key[key], oldest = url, min(oldest, expires)
        if new:
            self._signed(new)
        return self._urls(by_key, oldest)

    def _place(self, run: str) -> str:
        """Return what tells URLs of one root from those of another: a run may be read elsewhere from one day on."""
        return "" if self._roots is None else f"{self._roots.nearest(run)}:"

    def _urls(self, by_key: dict[str, str], expires: float) -> Urls:
        if not by_key:
            return Urls({}, None, self._clock() + self._ttl_s / 2)
        return Urls(by_key, timestamp(datetime.fromtimestamp(expires, UTC)), expires - self._ttl_s / 2)


def own_path(run: str, key: str) -> str:
    """Return the service's own path of an object; ``key`` is below the run."""
    return f"/v1/runs/{quote(run)}/{quote(key)}"
