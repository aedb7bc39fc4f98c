"""Open a registry by its root's URL, or by those of several roots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from pulse_registry.client.connect import connect
from pulse_registry.errors import InvalidArgument
from pulse_registry.roots.nearest import NearestStore
from pulse_registry.store import Store

ANSWER_S: Final = 5.0
"""A bucket that is silent for longer is left for another root."""
Place = str | os.PathLike[str]


def roots_of(given: Place | Sequence[Place]) -> list[str]:
    """Return roots as texts: of one, of a list, or of a text with commas between them.

    Raises:
        InvalidArgument: one is neither a text nor a path, or empty, or there is none.
    """
    listed = given.split(",") if isinstance(given, str) else [given] if isinstance(given, os.PathLike) else given
    if not isinstance(listed, Sequence):
        raise InvalidArgument(f"a registry's root is a URL or a folder's path, and no {type(given).__name__}")
    return [_text_of(root) for root in listed]


def connect_roots(roots: Sequence[str], token: str | None = None, *, allow_http: bool | None = None) -> Store:
    """Open the store of a registry, or of several roots, the nearest first; see ``connect`` and ``NearestStore``.

    Raises:
        InvalidArgument: a URL or the token is not valid; or of several roots, one is a service.
    """
    if len(roots) == 1:
        return connect(roots[0], token, allow_http=allow_http)
    return NearestStore([connect(root, token, allow_http=allow_http, answer_s=ANSWER_S) for root in roots])


def _text_of(root: object) -> str:
    text = os.fspath(root) if isinstance(root, os.PathLike) else root
    if not isinstance(text, str):
        raise InvalidArgument(f"a registry's root is a URL or a folder's path, and no {type(text).__name__}")
    return text.strip()
