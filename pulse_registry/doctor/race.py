"""A race for one key: what each racer saw, and what the round as a whole says about the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pulse_registry.doctor.context import MOST_BYTES, Context
from pulse_registry.errors import AlreadyExists, NotFound, StoreUnavailable
from pulse_registry.store import Store

Outcome = Literal["won", "refused", "gave up"]

_ATTEMPTS = 8
_FIRST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one racer fared.

    Attributes:
        body: what it wanted to create.
        outcome: what its put answered in the end; `gave up` if the store was unavailable each time.
        unsure: a put of it failed in between, and may have taken effect.
        read_back: what it read right after a refusal.
        seconds: how long it took.
    """

    body: bytes
    outcome: Outcome
    unsure: bool
    read_back: bytes | None
    seconds: float


def race(context: Context, key: str, bodies: Sequence[bytes]) -> list[Attempt]:
    """Create one key with every body at once."""
    return context.together([partial(_attempt, context, key, body) for body in bodies])


def judge(attempts: Sequence[Attempt], content: bytes | None) -> Counter[str]:
    """Return what was wrong with a round, given what is at the key afterwards; empty if nothing was.

    A racer whose put failed once, and was then refused, may have won: its answer was lost. So a round without a clean
    winner is right if the content is such a racer's.
    """
    problems: Counter[str] = Counter()
    winners = [attempt.body for attempt in attempts if attempt.outcome == "won"]
    unsure = [attempt.body for attempt in attempts if attempt.unsure]
    if len(winners) > 1:
        problems["rounds with more than one winner"] += 1
    elif winners and content != winners[0]:
        problems["rounds with the winner's bytes replaced"] += 1
    elif not winners and content not in unsure:
        problems["rounds without a winner"] += 1
    refused = [attempt.read_back for attempt in attempts if attempt.outcome == "refused"]
    if any(seen is None or seen != content for seen in refused) and len(winners) <= 1:
        problems["rounds in which a loser did not see the winner's bytes"] += 1
    return problems


def content_of(store: Store, key: str) -> bytes | None:
    """Return an object's bytes; None if it is not there."""
    try:
        return store.get(key, max_bytes=MOST_BYTES)
    except NotFound:
        return None


def _attempt(context: Context, key: str, body: bytes) -> Attempt:
    """Create the key, as a writer does: an unavailable store is asked again, a refusal is read back."""
    began = context.clock()
    unsure = False
    for attempt in range(_ATTEMPTS):
        try:
            context.bare.put(key, body, if_absent=True)
        except AlreadyExists:
            return Attempt(body, "refused", unsure, content_of(context.observer, key), context.clock() - began)
        except StoreUnavailable:
            unsure = True
            context.pause(context.rng.uniform(0.0, _FIRST_PAUSE_S * 2**attempt))
        else:
            return Attempt(body, "won", unsure, None, context.clock() - began)
    return Attempt(body, "gave up", unsure, None, context.clock() - began)
