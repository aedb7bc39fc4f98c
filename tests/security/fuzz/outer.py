"""Targets of outer rounds: contributions, the records of their log, and what a service admits to it.

Contributions are read by both backends, which must say the same, and have every hash made to fit, so that what is
refused is the content. A record that is refused leaves the state, or the bucket, as it was.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend
from pulse_registry.errors import (
    AlreadyExists,
    BaseMismatch,
    Conflict,
    CorruptObject,
    InvalidArgument,
    PulseError,
    UnsupportedFormat,
)
from pulse_registry.format.contribution import Contribution
from pulse_registry.log.fold import sealed_hash
from pulse_registry.outer.append_guard import OuterAppendGuard
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.report import outer_body
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.outer.state import OuterState
from pulse_registry.store import PrefixStore
from pulse_schemas import ObjectRef, SchemaError, canonical_json
from pulse_schemas.heads import CheckpointHead
from pulse_schemas.outer import ContributeRecord, unseal_outer_record
from pulse_schemas.outer_snapshot import OuterSnapshot
from tests.security.fuzz.documents import WORDS, document_target, seal
from tests.security.fuzz.mutation import mutate_document
from tests.security.fuzz.patches import mutate_patch, rehashed
from tests.security.fuzz.target import Target, expect
from tests.support.outer_objects import BASE, GEOMETRY, RUN, contribution, every_outer_kind, levels, values, weights
from tests.support.records import DictStore

_KEY = "objects/contribution/fuzzed.safetensors"


def contribution_target(reference: Backend, compiled: Backend) -> Target:
    """Return the target of contributions."""

    def check(data: bytes) -> bool:
        fitted = b"".join(rehashed(data)[:2])
        ref = ObjectRef(key=_KEY, size=len(fitted), blake3=blake3(fitted).hexdigest())
        found = _read(lambda: Contribution.parse(ref, GEOMETRY, fitted))
        if isinstance(found, PulseError):
            return False
        accepted = True
        for number in found.entries:
            group = GEOMETRY.groups[number]
            one = _read(partial(found.decode, reference, group, weights(group)))
            other = _read(partial(found.decode, compiled, group, weights(group)))
            expect(type(one) is type(other), f"group {number}: the reference says {one!r}, the compiled {other!r}")
            if isinstance(one, PulseError):
                accepted = False
                continue
            index, sent = one
            expect(index.tobytes() == other[0].tobytes(), "both decode the same places")
            expect(sent.tobytes() == other[1].tobytes(), "both decode the same levels")
            expect(bool(np.all(np.diff(index.astype(np.int64)) > 0)), "places rise")
            expect(int(index.max()) < group.cells, "no place is beyond the group")
            expect(bool(np.isfinite(sent).all() and sent.all()), "nothing is sent that is no number, or 0")
        return accepted

    seeds = (contribution(), contribution(levels(1)), contribution(values()))
    return Target("contribution", check, seeds, mutate_patch)


def outer_record_target() -> Target:
    """Return the target of outer records."""
    records, states = every_outer_kind(), [OuterState(RUN)]
    for record in records:
        states.append(states[-1].copy())
        states[-1].advance(record, sealed_hash(record.seal()))

    def check(data: bytes) -> bool:
        try:
            record = unseal_outer_record(seal(data))
        except SchemaError:
            return False
        expect(record.seal() == seal(data), "an accepted record encodes back to its bytes")
        taken = [_taken(before, json.loads(data)) for before in states]
        return any(taken)

    return Target("outer-record", check, tuple(one.canonical() for one in records), mutate_document, WORDS)


def checkpoint_head_target() -> Target:
    """Return the target of what a checkpoint says of itself."""
    head = CheckpointHead(layout=GEOMETRY.id, base=BASE, round=3, changed=4, groups=1)
    return document_target("checkpoint-head", CheckpointHead, (head,), sealed=False)


def _taken(before: OuterState, body: dict[str, Any]) -> bool:
    """Offer a record to a state whose next one it says it is."""
    body |= {"run": RUN, "seq": before.seq + 1, "previous": before.last}
    sealed = seal(canonical_json(body))
    try:
        record = unseal_outer_record(sealed)
    except SchemaError:
        return False
    state = before.copy()
    try:
        state.advance(record, sealed_hash(sealed))
    except CorruptObject:
        expect(state == before, "a refused record leaves the state as it was")
        return False
    outer_body(state, 9, 3)
    snapshot = snapshot_of(state)
    expect(snapshot is not None, "a log that has begun can be written down")
    if snapshot is not None:
        expect(
            snapshot_of(state_of(OuterSnapshot.unseal(snapshot.seal()))) == snapshot, "a state reads back as written"
        )
    return True


def admission_target() -> Target:
    """Return the target of records that members send to a service, which has their contributions."""
    records = every_outer_kind()
    store = DictStore()
    log = PrefixStore(PrefixStore(store, RUN), "outer")
    for record in records:
        if isinstance(record, ContributeRecord) and record.object is not None:
            log.put(record.object.key, contribution(member=record.member, round_=record.round))
    held = dict(store.objects)

    def check(data: bytes) -> bool:
        taken = [_admitted(held, records[:length], data) for length in (0, 3, 4, 5, 7)]
        return any(taken)

    seeds = tuple(record.canonical() for record in (*records[:6], records[13], records[14]))
    return Target("admission", check, seeds, mutate_document, WORDS, tries=60)


def _admitted(held: dict[str, bytes], before: list[Any], data: bytes) -> bool:
    """Send a record that says that it follows these."""
    store = DictStore()
    store.objects.update(held)
    for record in before:
        store.objects[f"{RUN}/outer/log/{record.seq:012d}.json"] = record.seal()
    previous = blake3(before[-1].seal()).hexdigest() if before else None
    try:
        body = json.loads(data)
        sealed = seal(canonical_json(body | {"seq": len(before), "previous": previous}))
    except (ValueError, TypeError, RecursionError):
        sealed = seal(data)
    was = dict(store.objects)
    below = PrefixStore(store, RUN)
    try:
        record = OuterAppendGuard(below, RUN).admit(sealed)
    except (InvalidArgument, Conflict, AlreadyExists):
        expect(store.objects == was, "a refused record leaves the bucket as it was")
        return False
    expect(OuterAppendGuard(below, RUN).admit(sealed) == record, "to send it again is no error")
    found = [void for _, void in OuterLog(below, RUN).follow()]
    expect(len(found) == len(before) + 1 and found[-1] is None, "what is admitted counts")
    return True


def _read(call: Any) -> Any:
    try:
        return call()
    except (CorruptObject, BaseMismatch, UnsupportedFormat) as error:
        return error
