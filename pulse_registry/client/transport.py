"""HTTP transport to a server: timeouts, stalled transfers, and its failures as typed errors."""

from __future__ import annotations

import functools
import io
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import httpx

from pulse_registry.errors import CorruptObject, InvalidArgument, PulseError, StoreUnavailable, UnsupportedFormat
from pulse_registry.process.proxies import by_way_of, named_proxies
from pulse_registry.store.http_dates import seconds_asked
from pulse_registry.store.watchdog import LowSpeedLimit, TransferWatchdog

CHUNK_BYTES: Final = 256 << 10
"""Bodies are sent in pieces of this size: the transport copies what the system did not take at once."""
MOST_ANSWER_BYTES: Final = 32 << 20
"""Of an answer that is no stored document: twice the longest page of records."""
_MOST_DIGITS: Final = 18
MOST_PROBLEM_BYTES: Final = 1 << 20
"""Of an answer that says what went wrong, or only that it is done."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a request may take.

    Attributes:
        connect_s: to connect.
        silence_s: without a single byte in or out.
        low_speed: a body that is slower has stalled.
    """

    connect_s: float = 5.0
    silence_s: float = 20.0
    low_speed: LowSpeedLimit = field(default_factory=LowSpeedLimit)

    def timeout(self, wait_s: float = 0.0) -> httpx.Timeout:
        """Return the limits of one request, which the server may answer ``wait_s`` seconds later than usual."""
        return httpx.Timeout(self.silence_s, connect=self.connect_s, read=self.silence_s + wait_s)


def new_client(timeouts: Timeouts, headers: dict[str, str] | None = None, *, trust_env: bool = True) -> httpx.Client:
    """Return a client with a pool of connections, for any number of threads. It follows no redirects.

    Bodies come as they are: their digests, lengths and ranges are those of the object.

    Args:
        timeouts: limits of each request.
        headers: of each request.
        trust_env: go through the proxy that the environment names, if it does.

    Raises:
        InvalidArgument: it names one that can't be used.
    """
    try:
        return httpx.Client(
            verify=_trusted(),
            headers={"Accept-Encoding": "identity", "User-Agent": "pulse-registry", **(headers or {})},
            timeout=timeouts.timeout(),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            follow_redirects=False,
            trust_env=trust_env,
            event_hooks={"request": [_hide_query]},
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        # The error may quote a proxy's password.
        why = "SOCKS needs a package more: pip install socksio" if isinstance(error, ImportError) else "no such URL"
        raise InvalidArgument(
            f"the environment names a proxy that can't be used ({named_proxies()}): {why}; write http://host:port, or "
            "take it out of the environment"
        ) from None


class BodyTransfer(TransferWatchdog):
    """A body on its way, in or out, as a request's limits allow it."""

    def __init__(self, timeouts: Timeouts, what: str) -> None:
        """Begin; ``what`` is told in messages."""
        super().__init__(timeouts.low_speed, what)

    def whole(self, response: httpx.Response, most: int) -> bytes:
        """Return a body, in memory of once its size.

        Raises:
            CorruptObject: it has more than ``most`` bytes, or says so: no more of it is read.
            StoreUnavailable: it has stalled.
        """
        kept, too_long = io.BytesIO(), CorruptObject(f"{self.what}: the answer is longer than {most} bytes")
        if (declared_length(response) or 0) > most:
            raise too_long
        for chunk in response.iter_raw():
            self.add(len(chunk))
            if kept.tell() + len(chunk) > most:
                raise too_long
            kept.write(chunk)
        return kept.getvalue()

    def received(self, response: httpx.Response, most: int) -> Iterator[bytes]:
        """Yield a body's bytes as they come; raises StoreUnavailable when more than ``most`` have."""
        left = most
        for chunk in response.iter_raw():
            self.add(len(chunk))
            left -= len(chunk)
            if left < 0:
                raise StoreUnavailable(f"{self.what}: the answer is longer than {most} bytes, which it can't be")
            yield chunk

    def sent(self, views: Iterable[memoryview]) -> Iterator[bytes]:
        """Yield a body's bytes as they are to be sent, in pieces."""
        for view in views:
            for at in range(0, view.nbytes, CHUNK_BYTES):
                piece = view[at : at + CHUNK_BYTES]
                yield bytes(piece)
                self.add(piece.nbytes)


def declared_length(response: httpx.Response) -> int | None:
    """Return how long an answer says that its body is."""
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def told_to_wait(error: PulseError, headers: Mapping[str, str]) -> PulseError:
    """Return the error of an answer, with the time that its ``Retry-After`` asks for."""
    if isinstance(error, StoreUnavailable):
        error.retry_after_s = seconds_asked(headers)
    return error


@contextmanager
def failures(what: str, url: str | None) -> Iterator[None]:
    """Turn the transport's failures into StoreUnavailable; no message holds a query, a header or a token.

    Args:
        what: was asked, of whom.
        url: where the request goes, by the proxy that the environment names; None: by none.
    """
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise StoreUnavailable(f"{what}: {_reason(error)}{by_way_of(url) if url else ''}") from None


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return whom to trust: one for all clients, since it takes longer to make than most requests."""
    return httpx.create_ssl_context()


def origin_of(url: str) -> str:
    """Return a URL's scheme and host, which is all of it that may be told.

    Raises:
        UnsupportedFormat: it has none: a service gave it out, which is of another release, or none.
    """
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        whole = None
    if not whole:
        raise UnsupportedFormat("the service answered with a URL that is none; upgrade the older of the two")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return "no connection in time"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ProxyError):
        return f"{error}" or type(error).__name__
    return type(error).__name__  # its text may quote what was sent


class _HiddenQuery(httpx.URL):
    """A URL that is sent as it is, and shown, as in logs, without its query: a signed one's is a credential."""

    def __str__(self) -> str:
        return str(self.copy_with(query=None))

    def __repr__(self) -> str:
        return repr(self.copy_with(query=None))


def _hide_query(request: httpx.Request) -> None:
    request.url = _HiddenQuery(request.url)
