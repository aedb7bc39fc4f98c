"""Proxies that the environment names (HTTP_PROXY and the like): which of them a request takes, told without secrets.

The HTTP clients go through them by themselves. What fails there is the proxy's fault, and not the host's behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pulse_registry.process.environment import is_filled, names

_VARIABLES: Final = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, without the user and the password that its URL may hold.

    Attributes:
        scheme: of its URL.
        place: host and port.
        variable: what names it.
    """

    scheme: str
    place: str
    variable: str

    def __str__(self) -> str:
        """Say which one it is."""
        return f"the proxy {self.place or 'without a host'} ({self.variable})"

    @property
    def speaks_http(self) -> bool:
        """Whether it is one that every HTTP client can use."""
        try:
            parts = urlsplit(f"//{self.place}")
            whole = parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            return False
        return bool(whole) and self.scheme in ("http", "https") and not re.search(r"\s", self.place)


def proxy_of(url: str, kinds: Sequence[str] = ("all",)) -> Proxy | None:
    """Return the proxy that a request to a URL takes, as the environment has it; None where it takes none.

    Args:
        url: where the request goes.
        kinds: beside the URL's own scheme, for which proxies the client asks.
    """
    parts, named = urlsplit(url), getproxies()
    kind = next((kind for kind in (parts.scheme, *kinds) if named.get(kind)), None)
    if kind is None or proxy_bypass(parts.netloc):
        return None
    scheme, found, rest = named[kind].partition("://")
    if not found:
        scheme, rest = "http", named[kind]
    variable = next((name for name in names() if name.lower() == f"{kind}_proxy"), "this system's settings")
    return Proxy(scheme.lower(), rest.rpartition("@")[2].partition("/")[0], variable)


def by_way_of(url: str) -> str:
    """Return what to add to the message of a request that failed: the proxy that it went through, if it took one."""
    proxy = proxy_of(url)
    return f"; it went through {proxy}: look there first, or name the host in NO_PROXY" if proxy else ""


def named_proxies() -> str:
    """Return the names of the variables of the environment that are about proxies, with commas between."""
    return ", ".join(sorted(name for name in names() if name.lower() in _VARIABLES and is_filled(name)))
