"""An outer log's state as a snapshot says it, and back. No I/O."""

from __future__ import annotations

from itertools import pairwise

from pulse_registry.errors import CorruptObject
from pulse_registry.outer.state import ClosedRound, Membership, OuterState
from pulse_schemas.outer import MOST_MEMBERS
from pulse_schemas.outer_snapshot import MemberEntry, OuterSnapshot, RatesFrom, RetiredRounds, RoundEntry


def snapshot_of(state: OuterState) -> OuterSnapshot | None:
    """Return all that ``state_of`` needs; None of a log that has not started."""
    if state.start is None or state.last is None:
        return None
    return OuterSnapshot(
        run=state.run,
        seq=state.seq,
        last=state.last,
        start=state.start,
        rates=tuple(RatesFrom(round=first, rates=rates) for first, rates in sorted(state.rates_from.items())),
        members=tuple(_member_entry(name, one) for name, one in sorted(state.members.items())),
        dropped=state.dropped,
        rounds=tuple(map(_round_entry, state.closed)),
        open=tuple(state.contributions.values()),
        middle=state.middle,
        checkpoints=tuple(state.checkpoints),
        merged=tuple(record for _, record in sorted(state.merged.items())),
        retired=state.retired,
        retirements=tuple(RetiredRounds(round=round_, seq=seq) for round_, seq in state.retirements.items()),
        deleted=state.deleted,
        home=state.home,
        restart=state.restart,
    )


def state_of(snapshot: OuterSnapshot) -> OuterState:
    """Return the state that a snapshot tells of, whose seal was checked, and that it is of the log.

    Raises:
        CorruptObject: it contradicts itself: no fold of records can have made it.
    """
    wrong = _violation(snapshot)
    if wrong is not None:
        raise CorruptObject(f"run {snapshot.run!r}: the snapshot of outer record {snapshot.seq} is not valid: {wrong}")
    state = OuterState(snapshot.run, snapshot.seq, snapshot.last, snapshot.start)
    state.members = {
        one.member: Membership(one.term, one.since, one.missed, one.left, one.newest, one.newest_round)
        for one in snapshot.members
    }
    state.closed = [
        ClosedRound(
            one.round, one.rates, {part.member: part for part in one.contributions}, frozenset(one.members), one.seq
        )
        for one in snapshot.rounds
    ]
    state.contributions = {part.member: part for part in snapshot.open}
    state.middle, state.dropped = snapshot.middle, snapshot.dropped
    state.checkpoints = list(snapshot.checkpoints)
    state.merged = {record.round: record for record in snapshot.merged}
    state.retired, state.deleted = snapshot.retired, snapshot.deleted
    state.retirements = {one.round: one.seq for one in snapshot.retirements}
    state.home, state.restart = snapshot.home, snapshot.restart
    state.rates_from = {one.round: one.rates for one in snapshot.rates}
    return state


def _member_entry(name: str, one: Membership) -> MemberEntry:
    return MemberEntry(
        member=name,
        term=one.term,
        since=one.since,
        missed=one.missed,
        left=one.left,
        newest=one.newest,
        newest_round=one.newest_round,
    )


def _round_entry(one: ClosedRound) -> RoundEntry:
    return RoundEntry(
        round=one.number,
        rates=one.rates,
        contributions=tuple(one.contributions.values()),
        members=tuple(sorted(one.members)),
        seq=one.seq,
    )


def _violation(snapshot: OuterSnapshot) -> str | None:
    """Return in words the first thing in which a snapshot contradicts itself, or None."""
    rounds = [one.round for one in snapshot.rounds]
    open_ = snapshot.dropped + len(rounds) + 1
    if rounds != list(range(snapshot.dropped + 1, open_)):
        return "its rounds are out of their place"
    parts = [(one.round, one.contributions) for one in snapshot.rounds] + [(open_, snapshot.open)]
    for number, contributions in parts:
        names = [part.member for part in contributions]
        if any(part.round != number for part in contributions) or len(set(names)) != len(names):
            return f"the contributions to round {number} are not those of one round"
    begun = 0 if snapshot.restart is None else snapshot.restart.round
    checkpoints = [record.round for record in snapshot.checkpoints]
    if any(a >= b for a, b in pairwise([begun, *checkpoints])) or max(checkpoints, default=0) >= open_:
        return "its checkpoints are out of their place"
    spare = checkpoints[-2] if len(checkpoints) > 1 else begun
    if snapshot.dropped != spare:
        return f"it does not tell of all rounds after round {spare}"
    if not max(begun, snapshot.deleted) <= snapshot.retired <= spare or any(
        not snapshot.deleted < one.round <= snapshot.retired for one in snapshot.retirements
    ):
        return "what it says was retired and was deleted does not fit"
    if any(not snapshot.dropped < record.round < open_ for record in snapshot.merged):
        return "it names merged contributions of a round that it does not tell of"
    seqs = [one.seq for one in snapshot.rounds] + [one.seq for one in snapshot.retirements]
    seqs += [one.seq for one in snapshot.checkpoints] + [one.seq for one in snapshot.merged]
    seqs += [one.seq for one in (snapshot.home, snapshot.restart) if one is not None]
    if max(seqs, default=0) > snapshot.seq:
        return "it tells of records after its last one"
    if not snapshot.rates or snapshot.rates[0].round != 1:
        return "it does not tell the rates of round 1"
    names = [one.member for one in snapshot.members]
    if len(set(names)) != len(names) or sum(not one.left for one in snapshot.members) > MOST_MEMBERS:
        return "its members are not those of a run"
    return None
