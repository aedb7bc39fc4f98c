"""Options of the node's cache: folder and size limit, given by the caller or the environment."""

from __future__ import annotations

import os
from pathlib import Path

from pulse_registry.cache.folder import CacheFolder
from pulse_registry.errors import InvalidArgument
from pulse_registry.process import environment


def cache_folder(path: str | os.PathLike[str] | None = None, limit: int | None = None) -> CacheFolder | None:
    """Return the folder of the node's cache, or None if none is wanted. Nothing is made yet.

    Args:
        path: of the folder; None takes PULSE_CACHE from the environment, "" is none.
        limit: on its bytes; None takes PULSE_CACHE_BYTES from the environment, or half of the disk.

    Raises:
        InvalidArgument: the limit is no number of bytes from 1 on.
    """
    found = environment.CACHE.read() if path is None else os.fspath(path)
    if not found:
        return None
    text = environment.CACHE_BYTES.read()
    if limit is None and text:
        if not (text.isascii() and text.isdigit()):
            raise InvalidArgument(f"{environment.CACHE_BYTES.name} is {text!r}; it is a number of bytes, from 1 on")
        limit = int(text)
    return CacheFolder(Path(os.path.abspath(os.path.expanduser(found))), limit)
