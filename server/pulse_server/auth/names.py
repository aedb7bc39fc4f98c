"""Names that readers and workers choose, and whose they are: each token's names are a space of its own.

What is stored has the *whole name*, ``<token id>:<name>``, so that all replicas agree without asking anybody, and
nobody can take another's name before it. A token of the scope admin gives whole names: with ``<token id>:<name>`` it
reaches those of that token, with any other name those of readers that go to the bucket themselves, without a token.
"""

from __future__ import annotations

import re
from typing import Final

from pulse_server.auth.access import Principal

_WHOLE: Final = re.compile(r"([0-9a-f]{12}):(.+)", re.ASCII)


def whole_name(principal: Principal, name: str) -> str:
    """Return the whole name of what a token calls ``name``."""
    return name if principal.may("admin") else f"{principal.id}:{name}"


def join_name(token: str, name: str) -> str:
    """Return the whole name that `split_name` takes apart."""
    return f"{token}:{name}" if token else name


def split_name(whole: str) -> tuple[str, str]:
    """Return a whole name's token, "" where it has none, and what that token calls it."""
    found = _WHOLE.fullmatch(whole)
    return ("", whole) if found is None else (found[1], found[2])
