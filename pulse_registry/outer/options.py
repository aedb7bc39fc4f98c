"""Options of outer rounds: those that all members give alike, and those of this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from pulse_registry.errors import InvalidArgument
from pulse_schemas import faults
from pulse_schemas.objects import Values
from pulse_schemas.outer import Member, Rates, StartRecord, Weighting

_FIRST_EXPONENT: Final = -20
"""About which the first round's levels lie, 12 either way: of learning rates from 1e-9 to 1e-2, in 8 steps."""
_ANY_START: Final = {
    "run": "run", "seq": 0, "write_id": "0" * 32, "previous": None, "created_at": "2026-01-01T00:00:00.000Z",
    "version": 0, "layout": "0" * 64, "digest": "0" * 32,
}  # fmt: skip
"""What a start says that is no option."""


@dataclass(frozen=True, slots=True)
class OuterOptions:
    """How a trainer takes part in rounds.

    Attributes:
        member: name of this trainer, its own among all.
        inner_steps: of the inner optimizer in a round.
        lr, momentum: of the outer optimizer, SGD with Nesterov's momentum.
        gain: of the gate, which passes a cell where BF16(theta) and BF16(theta - gain s) are other bits. 1 is the rule
            of the PULSE paper; ``lr / (1 - momentum)`` is how far the outer optimizer moves a cell in the end, and the
            default twice that, of the other defaults: so little waits (docs/benchmarks.md). None: all cells are sent.
        values: that are sent: ``levels``, small integers, or ``float32`` ones, the payload of the PULSE paper.
        quorum: contributions that a round needs.
        patience: closed rounds that a member may miss before nobody waits for it.
        weighting: of contributions: ``equal``, or by the ``steps`` that each has made.
        grace_s: seconds from the quorum on after which a round is closed without the late.
        silence_s: seconds without a new record of any member after which this one gives up a round that lacks its
            quorum (``QuorumLost``); None: it waits for ever.
        takeover_s: seconds that each member leaves to the one before it to push a round's version.
        poll_s: between two looks at the log.
    """

    member: str
    inner_steps: int = 8
    lr: float = 0.7
    momentum: float = 0.9
    gain: float | None = 14.0
    quorum: int = 1
    patience: int = 3
    weighting: Weighting = "equal"
    grace_s: float = 60.0
    takeover_s: float = 30.0
    poll_s: float = 0.5
    values: Values = "levels"
    silence_s: float | None = None

    def check(self) -> None:
        """Check all options, before anybody hears of this member.

        Raises:
            InvalidArgument: one is not valid.
        """
        self.start(_ANY_START)
        try:
            TypeAdapter(Member).validate_python(self.member)
        except ValueError as error:
            raise InvalidArgument(
                f"member {self.member!r}: a name has up to 64 of a-z, 0-9, '.', '_' and '-', and begins with a letter "
                "or digit"
            ) from error
        given = {"grace": self.grace_s, "takeover_s": self.takeover_s, "poll_s": self.poll_s}
        for name, seconds in (given | ({} if self.silence_s is None else {"silence": self.silence_s})).items():
            if not seconds >= 0:
                raise InvalidArgument(f"{name} is {seconds}: it is a number of seconds, 0 or more")

    def start(self, facts: Mapping[str, Any]) -> StartRecord:
        """Return the record that starts rounds.

        Args:
            facts: what it says beside these options.

        Raises:
            InvalidArgument: an option is not valid.
        """
        try:
            return StartRecord(
                **facts,
                rates=self.rates(),
                gain=None if self.gain is None else float(self.gain),
                values=self.values,
                exponent=_FIRST_EXPONENT,
                quorum=self.quorum,
                patience=self.patience,
                weighting=self.weighting,
            )
        except InvalidArgument:
            raise
        except (TypeError, ValueError) as error:
            why = faults(error, "options") if isinstance(error, ValidationError) else error
            raise InvalidArgument(f"the options of outer rounds are not valid: {why}") from error

    def rates(self) -> Rates:
        """Return what outer steps are made with.

        Raises:
            InvalidArgument: one is out of range.
        """
        return rates_of(self.inner_steps, self.lr, self.momentum)


def rates_of(inner_steps: int, lr: float, momentum: float) -> Rates:
    """Return rates of outer steps.

    Raises:
        InvalidArgument: one is out of range.
    """
    try:
        return Rates(inner_steps=inner_steps, rate=float(lr), momentum=float(momentum))
    except ValueError as error:
        raise InvalidArgument(
            f"inner_steps {inner_steps}, lr {lr}, momentum {momentum}: inner steps are from 1 to 65,535, lr is above "
            "0, and momentum from 0 to below 1"
        ) from error
