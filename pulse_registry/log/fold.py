"""The fold of a log: each record checked against the rules, then applied to the state. No I/O.

It is the only place where a record gets its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from blake3 import blake3

from pulse_registry.errors import CorruptObject
from pulse_registry.log.rules import is_void, violation
from pulse_registry.log.state import RunState
from pulse_schemas import Record


class Effect(StrEnum):
    """What a record did to a state."""

    APPLIED = "applied"
    VOID = "void"


def advance(state: RunState, record: Record, sealed_hash: str) -> Effect:
    """Fold the next record into a state, in place, in time that depends on the record alone.

    Args:
        state: up to record ``record.seq - 1``.
        record: the next one.
        sealed_hash: BLAKE3 (hex) of the record's sealed bytes.

    Returns:
        VOID for a commit of a fenced writer, which takes its place in the log but counts for nothing.

    Raises:
        CorruptObject: the record breaks a rule of the log; the state is unchanged.
    """
    wrong = violation(state, record)
    if wrong is not None:
        raise CorruptObject(f"run {state.run!r}: record {record.seq} is not valid: {wrong}")
    void = is_void(state, record)
    if not void:
        state.apply(record)
    state.seq, state.last = record.seq, sealed_hash
    return Effect.VOID if void else Effect.APPLIED


def fold(run: str, records: Iterable[Record]) -> RunState:
    """Return the state that ``records``, from record 0 on, make.

    Raises:
        CorruptObject: a record breaks a rule of the log.
    """
    state = RunState(run)
    for record in records:
        advance(state, record, sealed_hash(record.seal()))
    return state


def sealed_hash(sealed: bytes) -> str:
    """Return the hash by which the next record names a record's sealed bytes."""
    return blake3(sealed).hexdigest()
