"""Cache of presigned URLs of objects: asked for many at a time, kept until they expire."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pulse_registry.client.api import Answer, ServiceApi
from pulse_registry.client.routes import run_path
from pulse_registry.errors import UnsupportedFormat
from pulse_schemas.api import UrlBody, UrlRequest

_KEPT: Final = 4096
_AT_ONCE: Final = 1000
_MOST_URL: Final = 16 << 10
"""Letters of a URL, of which thousands are kept. A signed one has some 600, and 2,000 with a session's token."""
_LIFE_USED: Final = 0.8
"""A URL is used for this share of its life: a transfer that begins with it should not end after it."""


@dataclass(frozen=True, slots=True)
class PresignedUrl:
    """Where to read an object.

    Attributes:
        url: absolute; or a path behind the service's own URL, which needs the token.
        own: whether it is the service's own.
        until: monotonic time after which it is not used any more; infinite where it does not expire.
    """

    url: str
    own: bool
    until: float


def own_path(url: str) -> str | None:
    """Return the path of a URL that is relative to the service; None for an absolute one, of any host.

    Raises:
        UnsupportedFormat: it is neither.
    """
    if url.startswith("/v1/"):
        return url
    if url.startswith(("https://", "http://")):
        return None
    raise UnsupportedFormat("the service answered with a URL that is neither absolute nor its own; upgrade the older")


class PresignedUrls:
    """The URLs that a service gave for objects. Thread-safe."""

    def __init__(self, api: ServiceApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none.

        Args:
            api: gives them.
            clock: monotonic time in seconds.
        """
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._urls: OrderedDict[tuple[str, str], PresignedUrl] = OrderedDict()
        self._asked: dict[tuple[str, str], Future[PresignedUrl]] = {}

    def of(self, run: str, key: str) -> PresignedUrl:
        """Return where to read an object; threads that want the same one share a request.

        Raises:
            AccessDenied, NotFound, StoreUnavailable: as the service.
        """
        name = (run, key)
        with self._lock:
            signed = self._good(name)
            if signed is not None:
                return signed
            asked = self._asked.get(name)
            if asked is None:
                mine = self._asked[name] = Future()
        if asked is not None:
            return asked.result()
        try:
            signed = self._ask(run, [key])[key]
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(signed)
            return signed
        finally:
            with self._lock:
                del self._asked[name]

    def expect(self, run: str, keys: Sequence[str]) -> None:
        """Ask for the URLs of all these objects that are not known yet.

        Raises:
            AccessDenied, NotFound, StoreUnavailable: as the service.
        """
        with self._lock:
            missing = [key for key in dict.fromkeys(keys) if self._good((run, key)) is None]
        for at in range(0, len(missing), _AT_ONCE):
            self._ask(run, missing[at : at + _AT_ONCE])

    def forget(self, run: str, key: str, signed: PresignedUrl) -> None:
        """Don't use a URL any more: the bucket refused it."""
        with self._lock:
            if self._urls.get((run, key)) is signed:
                del self._urls[run, key]

    def _good(self, name: tuple[str, str]) -> PresignedUrl | None:
        signed = self._urls.get(name)
        return signed if signed is not None and self._clock() < signed.until else None

    def _ask(self, run: str, keys: Sequence[str]) -> dict[str, PresignedUrl]:
        asked_at = self._clock()
        request = UrlRequest(keys=tuple(keys)).model_dump_json().encode()
        answer = self._api.ask("POST", f"{run_path(run)}/urls", body=request)
        return self.keep(run, keys, self._api.parsed(UrlBody, answer), answer, asked_at)

    def keep(
        self, run: str, keys: Sequence[str], body: UrlBody, answer: Answer, asked_at: float
    ) -> dict[str, PresignedUrl]:
        """Keep the URLs of some objects that an answer to a request of that time gave, and return them.

        Raises:
            UnsupportedFormat: they are no URLs, or not those of these objects.
        """
        until = float("inf")
        if body.expires_at is not None:
            # By the service's clock alone: this machine's may be wrong.
            try:
                life = (datetime.fromisoformat(body.expires_at) - answer.clock).total_seconds()
            except ValueError as error:
                raise UnsupportedFormat(f"{self._api.url} answered with a time that is none: {error}") from error
            until = asked_at + _LIFE_USED * life
        found = {key: self._url_in(body, key, until) for key in keys}
        with self._lock:
            for key, signed in found.items():
                known = self._urls.get((run, key))
                if known is None or known.until <= signed.until:  # an answer may be shared, and older
                    self._urls[run, key] = signed
                self._urls.move_to_end((run, key))
            while len(self._urls) > max(_KEPT, len(keys)):
                self._urls.popitem(last=False)
        return found

    def _url_in(self, body: UrlBody, key: str, until: float) -> PresignedUrl:
        url = body.urls.get(key)
        if url is None or len(url) > _MOST_URL:
            raise UnsupportedFormat(f"{self._api.url} answered with no URL for {key!r}; upgrade the older of the two")
        return PresignedUrl(url, own_path(url) is not None, until)
