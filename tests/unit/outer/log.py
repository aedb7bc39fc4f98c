"""An outer log in memory: records that follow each other, as members append them."""

from __future__ import annotations

import itertools
from typing import Any

from blake3 import blake3

from pulse_registry.outer.state import OuterState
from pulse_schemas import ObjectRef
from pulse_schemas.outer import (
    CheckpointRecord,
    CloseRecord,
    ContributeRecord,
    DeleteRoundsRecord,
    JoinRecord,
    LeaveRecord,
    MergedRecord,
    OuterRecord,
    Rates,
    RatesRecord,
    RestartRecord,
    RetireRoundsRecord,
    StartRecord,
    unseal_outer_record,
)

RATES = Rates(inner_steps=8, rate=0.7, momentum=0.9)
BASE, ANEW = "0" * 32, "a" * 32


class Log:
    """Folds what is appended, and keeps it.

    Attributes:
        state: of all records.
        records: in order, sealed.
        voids: what each record's fold said.
    """

    def __init__(self, **start: Any) -> None:
        self.state, self.records, self.voids = OuterState("run"), list[bytes](), list[str | None]()
        self._ids = itertools.count(1)
        given: dict[str, Any] = {
            "version": 4, "layout": "0" * 64, "digest": BASE, "rates": RATES, "gain": 7.0, "values": "levels",
            "exponent": -20, "quorum": 1, "patience": 2, "weighting": "equal",
        }  # fmt: skip
        self.append(StartRecord, **(given | start))

    def append(self, kind: type[OuterRecord], **fields: Any) -> str | None:
        """Append a record, and return why it is void; None: it counts."""
        common: dict[str, Any] = {
            "run": "run", "seq": self.state.seq + 1, "write_id": f"{next(self._ids):032x}",
            "previous": self.state.last, "created_at": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip
        record: Any = kind(**(common | fields))
        sealed = record.seal()
        assert unseal_outer_record(sealed) == record
        void = self.state.advance(record, blake3(sealed).hexdigest())
        self.records.append(sealed)
        self.voids.append(void)
        return void

    def fold(self, sealed: bytes) -> None:
        """Fold a record of another log."""
        self.state.advance(unseal_outer_record(sealed), blake3(sealed).hexdigest())

    def join(self, member: str) -> str:
        """Let a member begin a term, and return that."""
        self.append(JoinRecord, member=member)
        return self.state.members[member].term

    def contribute(self, member: str, *, term: str | None = None, **fields: Any) -> str | None:
        """Let a member contribute to the open round."""
        given: dict[str, Any] = {"round": self.state.open, "base": BASE, "steps": 8, "exponent": -20, "entries": 0}
        held = self.state.members.get(member)
        given |= {"member": member, "object": None, "term": term or ("f" * 32 if held is None else held.term)}
        return self.append(ContributeRecord, **(given | fields))

    def close(self, number: int | None = None) -> str | None:
        """Close a round, the open one if None."""
        return self.append(CloseRecord, round=self.state.open if number is None else number)

    def leave(self, member: str, term: str | None = None) -> str | None:
        """Let a member leave."""
        return self.append(LeaveRecord, member=member, term=term or self.state.members[member].term)

    def change(self, number: int, rates: Rates) -> str | None:
        """Let rounds from one on be of other rates."""
        return self.append(RatesRecord, round=number, rates=rates)

    def checkpoint(self, number: int) -> str | None:
        """Name a checkpoint of a round."""
        stored = self._object(f"checkpoint/{number:012d}")
        return self.append(CheckpointRecord, round=number, theta=BASE, momentum=BASE, object=stored, parts=100)

    def merged(self, number: int, exponent: int = -20) -> str | None:
        """Name the merged contributions of a round."""
        return self.append(MergedRecord, round=number, exponent=exponent, entries=3, object=self._object("merged"))

    def send(self, member: str) -> str | None:
        """Let a member contribute levels to the open round."""
        return self.contribute(member, entries=3, object=self._object("contribution"))

    def restart(self, number: int) -> str | None:
        """Let rounds begin anew after one."""
        return self.append(RestartRecord, round=number, digest=ANEW)

    def retire(self, number: int) -> str | None:
        """Retire what leads to a round."""
        return self.append(RetireRoundsRecord, round=number)

    def delete(self, number: int) -> str | None:
        """Tell that what was retired up to a round was deleted."""
        return self.append(DeleteRoundsRecord, round=number)

    def _object(self, what: str) -> ObjectRef:
        return ObjectRef(key=f"objects/{what}-{next(self._ids):032x}", size=9, blake3="0" * 64)


def refold(records: list[bytes], *, whole: bool = False) -> OuterState:
    """Fold sealed records anew."""
    state = OuterState("run", whole=whole)
    for sealed in records:
        state.advance(unseal_outer_record(sealed), blake3(sealed).hexdigest())
    return state
