"""How much a test tries: a sample of what it could, more of it (make test-slow), or far more (make sweep)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings

EVERY_CALL = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["of each kind", "each"]
)
"""Gives a test ``every``, which `places` takes."""
_OWN = re.compile(r"[0-9a-f]{6,}")
"""What tells an object from others of its kind."""


_THOROUGH = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "sweep" else 1


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a test, all of them marked as slow (make test-slow) but those few that are to be quick.

    Raises:
        ValueError: A case that is to be quick is not among them.
    """
    kept, every = list(quick), list(cases)
    if missing := [case for case in kept if case not in every]:
        raise ValueError(f"not among the cases: {missing}")
    return [case if case in kept else _slow(case) for case in every]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # it has marks of its own
        return case
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def examples(count: int) -> settings:
    """Settings of a property whose examples are costly, or that each of many dtypes has: few of them, always others.

    The sweep, which finds these properties by this decorator, tries forty times as many.
    """
    return settings(max_examples=count * _THOROUGH)


def places(calls: Sequence[tuple[str, str]], every: bool) -> list[int]:
    """Return where to fail among calls of a store, counted from 1: once for each kind, or everywhere.

    A call's kind is its verb, and its key without numbers and hashes. It fails at the first call of one kind, the last
    of the next, and so on.
    """
    if every:
        return list(range(1, len(calls) + 1))
    kinds: dict[str, list[int]] = {}
    for nth, (verb, key) in enumerate(calls, 1):
        kinds.setdefault(f"{verb} {_OWN.sub('#', key)}", []).append(nth)
    return sorted(found[-(number % 2)] for number, found in enumerate(kinds.values()))


def writes(calls: Sequence[tuple[str, str]]) -> set[int]:
    """Return where among calls of a store the writes are, counted from 1: what fails after it acted has acted there."""
    return {nth for nth, (verb, _) in enumerate(calls, 1) if verb in ("put", "delete")}
