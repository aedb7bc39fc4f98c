"""Finding of one check, in words for the person who has to act on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pulse_registry.errors import InvalidArgument

Evidence = Mapping[str, int | float | str]


class Level(StrEnum):
    """How a finding counts, from the least to the most severe."""

    SKIPPED = "skipped"
    """The check does not apply to this store."""
    OK = "ok"
    WARN = "warn"
    """The log is safe, but something works less well, or protects less, than it should."""
    UNSAFE = "unsafe"
    """The contract is broken, or could not be shown to hold."""

    @property
    def rank(self) -> int:
        """Severity as a number."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        level: how it counts.
        verdict: what is so, in one sentence.
        evidence: counts and figures behind the verdict.
        advice: what to do; never empty for `warn` and `unsafe`.
        check: the name of the check, which the examination fills in.
    """

    level: Level
    verdict: str
    evidence: Evidence = field(default_factory=dict)
    advice: str = ""
    check: str = ""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: something is wrong, and nothing says what to do about it.
        """
        if self.level.rank >= Level.WARN.rank and not self.advice:
            raise InvalidArgument(f"the finding {self.verdict!r} is {self.level} and says no way out")


def ok(verdict: str, evidence: Evidence | None = None) -> Finding:
    """Return a finding that all is well."""
    return Finding(Level.OK, verdict, evidence or {})


def skipped(verdict: str) -> Finding:
    """Return a finding that the check does not apply, and why."""
    return Finding(Level.SKIPPED, verdict)


def warn(verdict: str, advice: str, evidence: Evidence | None = None) -> Finding:
    """Return a finding that something is less good than it should be."""
    return Finding(Level.WARN, verdict, evidence or {}, advice)


def unsafe(verdict: str, advice: str, evidence: Evidence | None = None) -> Finding:
    """Return a finding that the contract is broken."""
    return Finding(Level.UNSAFE, verdict, evidence or {}, advice)
