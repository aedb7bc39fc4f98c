"""From a URL to a store: a registry of URL schemes."""

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

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def open_store(url: str) -> Store:
    """Open the store at a URL. Nothing is created, and nothing is asked of the store, before its first use.

    Args:
        url: `memory://name/...` (in this process), `file:///absolute/path` (percent-encoded), or a local
            path, absolute, relative or beginning with `~`.

    Raises:
        InvalidArgument: the scheme is not known, or the rest of the URL is not valid for it.
    """
    if not url:
        raise InvalidArgument("the URL of the store is empty")
    found = _SCHEME.fullmatch(url)
    if found is None:
        for scheme in SCHEMES:
            if url.lower().startswith(f"{scheme}:"):
                raise InvalidArgument(f"{url!r} is not a URL: write {scheme}://...")
        return FileStore(os.path.expanduser(url))
    scheme, rest = found.group(1).lower(), found.group(2)
    opener = SCHEMES.get(scheme)
    if opener is None:
        known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
        raise InvalidArgument(f"no store for the scheme {scheme}:// of {url!r}; known: {known} and local paths")
    return opener(rest)


def _open_memory(rest: str) -> Store:
    name = rest.rstrip("/")
    if not name:
        raise InvalidArgument("memory:// needs a name: memory://name")
    return MemoryStore(name)


def _open_file(rest: str) -> Store:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidArgument(f"file://{rest} is not an absolute path on this machine: write file:///path")
    return FileStore(f"/{unquote(path)}")


SCHEMES: Final[Mapping[str, Callable[[str], Store]]] = MappingProxyType({"file": _open_file, "memory": _open_memory})
"""What opens a store, given the part of its URL behind `://`, by scheme."""
