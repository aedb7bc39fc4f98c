"""What goes wrong, and how often: drawn anew for each seed, so that rare combinations have their day."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pulse_registry.store.base import Verb


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances for each store operation.

    Attributes:
        crash: the process dies, before or after the operation took effect.
        fail: the operation does not happen, and says so.
        lose: it happens, and its answer is lost.
        straggle: a put or delete is said to have failed, and takes effect some time later, whoever lives then.
        stall: the process stops, before or after the operation, for minutes or hours.
        flip: one bit of what was read is wrong.
        stale: the hint that is read is an old one, or nonsense, or not there.
        latency: seconds that an operation takes, at most.
        skew: a process' clock is wrong by so many seconds at most.
        stalled: only operations of this kind stall; None: all.
    """

    crash: float = 0.0
    fail: float = 0.0
    lose: float = 0.0
    straggle: float = 0.0
    stall: float = 0.0
    flip: float = 0.0
    stale: float = 0.0
    latency: float = 0.05
    skew: float = 0.0
    stalled: Verb | None = None

    @property
    def trouble(self) -> float:
        """The chance that any of the first six happens."""
        return self.crash + self.fail + self.lose + self.straggle + self.stall + self.flip

    def for_ranks(self, ranks: int) -> Weather:
        """Return the weather in which a push of so many ranks fails about as often as one of few."""
        share = min(1.0, 9 / max(1, ranks))
        milder = (self.crash, self.fail, self.lose, self.straggle, self.stall, self.flip)
        return Weather(*(share * chance for chance in milder), self.stale, self.latency, self.skew, self.stalled)

    @classmethod
    def drawn(cls, rng: random.Random) -> Weather:
        """Draw a day's weather: each kind of trouble is off on some days, and heavy on some."""

        def chance(highest: float) -> float:
            return rng.choice((0.0, 0.1, 0.3, 1.0)) * highest

        return cls(
            crash=chance(0.004),
            fail=chance(0.02),
            lose=chance(0.02),
            straggle=chance(0.01),
            stall=chance(0.002),
            flip=chance(0.01),
            stale=chance(0.5),
            latency=rng.choice((0.001, 0.05, 2.0)),
            skew=rng.choice((0.0, 600.0)),
        )
