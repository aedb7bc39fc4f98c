"""Targets for what is stored as JSON: the input is a body, which the target seals, so that no seal stops the fuzzer.

A document that is accepted encodes back to its bytes. A record that a state takes leaves a state that can be written
down and read back; one that it refuses leaves the state as it was.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from blake3 import blake3

from pulse_registry.compaction.ladder import CompactOptions, due
from pulse_registry.errors import CorruptObject, PulseError, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log import RunState, fold, sealed_hash
from pulse_registry.log.fold import advance
from pulse_registry.log.keyframe_due import keyframe_due
from pulse_registry.log.layouts import fetch_layout
from pulse_registry.pull.route import plan
from pulse_registry.retention.reach import cheapest_tree
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import (
    FileEntry,
    FileSet,
    Head,
    Layout,
    Lease,
    Schema,
    SchemaError,
    Snapshot,
    Tensor,
    canonical_json,
    unseal_record,
)
from pulse_schemas.heads import PatchHead
from tests.security.fuzz.mutation import mutate_document
from tests.security.fuzz.target import Target, expect
from tests.support.records import LAYOUT, RUN, DictStore, chain, every_kind, keyframe, patch
from tests.support.states import restored, said

_GROUPS = 64
_FAR = (0, 1, 10**9, 10**12 - 1)
WORDS = tuple(
    word.encode()
    for word in (
        *('"format":"pulse-record/1"', '"kind":"', '"previous":null', '"seq":', '"epoch":', "pulse-snapshot/2"),
        *("9223372036854775807", "9223372036854775808", "18446744073709551616", "1e999", "-0.0", "NaN", "\\ud800"),
        *('"objects/patch/000000000000-000000000001-', '"objects/keyframe/000000000000-', "/../", "[[[[[[[[", '{"a":'),
    )
)


def seal(content: bytes) -> bytes:
    """Return a sealed document of any body."""
    return b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"


class _Records:
    """A log, and the states between its records."""

    def __init__(self) -> None:
        made = every_kind()
        self.records = made.records
        self.states = [RunState(RUN)]
        for record in self.records:
            state = self.states[-1].copy()
            advance(state, record, sealed_hash(record.seal()))
            self.states.append(state)
        self.written = [None, *map(said, self.states[1:])]

    def check(self, data: bytes) -> bool:
        try:
            record = unseal_record(seal(data))
        except SchemaError:
            return False
        sealed = seal(data)
        expect(record.seal() == sealed, "an accepted record encodes back to its bytes")
        taken = False
        for state, written in zip(self.states, self.written, strict=True):
            taken |= self._take(state, written, json.loads(data))
        return taken

    def _take(self, before: RunState, written: dict[str, Any] | None, body: dict[str, Any]) -> bool:
        """Offer a record to a state whose next one it says it is."""
        body |= {"run": RUN, "seq": before.seq + 1, "previous": before.last}
        sealed = seal(canonical_json(body))
        try:
            record = unseal_record(sealed)
        except SchemaError:
            return False
        state = before.copy()
        try:
            advance(state, record, sealed_hash(sealed))
        except CorruptObject:
            now = None if state.last is None else said(state)
            expect(now == written, "a refused record leaves the state as it was")
            return False
        _check_state(state)
        return True


def _check_state(state: RunState) -> None:
    """Check that a state can be written down, read back, and asked for everything that readers ask for."""
    again = restored(state)
    expect(said(again) == said(state), "a state reads back as it was written down")
    ask(state)
    ask(again)


def ask(state: RunState) -> None:
    """Ask a state what readers, writers and collectors ask it."""
    numbers = [entry.version for entry in state.versions][:20]
    for number in (*numbers, len(state.versions), -1):
        try:
            state.version(number)
            state.keyframe(number)
            state.by_step(number)
            plan(state, number, have=numbers[0] if number % 2 else None)
        except PulseError:
            continue
    keyframe_due(state, 1 << 30, every=None, share=0.5)
    tuple(due(state, CompactOptions(keyframe_every=3)))
    cheapest_tree(state)
    if numbers and (path := state.edges.graph().cheapest(numbers[-1], {}, 1)) is not None:
        expect(all(state.find(leg.target) for leg in state.edges.legs(path.rows)), "a route's versions are there")


def _check_snapshot(data: bytes) -> bool:
    try:
        snapshot = Snapshot.unseal(seal(data))
        expect(snapshot.seal() == seal(data), "an accepted snapshot encodes back to its bytes")
        state = RunState.from_snapshot(snapshot)
    except (SchemaError, CorruptObject):
        return False
    again = state.to_snapshot()
    expect(again.canonical() == snapshot.canonical(), "a state says what the snapshot says that it came from")
    ask(state)
    return True


def _check_layout(data: bytes) -> bool:
    store, name = DictStore(), blake3(data).hexdigest()
    store.objects[keys.layout_key(name)] = data
    try:
        layout = fetch_layout(store, name)
    except (CorruptObject, UnsupportedFormat):
        return False
    expect(layout.canonical() == data and layout.id == name, "an accepted layout encodes back to its bytes")
    geometry = Geometry(layout)
    groups = geometry.groups
    if groups:
        expect(groups[-1].start + groups[-1].cells == geometry.cells, "the last group ends where the cells do")
    if len(groups) <= _GROUPS:
        expect(sum(group.cells for group in groups) == geometry.cells, "the groups hold all cells")
    return True


def document_target(name: str, kind: type[Schema], seeds: tuple[Schema, ...], *, sealed: bool = True) -> Target:
    """Return a target for any document of the library."""

    def check(data: bytes) -> bool:
        try:
            document = kind.unseal(seal(data)) if sealed else kind.parse(data)
        except SchemaError:
            return False
        expect(document.canonical() == data, "an accepted document encodes back to its bytes")
        return True

    return Target(name, check, tuple(seed.canonical() for seed in seeds), mutate_document, WORDS)


def record_target() -> Target:
    """Return the target of the log's records."""
    records = _Records()
    return Target("record", records.check, tuple(r.canonical() for r in records.records), mutate_document, WORDS)


def snapshot_target() -> Target:
    """Return the target of snapshots."""
    log = every_kind(moved=False).records
    seeds = tuple(fold(RUN, log[: seq + 1]).to_snapshot().canonical() for seq in range(len(log)))
    seeds = (*seeds, _far_apart().canonical())
    return Target("snapshot", _check_snapshot, seeds, mutate_document, WORDS, max_len=16384)


def _far_apart() -> Snapshot:
    """Return a snapshot of few versions with high numbers, each reached from the one before."""
    entry = chain(1).state.versions[0]
    return Snapshot(
        run=RUN,
        seq=9,
        last="0" * 64,
        epoch=1,
        count=_FAR[-1] + 1,
        versions=tuple(entry.model_copy(update={"version": number, "seq": n + 1}) for n, number in enumerate(_FAR)),
        patches=tuple(patch(base, target) for base, target in itertools.pairwise(_FAR)),
        keyframes=(keyframe(0), keyframe(_FAR[1], tag=1)),
    )


def layout_target() -> Target:
    """Return the target of layouts."""
    layouts = (
        Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(2, 3)),)),
        Layout(
            tensors=(
                Tensor(name="steps", dtype="I64", shape=()),
                Tensor(name="b", dtype="F32", shape=(4,)),
                Tensor(name="a", dtype="BF16", shape=(0, 7)),
                Tensor(name="poids.é", dtype="BF16", shape=(1,)),
            ),
            tied={"head": "a"},
        ),
    )
    return Target("layout", _check_layout, tuple(one.canonical() for one in layouts), mutate_document, WORDS)


def head_target() -> Target:
    """Return the target of the hint of the newest record."""
    heads = (Head(seq=5, snapshot=None), Head(seq=70, snapshot=64))
    return document_target("head", Head, heads)


def lease_target() -> Target:
    """Return the target of leases."""
    leases = (
        Lease(run=RUN, reader="worker-1", version=3, seconds=3600),
        Lease(run="a", reader="b", version=0, seconds=1),
    )
    return document_target("lease", Lease, leases)


def file_set_target() -> Target:
    """Return the target of the list of a version's small files."""
    entry = FileEntry(size=3, blake3="a" * 64)
    sets = (FileSet(files={"config.json": entry}), FileSet(files={"a.txt": entry, "modeling_x.py": entry}))
    return document_target("file-set", FileSet, sets, sealed=False)


def patch_head_target() -> Target:
    """Return the target of what a patch says of itself."""
    return document_target(
        "patch-head", PatchHead, (PatchHead(layout=LAYOUT, base=4, target=5, changed=3, groups=1),), sealed=False
    )
