"""What is told of outer rounds: by the service, on its page, and on the command line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pulse_registry.errors import NotFound
from pulse_registry.outer.state import Membership, OuterState
from pulse_schemas.api import MemberBody, OuterBody, RoundBody, RoundPart, Standing
from pulse_schemas.outer import ContributeRecord


def outer_body(state: OuterState, cells: int | None, limit: int) -> OuterBody:
    """Return who trains, the open round, and the newest of those that have ended.

    Args:
        state: of the outer log.
        cells: of a version; None: not known.
        limit: so many rounds at most.

    Raises:
        NotFound: the run has no outer rounds.
    """
    start = state.start
    if start is None:
        raise NotFound(f"run {state.run!r} has no outer rounds")
    closed = state.closed[-limit:] if limit else []
    rounds = [_round(one.number, start.version, one.contributions, one.members, ended=True) for one in closed]
    now = _round(state.open, start.version, state.contributions, state.awaited(), ended=False)
    last = {part.member: (one.round, part) for one in (*rounds, now) for part in one.parts}
    return OuterBody(
        run=state.run,
        seq=state.seq,
        first=start.version,
        cells=cells,
        inner_steps=state.rates.inner_steps,
        rate=state.rates.rate,
        momentum=state.rates.momentum,
        quorum=start.quorum,
        patience=start.patience,
        members=tuple(
            _member(name, one, _standing(state, name, one), last.get(name))
            for name, one in sorted(state.members.items())
        ),
        open=now,
        rounds=tuple(rounds),
    )


def _round(
    number: int, first: int, contributions: Mapping[str, ContributeRecord], members: Iterable[str], *, ended: bool
) -> RoundBody:
    return RoundBody(
        round=number,
        version=first + number,
        ended=ended,
        parts=tuple(_part(one) for one in contributions.values()),
        late=tuple(sorted(set(members) - contributions.keys())),
    )


def _part(record: ContributeRecord) -> RoundPart:
    return RoundPart(
        member=record.member,
        steps=record.steps,
        entries=record.entries,
        nbytes=0 if record.object is None else record.object.size,
        created_at=record.created_at,
    )


def _member(name: str, one: Membership, standing: Standing, last: tuple[int, RoundPart] | None) -> MemberBody:
    return MemberBody(
        member=name,
        term=one.term,
        since=one.since,
        missed=one.missed,
        standing=standing,
        last_round=None if last is None else last[0],
        last=None if last is None else last[1],
    )


def _standing(state: OuterState, name: str, one: Membership) -> Standing:
    if one.left:
        return "left"
    if name in state.contributions:
        return "contributed"
    if name in state.awaited():
        return "awaited"
    return "later" if one.since > state.open else "missed"
