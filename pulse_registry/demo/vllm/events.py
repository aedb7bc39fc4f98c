"""What happens in a run of the demo, told to the board. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stepped:
    """The trainer has made a step of the optimizer; ``reward``: mean of its completions."""

    step: int
    reward: float
    at: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The trainer has ended; ``sha256``: of its weights, rounded to BF16."""

    sha256: str
    at: float


@dataclass(frozen=True, slots=True)
class Committed:
    """The run has a version."""

    version: int
    step: int
    kind: str
    changed: int
    cells: int
    nbytes: int
    at: float


@dataclass(frozen=True, slots=True)
class Serving:
    """An engine serves, loaded from a version's folder; ``seconds``: that its start took."""

    engine: str
    version: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Followed:
    """A sidecar has brought its engine to a version; ``pause_s``: that the engine stood still."""

    engine: str
    version: int
    before: int | None
    stage_s: float
    pause_s: float
    at: float


@dataclass(frozen=True, slots=True)
class NotFollowed:
    """A sidecar could not change its engine, which serves what it served; it tries again."""

    engine: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``first`` to ``end`` (which is not one of them) of a completion, made with a version's weights."""

    version: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A client has its completion; ``tokens_at``: when each token came."""

    engine: str
    began: float
    tokens_at: Sequence[float]
    spans: Sequence[Span]

    @property
    def longest_gap(self) -> float:
        """Return the longest time between two tokens, in seconds; of fewer than two, 0."""
        return max((b - a for a, b in zip(self.tokens_at, self.tokens_at[1:], strict=False)), default=0.0)


Event = Stepped | Trained | Committed | Serving | Followed | NotFollowed | Completed
