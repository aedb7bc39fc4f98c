"""Snapshot of an outer log: what its records up to one say, so that joining stays O(new)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pulse_schemas.base import Count, Hash, Many, RunName, Schema, WriteId
from pulse_schemas.home import HomeEntry
from pulse_schemas.outer import (
    CheckpointRecord,
    ContributeRecord,
    Exponent,
    Member,
    MergedRecord,
    Rates,
    RestartRecord,
    Round,
    StartRecord,
)


class RatesFrom(Schema):
    """Rounds from ``round`` on are of these rates."""

    round: Round
    rates: Rates


class MemberEntry(Schema):
    """A member's newest term: see `JoinRecord`.

    ``since``: the first round that waits for it. ``missed``: closed rounds, one after the other, without it.
    ``newest``: write id of its newest contribution that counts, and ``newest_round`` which one that was to.
    """

    member: Member
    term: WriteId
    since: Round
    missed: Count
    left: bool
    newest: WriteId | None
    newest_round: Count


class RoundEntry(Schema):
    """A round that record ``seq`` ended, of ``members``, with these contributions in their order."""

    round: Round
    rates: Rates
    contributions: Many[ContributeRecord]
    members: Many[Member]
    seq: Count


class RetiredRounds(Schema):
    """Record ``seq`` retired what leads to ``round``, which was not deleted yet."""

    round: Round
    seq: Count


OuterSnapshotFormat = Literal["pulse-outer-snapshot/1", "pulse-outer-snapshot/2", "pulse-outer-snapshot/3"]


def outer_snapshot_format(home: HomeEntry | None, restart: RestartRecord | None) -> OuterSnapshotFormat:
    """Return the one format of an outer snapshot: the third if rounds began anew, the second if they have moved."""
    if restart is not None:
        return "pulse-outer-snapshot/3"
    return "pulse-outer-snapshot/1" if home is None else "pulse-outer-snapshot/2"


class OuterSnapshot(Schema):
    """All that the records 0..seq say of rounds behind the last checkpoint but one, and of members.

    ``last`` is the BLAKE3 of the sealed bytes of record ``seq``. ``dropped``: rounds up to it are not told of.
    """

    run: RunName
    seq: Count
    last: Hash
    start: StartRecord
    rates: Many[RatesFrom]
    members: Many[MemberEntry]
    dropped: Count
    rounds: Many[RoundEntry]
    open: Many[ContributeRecord]
    middle: Exponent
    checkpoints: Many[CheckpointRecord]
    merged: Many[MergedRecord]
    retired: Count
    retirements: Many[RetiredRounds]
    deleted: Count
    home: HomeEntry | None = None
    restart: RestartRecord | None = None
    format: OuterSnapshotFormat = Field(
        default_factory=lambda data: outer_snapshot_format(data.get("home"), data.get("restart"))
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        right = outer_snapshot_format(self.home, self.restart)
        if self.format != right:
            raise ValueError(f"a snapshot of these rounds is of format {right!r}")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Rounds that have not moved, nor begun anew, are written as they were before they could.
        fields: dict[str, Any] = serialize(self)
        for name in ("home", "restart"):
            if getattr(self, name) is None:
                fields.pop(name, None)
        return fields
