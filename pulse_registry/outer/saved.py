"""The saved state of a member: what it has not sent, for a checkpoint of its trainer, and whether that is still so.

A residual goes out once. It is taken up again only if the log has no contribution of the member after those that the
saved state knows of; else a part of it was sent, and all of it is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from pulse_kernels.protocol import Floats
from pulse_registry.errors import InvalidArgument, LayoutMismatch
from pulse_registry.outer.state import OuterState

FORMAT: Final = "pulse-outer-state/1"


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a member has not sent, at one moment.

    Attributes:
        run, member: whose it is.
        layout: id of that of the versions.
        groups: numbers of those that this rank keeps, of a sharded model; else ``all``.
        start: write id of the record by which the rounds began, first or anew.
        round: the newest one whose step the weights had made.
        steps: inner steps since, that were counted.
        newest: write id of the newest contribution that counts and that the residual is without; empty: none does.
        attempt: write id of a contribution of which it was not known whether it counts; empty: there was none.
        residual: float32, of all cells, with what the weights have moved.
        rest: the same, where the attempt counts; None without one.
    """

    run: str
    member: str
    layout: str
    groups: str
    start: str
    round: int
    steps: int
    newest: str
    attempt: str
    residual: Floats
    rest: Floats | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return texts, whole numbers and arrays by name: torch tensors, where torch is loaded."""
        torch = sys.modules.get("torch")
        found: dict[str, Any] = {"format": FORMAT}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, np.ndarray) and torch is not None:
                value = torch.from_numpy(value)
            if value is not None:
                found[name] = value
        return found

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` has returned; tensors of any device, or arrays.

        Raises:
            InvalidArgument: it is something else.
        """
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            raise InvalidArgument(f"this is not what state_dict() of outer rounds returns (format {FORMAT!r})")
        fields: dict[str, Any] = {name: state[name] for name in cls.__slots__ if name in state}
        try:
            for name in {"residual", "rest"} & fields.keys():
                fields[name] = _floats(name, fields[name])
            for name in ("round", "steps"):
                fields[name] = int(fields[name])
            for name in ("run", "member", "layout", "groups", "start", "newest", "attempt"):
                fields[name] = str(fields[name])
            saved = cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"the saved state of outer rounds is not whole: {error!r}") from error
        if saved.round < 0 or saved.steps < 0 or (saved.attempt != "") != (saved.rest is not None):
            raise InvalidArgument("the saved state of outer rounds contradicts itself: it was changed, or cut")
        return saved

    def check_owner(self, run: str, member: str) -> None:
        """Refuse the state of another run or member.

        Raises:
            InvalidArgument: it is.
        """
        if (self.run, self.member) != (run, member):
            raise InvalidArgument(
                f"the saved state is of member {self.member!r} of run {self.run!r}, not of {member!r} of {run!r}: what "
                "it has not sent is that one's to send"
            )

    def check(self, layout: str, groups: str, cells: int, state: OuterState) -> None:
        """Refuse what can't be of these rounds.

        Args:
            layout: id of that of the versions.
            groups: that this rank keeps.
            cells: of these.
            state: of the rounds.

        Raises:
            LayoutMismatch: it is of other tensors.
            InvalidArgument: it is of other rounds.
        """
        if self.layout != layout:
            raise LayoutMismatch(
                f"the saved state is of layout {self.layout}, and the rounds of run {self.run!r} are of {layout}: "
                "begin without it"
            )
        if self.groups != groups:
            raise LayoutMismatch(
                f"the saved state is of groups {self.groups}, and this rank keeps {groups}: begin with as many "
                "ranks as there were, sharded alike, or without it"
            )
        if any(len(one) != cells for one in (self.residual, self.rest) if one is not None):
            raise LayoutMismatch(f"the saved state is not of {cells:,} cells, as the layout is: begin without it")
        if state.start is None or (state.restart is None and state.start.write_id != self.start):
            raise InvalidArgument(
                f"the saved state is of other rounds than those that run {self.run!r} has now: begin without it"
            )
        if self.round >= state.open:
            raise InvalidArgument(
                f"the saved state is of round {self.round}, and run {self.run!r} is at round {state.open}: this is not "
                "its log, or an older copy of it"
            )

    def unsent(self, state: OuterState) -> Floats | None:
        """Return the residual to go on with; None: a part of it was sent since, or rounds began anew, elsewhere.

        Args:
            state: of a log in which the member's new term has begun: nothing of an older one can come to count now.
        """
        if self.start != state.beginning.write_id:
            return None
        newest = state.members[self.member].newest
        if (newest or "") == self.newest:
            return self.residual
        return self.rest if newest == self.attempt else None


def _floats(name: str, value: Any) -> Floats:
    """Return a tensor's or an array's cells, as one's own."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    found: Floats = np.array(value)
    if found.dtype != np.float32 or found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError(f"{name} is not a row of finite float32 numbers")
    return found
