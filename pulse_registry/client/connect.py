"""Open a store by a registry's URL: that of a service, or any that `open_store` knows."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pulse_registry.client.token import http_allowed
from pulse_registry.errors import InvalidArgument
from pulse_registry.process import environment
from pulse_registry.store import Store, open_store


@runtime_checkable
class HasConnections(Protocol):
    """A store that keeps connections open."""

    def close(self) -> None:
        """Close them. Idempotent."""
        ...


def connect(
    url: str, token: str | None = None, *, allow_http: bool | None = None, answer_s: float | None = None
) -> Store:
    """Open the store at a URL, or the service. Nothing is asked of it before its first use.

    Args:
        url: ``https://host[:port][/prefix]``, or what `open_store` takes.
        token: for a service; None takes PULSE_TOKEN from the environment, or none.
        allow_http: whether a token may go over ``http://`` to another machine; None takes PULSE_ALLOW_HTTP from the
            environment, or does not allow it.
        answer_s: how long a bucket may say nothing; see `open_store`.

    Raises:
        InvalidArgument: the URL or the token is not valid, the token would go in clear, or one is given for something
            else than a service.
    """
    if is_service(url):
        return open_service(url, token, allow_http=allow_http)
    if token is not None:
        raise InvalidArgument("a token is for a service, whose URL begins with https://; a bucket takes its own keys")
    return open_store(url, answer_s=answer_s)


def open_service(url: str, token: str | None = None, *, allow_http: bool | None = None) -> Store:
    """Open a service as a store; see `connect`."""
    from pulse_registry.client.store import ServiceStore  # imports httpx, which buckets don't need

    if token is None:
        token = environment.TOKEN.read()
    if allow_http is None:
        allow_http = http_allowed(environment.ALLOW_HTTP.read() or "")
    return ServiceStore(url, token, allow_http=allow_http)


def open_copies(url: str, token: str | None = None, *, allow_http: bool = False) -> Store:
    """Open the copies of a service, which a mirror writes; the token is of scope ``mirror``.

    Raises:
        InvalidArgument: the URL or the token is not valid, or the token would go in clear.
    """
    from pulse_registry.client.copies import CopyStore

    return CopyStore(url, token, allow_http=allow_http)


def is_service(url: str) -> bool:
    """Tell whether a URL is a service's."""
    return url.lower().startswith(("https://", "http://"))
