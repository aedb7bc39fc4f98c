"""Targets of segments, and of the snapshots that name them: hashes are made anew, so that none stops the fuzzer.

A segment that is accepted is written as one that says the same. A snapshot that is accepted with its segment is a state
which answers what it is asked, or finds a row that is not what its columns say; and which is written down as one that
says the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from blake3 import blake3

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format.segment import COLUMNS, SegmentTable, parse_segment, segment_bytes
from pulse_registry.log import RunState, sealed_hash
from pulse_registry.log.block import Block
from pulse_registry.log.fold import advance
from pulse_registry.log.segmented import snapshot_of, state_of
from pulse_registry.log.segments import Content, Segment, cut, encoded, fetch, live_ids, segment_key
from pulse_schemas import DeleteRecord, SchemaError, SegmentedSnapshot, Snapshot, canonical_json
from tests.security.fuzz.documents import WORDS as DOCUMENT_WORDS
from tests.security.fuzz.documents import ask, seal
from tests.security.fuzz.heads import WORDS as HEAD_WORDS
from tests.security.fuzz.heads import mutate_file
from tests.security.fuzz.mutation import HUGE, INTERESTING, mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect
from tests.support.records import RUN, DictStore, every_kind
from tests.support.states import said

_KEY = "log/segments/x"
_BETWEEN = b"\0"
"""A snapshot's body is before it, and its segment behind: JSON has no such byte."""


def segment_target() -> Target:
    """Return the target of a segment's file."""
    seeds = tuple(data for _, data in _written())
    return Target("segment", _check_segment, seeds, _mutate_segment, HEAD_WORDS, max_len=16384, tries=400)


def segmented_target() -> Target:
    """Return the target of a snapshot of one segment: its body, a zero byte, and the segment."""
    seeds = tuple(body + _BETWEEN + data for body, data in _written())
    return Target("segmented", _check_segmented, seeds, _mutate_segmented, DOCUMENT_WORDS, max_len=32768, tries=400)


def _check_segment(data: bytes) -> bool:
    try:
        content = parse_segment(_KEY, data)
    except (CorruptObject, UnsupportedFormat):
        return False
    for table in content.values():
        expect(table.numbers.shape[1] == len(table.ids), "each row has its columns")
        expect(sum(rows for rows, _ in table.blocks) == len(table.ids), "each row is in one block")
        expect(sum(len(frame) for _, frame in table.blocks) <= len(data), "blocks lie in the file")
    expect(_same(parse_segment(_KEY, segment_bytes(content)), content), "it is written as a segment that says the same")
    return True


def _check_segmented(data: bytes) -> bool:
    body, _, segment = data.partition(_BETWEEN)
    store = DictStore()
    try:
        snapshot = SegmentedSnapshot.unseal(seal(_with_hash(body, segment)))
        for ref in snapshot.segments[:1]:
            store.put(segment_key(ref), segment)
        contents = fetch(store, RUN, snapshot.segments, None)
        state = state_of(snapshot, contents)
    except (SchemaError, CorruptObject, UnsupportedFormat, NotFound):
        return False
    try:
        written = said(state)
    except CorruptObject:
        return True  # a row is not what its columns say, which is told when it is read
    segments = [
        Segment(ref, {name: table.ids for name, table in content.items()})
        for ref, content in zip(snapshot.segments, contents, strict=True)
    ]
    again = state_of(snapshot_of(state, segments), contents)
    expect(said(again) == written, "a state says what the snapshot says that it came from")
    if state.home is None and not _keys_repeat(whole := state.to_snapshot()):
        expect(said(RunState.from_snapshot(whole)) == written, "it can be said without segments, too")
    ask(state)
    return True


def _keys_repeat(snapshot: Snapshot) -> bool:
    """Tell whether keyframes name an object twice, or a retired one: no column has their keys."""
    named = [one.key for keyframe in snapshot.keyframes for one in (keyframe.index, *keyframe.shards)]
    return len({*named}) < len(named) or any(retired.key in named for retired in snapshot.retired_keys)


def _with_hash(body: bytes, segment: bytes) -> bytes:
    """Return the body with the length and the hash of the segment in the first place."""
    try:
        document = json.loads(body)
        document["segments"][0] |= {"size": len(segment), "blake3": blake3(segment).hexdigest()}
        return canonical_json(document)
    except (ValueError, RecursionError, LookupError, TypeError):
        return body


def _same(left: Content, right: Content) -> bool:
    return all(
        np.array_equal(left[name].ids, right[name].ids)
        and np.array_equal(left[name].numbers, right[name].numbers)
        and left[name].blocks == right[name].blocks
        for name in COLUMNS
    )


def _written() -> Iterator[tuple[bytes, bytes]]:
    """Yield a snapshot's body and its segment of each state of a log; of one the segment has dead rows."""
    state = RunState(RUN)
    before: tuple[Segment, bytes] | None = None
    for record in every_kind().records:
        advance(state, record, sealed_hash(record.seal()))
        if before is not None and isinstance(record, DeleteRecord):
            yield snapshot_of(state, [before[0]]).canonical(), before[1]
        for content in cut(state.tables, live_ids(state.tables)):
            before = encoded(state.seq, content)
            yield snapshot_of(state, [before[0]]).canonical(), before[1]


def _mutate_segmented(data: bytes, rng: random.Random) -> bytes:
    """Change the snapshot, its segment, or any bytes."""
    body, between, segment = data.partition(_BETWEEN)
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: mutate_document(body, rng) + between + segment,
        lambda: body + between + _mutate_segment(segment, rng),
        lambda: mutate_bytes(data, rng),
    )
    return rng.choices(changes, (4, 4, 1))[0]()


def _mutate_segment(data: bytes, rng: random.Random) -> bytes:
    """Change the header, a number of a column, or a row's JSON; or any bytes."""
    try:
        content = dict(parse_segment(_KEY, data))
    except (CorruptObject, UnsupportedFormat):
        return mutate_bytes(data, rng)
    name = rng.choice([name for name in COLUMNS if len(content[name].ids)] or [*COLUMNS])
    table = content[name]

    def number() -> SegmentTable:
        numbers, ids = table.numbers.copy(), table.ids.copy()
        array = rng.choice((numbers, numbers, numbers, ids))
        if array.size:
            other = rng.choice((*INTERESTING, *HUGE, -1, *array.flat[:8].tolist()))
            array.flat[rng.randrange(array.size)] = (other + 2**63) % 2**64 - 2**63
        return replace(table, ids=ids, numbers=numbers)

    def row() -> SegmentTable:
        try:
            blocks = [Block(*block).lines() for block in table.blocks]
        except CorruptObject:
            return table
        lines = rng.choice(blocks or [[b""]])
        at = rng.randrange(len(lines))
        lines[at] = mutate_document(lines[at], rng)
        return replace(table, blocks=tuple((len(found), Block.of(found).frame) for found in blocks))

    def frame() -> SegmentTable:
        return replace(table, blocks=tuple((rows, mutate_bytes(packed, rng)) for rows, packed in table.blocks))

    changes: tuple[Callable[[], bytes], ...] = (
        lambda: segment_bytes(content | {name: number()}),
        lambda: segment_bytes(content | {name: row()}),
        lambda: segment_bytes(content | {name: frame()}),
        lambda: mutate_file(data, rng),
        lambda: mutate_bytes(data, rng),
    )
    return rng.choices(changes, (4, 4, 1, 3, 1))[0]()
