"""The records of the outer log: trainers of one policy join, contribute to rounds, and leave.

Version ``start.version + r`` of the run is the policy after round r; round 1 is the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from pulse_schemas.base import (
    Count,
    Digest,
    Fault,
    Hash,
    Place,
    RunName,
    Schema,
    SchemaError,
    Timestamp,
    WriteId,
    load_json,
    sealed_body,
)
from pulse_schemas.objects import ObjectRef, Values

MOST_MEMBERS = 256
"""Of a run at one time: with more, sums of levels could leave 64 bits."""
Member = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="name of a trainer")]
Round = Annotated[int, Field(ge=1, lt=2**31)]
LEAST_EXPONENT, MOST_EXPONENT = -120, 60
Exponent = Annotated[int, Field(ge=LEAST_EXPONENT, le=MOST_EXPONENT, description="a level is so many times 2 to this")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_STEPS = 2**16 - 1
"""That a contribution may say it is of."""
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Weighting = Literal["equal", "steps"]


class Rates(Schema):
    """What every member's outer step is made with.

    ``inner_steps``: of each member before it contributes. ``rate`` and ``momentum``: of SGD with Nesterov's momentum.
    """

    inner_steps: Steps
    rate: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)]


class _Fields(Schema):
    """Fields of every record. ``previous``: BLAKE3 of the sealed bytes of record ``seq - 1``; none for seq 0."""

    run: RunName
    seq: Count
    write_id: WriteId
    previous: Hash | None
    created_at: Timestamp

    @model_validator(mode="after")
    def _chained(self) -> Self:
        if (self.previous is None) != (self.seq == 0):
            raise ValueError("exactly record 0 has no previous record")
        return self


class _Common(_Fields):
    """What the first format has always had."""

    format: Literal["pulse-outer/1"] = "pulse-outer/1"


class StartRecord(_Common):
    """Trainers work together from ``version`` on, whose weights are of ``layout`` and have ``digest``.

    ``gain``: of the gate; None: all cells pass. ``values``: that contributions have; exponents say nothing of float32
    ones. ``exponent``: about which the first round's levels lie. ``quorum``: contributions that a round needs.
    ``patience``: closed rounds that a member may miss before nobody waits for it.
    """

    kind: Literal["start"] = "start"
    version: Count
    layout: Hash
    digest: Digest
    rates: Rates
    gain: Positive | None
    values: Values
    exponent: Exponent
    quorum: Annotated[int, Field(ge=1, le=MOST_MEMBERS)]
    patience: Annotated[int, Field(ge=1, lt=2**16)]
    weighting: Weighting

    @model_validator(mode="after")
    def _first(self) -> Self:
        if self.seq:
            raise ValueError("an outer log starts with record 0")
        return self


class JoinRecord(_Common):
    """A member begins a term, which the record's ``write_id`` names; an earlier one of its name is fenced."""

    kind: Literal["join"] = "join"
    member: Member


class ContributeRecord(_Common):
    """A member's part of a round: ``entries`` levels in ``object``; none where nothing passes the gate.

    ``base``: digest of the weights that it worked from. ``steps``: that it made.
    """

    kind: Literal["contribute"] = "contribute"
    round: Round
    member: Member
    term: WriteId
    base: Digest
    steps: Steps
    exponent: Exponent
    entries: Count
    object: ObjectRef | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.object is None) != (self.entries == 0):
            raise ValueError("exactly a contribution without entries has no object")
        return self


class CloseRecord(_Common):
    """The round ends with the contributions before this record."""

    kind: Literal["close"] = "close"
    round: Round


class LeaveRecord(_Common):
    """A member's term ends: nobody waits for it."""

    kind: Literal["leave"] = "leave"
    member: Member
    term: WriteId


class RatesRecord(_Common):
    """Rounds from ``round`` on are of other rates."""

    kind: Literal["rates"] = "rates"
    round: Round
    rates: Rates


class CheckpointRecord(_Common):
    """Weights and momentum after ``round``: ``object`` is the head, which names ``parts`` bytes of groups beside it.

    ``theta``, ``momentum``: state digests of both, as float32 cells, which every member that holds the round compares.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    round: Round
    object: ObjectRef
    parts: Count
    theta: Digest
    momentum: Digest


class MergedRecord(_Common):
    """The contributions to ``round``, added up: ``entries`` totals in steps of 2 to ``exponent``."""

    kind: Literal["merged"] = "merged"
    round: Round
    exponent: Exponent
    entries: Annotated[int, Field(ge=1, lt=2**63)]
    object: ObjectRef


class RetireRoundsRecord(_Common):
    """What leads to ``round`` is not to be read any more: contributions up to it, and checkpoints before it.

    There is a checkpoint of it, and a newer one.
    """

    kind: Literal["retire"] = "retire"
    round: Round


class DeleteRoundsRecord(_Common):
    """What was retired up to ``round`` was deleted from the store."""

    kind: Literal["delete"] = "delete"
    round: Round


class MoveRoundsRecord(_Fields):
    """The run has moved, by the `MoveRecord` of the same ``write_id``: all terms end, and rounds go on at ``to``."""

    kind: Literal["move"] = "move"
    to: Place
    format: Literal["pulse-outer/2"] = "pulse-outer/2"


class RestartRecord(_Fields):
    """Rounds begin anew, after ``round``: from the weights of version ``start.version + round``, which have ``digest``.

    Somebody else pushed it, and maybe those before it. The momentum is 0; all terms end; what led there is retired.
    """

    kind: Literal["restart"] = "restart"
    round: Round
    digest: Digest
    format: Literal["pulse-outer/3"] = "pulse-outer/3"


OuterRecord = (
    StartRecord
    | JoinRecord
    | ContributeRecord
    | CloseRecord
    | LeaveRecord
    | RatesRecord
    | CheckpointRecord
    | MergedRecord
    | RetireRoundsRecord
    | DeleteRoundsRecord
    | MoveRoundsRecord
    | RestartRecord
)
OUTER_KINDS: Mapping[str, type[OuterRecord]] = {
    kind.model_fields["kind"].default: kind for kind in get_args(OuterRecord)
}
"""The class of each kind of record, in the order of the union."""


def unseal_outer_record(data: bytes) -> OuterRecord:
    """Read one sealed record of the outer log, of any kind.

    Raises:
        SchemaError: damaged, or (``fault=UNSUPPORTED``) of a format or kind that this release does not know.
    """
    content = sealed_body(data)
    body = load_json(content)
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in OUTER_KINDS:
        fault = Fault.UNSUPPORTED if kind and isinstance(kind, str) else Fault.CORRUPT
        raise SchemaError(f"outer record kind {kind!r:.100} is not known here", fault)
    return OUTER_KINDS[kind].parse(content)
