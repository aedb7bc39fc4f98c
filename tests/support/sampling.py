"""Which calls of a store a test makes fail: a sample of each kind, or every one of them (make sweep)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

EVERY_CALL = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["of each kind", "each"]
)
"""Gives a test ``every``, which `places` takes."""
_OWN = re.compile(r"[0-9a-f]{6,}")
"""What tells an object from others of its kind."""


def places(calls: Sequence[tuple[str, str]], every: bool) -> list[int]:
    """Return where to fail among calls of a store, counted from 1: the first and the last of each kind, or everywhere.

    A call's kind is its verb, and its key without numbers and hashes.
    """
    if every:
        return list(range(1, len(calls) + 1))
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for nth, (verb, key) in enumerate(calls, 1):
        kind = f"{verb} {_OWN.sub('#', key)}"
        first.setdefault(kind, nth)
        last[kind] = nth
    return sorted({*first.values(), *last.values()})


def writes(calls: Sequence[tuple[str, str]]) -> set[int]:
    """Return where among calls of a store the writes are, counted from 1: what fails after it acted has acted there."""
    return {nth for nth, (verb, _) in enumerate(calls, 1) if verb in ("put", "delete")}
