"""Open a store by its URL: a table of URL schemes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from pulse_registry.errors import InvalidArgument
from pulse_registry.store.base import Store
from pulse_registry.store.file import FileStore
from pulse_registry.store.memory import MemoryStore
from pulse_registry.store.s3.location import parse_s3_url
from pulse_registry.store.s3.store import ANSWER_S, PART_BYTES, S3Store
from pulse_registry.store.wrappers.prefix import PrefixStore

_HOST_AND_PORT: Final = re.compile(r"([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(/.*)?", re.DOTALL)
_OF_SERVICES: Final = ("http", "https")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def open_store(url: str, *, answer_s: float | None = None, part_bytes: int | None = None) -> Store:
    """Open the store at a URL. Nothing is created, and nothing is asked of the store, before its first use.

    Args:
        url: `memory://name/...` (in this process), `file:///absolute/path` (percent-encoded),
            `s3://bucket/prefix` (percent-encoded; with the options `endpoint_url`, `region`, `addressing_style` and
            `profile` behind a `?`, the rest as the AWS SDKs take it), or a local path, absolute, relative or beginning
            with `~`. A service's is for `client.connect`.
        answer_s: how long a bucket may say nothing before a request is given up; None: 20 s. Others take no notice.
        part_bytes: of what a bucket takes of an object above that size at a time, of which a put holds five in memory;
            None: 16 MiB. Others take no notice.

    Raises:
        InvalidArgument: the scheme is not known, or the rest of the URL is not valid for it, or what it needs is
            not installed; or it is a host and a port without a scheme; or answer_s is not positive.
    """
    if not url:
        raise InvalidArgument("the URL of the store is empty")
    found = _SCHEME.fullmatch(url)
    if found is None:
        for scheme in (*SCHEMES, *_OF_SERVICES):
            if url.lower().startswith(f"{scheme}:"):
                raise InvalidArgument(f"{url!r} is not a URL: write {scheme}://...")
        if _HOST_AND_PORT.fullmatch(url):
            raise InvalidArgument(
                f"{url!r} is a host and a port: write https://{url} or http://{url} for a service, and ./{url} for a "
                "folder of that name"
            )
        return FileStore(os.path.expanduser(url))
    scheme, rest = found.group(1).lower(), found.group(2)
    opener = SCHEMES.get(scheme)
    if scheme in _OF_SERVICES:
        raise InvalidArgument(f"{url!r} is a service, and no store: open it by pulse_registry.open or client.connect")
    if opener is None:
        known = ", ".join(f"{name}://" for name in sorted((*SCHEMES, *_OF_SERVICES)))
        raise InvalidArgument(
            f"no store for the scheme {scheme}:// of {url!r}; known: {known} and local paths; "
            "a store of your own is given to pulse_registry.Registry"
        )
    return opener(rest, answer_s, part_bytes)


def _open_memory(rest: str, answer_s: float | None, part_bytes: int | None) -> Store:
    name = rest.rstrip("/")
    if not name:
        raise InvalidArgument("memory:// needs a name: memory://name")
    return MemoryStore(name)


def _open_file(rest: str, answer_s: float | None, part_bytes: int | None) -> Store:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidArgument(f"file://{rest} is not an absolute path on this machine: write file:///path")
    return FileStore(f"/{unquote(path)}")


def _open_s3(rest: str, answer_s: float | None, part_bytes: int | None) -> Store:
    place, prefix = parse_s3_url(rest)
    store = S3Store(place, answer_s=ANSWER_S if answer_s is None else answer_s, part_bytes=part_bytes or PART_BYTES)
    return PrefixStore(store, prefix) if prefix else store


SCHEMES: Final[Mapping[str, Callable[[str, float | None, int | None], Store]]] = MappingProxyType(
    {
        "file": _open_file,
        "memory": _open_memory,
        "s3": _open_s3,
    }
)
"""What opens a store, given the part of its URL behind `://`, how long it may be silent, and part_bytes, by scheme."""
