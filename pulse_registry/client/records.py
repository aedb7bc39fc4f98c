"""Records of runs' logs through the service: one after the other, a page at a time, or as soon as they are there."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from pulse_registry.client.api import ServiceApi
from pulse_registry.client.presigned_urls import PresignedUrls
from pulse_registry.client.routes import log_path
from pulse_registry.errors import NotFound, UnsupportedFormat
from pulse_registry.format.keys import record_key
from pulse_registry.store.checks import check_whole
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_schemas.api import LogPage

_PAGE: Final = 100
_PAGE_VALUES: Final = 2_000
"""Strings, lists and entries of a page: some 200 of so many records."""
_KEPT: Final = 1024
_KEPT_BYTES: Final = 64 << 20
"""Records, and their bytes, that are kept: what came along and is not asked for goes again."""
_LONGEST_WAIT_S: Final = 50.0
"""Of one request; under the minute after which services, and many proxies, give up."""
_PAUSE_S: Final = 0.25
_GONE_S: Final = 30.0
"""For so long the service may be away while somebody waits: it restarts."""


class Records:
    """Reads sealed records, and keeps those that came along with others until they are asked for. Thread-safe."""

    def __init__(
        self,
        api: ServiceApi,
        folder: str = "",
        urls: PresignedUrls | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start with none.

        Args:
            api: gives them.
            folder: of the runs in which the log lies, with a slash; "" is the run's own.
            urls: are given those of objects that come along with records.
            clock: monotonic time in seconds.
            sleep: what pauses between two tries to reach a service that is away.
        """
        self._api, self._folder, self._urls = api, folder, urls
        self._clock = clock
        self._sleep = sleep
        self._patiently = RetryPolicy(total_s=_GONE_S, first_pause_s=0.2, longest_pause_s=2.0, clock=clock, sleep=sleep)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._next: dict[str, int] = {}

    def get(self, run: str, seq: int, max_bytes: int) -> bytes:
        """Return record ``seq``, sealed. Who asks for one after the other gets them by pages.

        Raises:
            CorruptObject: it has more than ``max_bytes``.
            NotFound: it is not there (yet), or there is no such run.
            AccessDenied, StoreUnavailable: as the service.
        """
        with self._lock:
            kept = self._take(run, seq)
            in_order = self._next.get(run) == seq
            self._next[run] = seq + 1
        if kept is not None:
            return self._checked(run, seq, kept, max_bytes)
        try:
            if not in_order:
                return self._api.ask("GET", f"{log_path(run, self._folder)}/{seq}", most=max_bytes).body
            found = self._page(run, seq, 0)
            if not found:
                raise NotFound(f"run {run!r} in {self._api.url} has no record {seq}")
        except NotFound:
            with self._lock:
                self._next[run] = seq  # it will be asked for again
            raise
        with self._lock:
            self._take(run, seq)
        return self._checked(run, seq, found[0], max_bytes)

    def wait(self, run: str, seq: int, timeout_s: float) -> bool:
        """Wait until record ``seq`` is there; see `Gateway.wait_for_record`. A service that restarts is waited for."""
        give_up = self._clock() + timeout_s
        while True:
            with self._lock:
                if (run, seq) in self._kept:
                    return True
            asked_at = self._clock()
            wait_s = int(max(0.0, min(give_up - asked_at, _LONGEST_WAIT_S)))  # the service takes whole seconds
            if self._patiently(partial(self._page, run, seq, wait_s)):
                return True
            now = self._clock()
            if now >= give_up:
                return False
            if now - asked_at < max(wait_s, 1) / 2:  # too early: less than a second is left, or the service is stopping
                self._sleep(min(_PAUSE_S, give_up - now))

    def _page(self, run: str, since: int, wait_s: int) -> list[bytes]:
        """Ask for the records from ``since`` on, and keep them."""
        params: dict[str, str | int] = {"since": since, "limit": _PAGE}
        if wait_s:
            params["wait"] = wait_s
        asked_at = self._clock()
        answer = self._api.ask("GET", log_path(run, self._folder), params=params, wait_s=wait_s)
        page = self._api.parsed(LogPage, answer, _PAGE_VALUES)
        if len(page.records) > _PAGE:
            raise UnsupportedFormat(
                f"{self._api.url} answered with {len(page.records)} records, {_PAGE} were asked for"
            )
        if page.since != since or page.run != run:
            raise UnsupportedFormat(f"{self._api.url} answered with other records than those from {since} of {run!r}")
        if self._urls is not None and page.urls is not None:
            self._urls.keep(run, list(page.urls.urls), page.urls, answer, asked_at)
        sealed = [record.encode() for record in page.records]
        with self._lock:
            for number, one in enumerate(sealed, since):
                self._take(run, number)
                self._kept[run, number] = one
                self._kept_bytes += len(one)
            while len(self._kept) > _KEPT or self._kept_bytes > _KEPT_BYTES:
                self._take(*next(iter(self._kept)))
        return sealed

    def _take(self, run: str, seq: int) -> bytes | None:
        """Return a record that is kept, and keep it no more; the lock is held."""
        kept = self._kept.pop((run, seq), None)
        self._kept_bytes -= len(kept or b"")
        return kept

    def _checked(self, run: str, seq: int, sealed: bytes, max_bytes: int) -> bytes:
        check_whole(f"{run}/{self._folder}{record_key(seq)}", self._api.url, len(sealed), max_bytes)
        return sealed
