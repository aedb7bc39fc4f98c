"""What happens in a run of outer rounds. Programs tell it as JSON, a document a line; times are since the epoch."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Change = Literal["started", "stopped", "resumed", "killed", "returned"]


@dataclass(frozen=True, slots=True)
class Changed:
    """Something was done to a trainer."""

    trainer: str
    change: Change
    at: float


@dataclass(frozen=True, slots=True)
class Joined:
    """A trainer has joined at a round; ``unsent``: cells of which it holds a part that it has not sent yet."""

    trainer: str
    round: int
    unsent: int
    cells: int
    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A trainer has made the outer step of a round.

    Attributes:
        members: that contributed; ``late``: that it was of, too.
        counts: whether this trainer's part came in time.
        entries, nbytes: that it has sent, the parts that came too late included.
        reward: mean over its completions since the round before.
        inner_s, outer_s: seconds that it has trained, and that the round has taken besides.
        sha256: of its weights, rounded to BF16.
        rss: bytes of memory that it has had at most.
    """

    trainer: str
    round: int
    members: Sequence[str]
    late: Sequence[str]
    counts: bool
    entries: int
    nbytes: int
    cells: int
    reward: float
    inner_s: float
    outer_s: float
    sha256: str
    rss: int
    at: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A trainer is done; SHA-256 of its FP32 weights, of the momentum, and of the weights as BF16."""

    trainer: str
    round: int
    theta: str
    momentum: str
    sha256: str
    at: float


@dataclass(frozen=True, slots=True)
class Pulled:
    """A worker holds a version; ``sha256``: of its cells."""

    worker: str
    version: int
    nbytes: int
    seconds: float
    sha256: str
    at: float


Event = Changed | Joined | Ended | Trained | Pulled
_TOLD = {kind.__name__: kind for kind in (Joined, Ended, Trained, Pulled)}


def tell(event: Event) -> None:
    """Print an event for the program that has started this one."""
    print(json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}), flush=True)


def read(document: Mapping[str, Any]) -> Event | None:
    """Return the event that a document tells of; None: it is something else."""
    kind = _TOLD.get(str(document.get("event")))
    if kind is None:
        return None
    return kind(**{name: value for name, value in document.items() if name != "event"})


def now() -> float:
    """Return the time."""
    return time.time()
