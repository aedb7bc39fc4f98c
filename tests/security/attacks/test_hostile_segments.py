"""Segments and their snapshots as anybody may write them: passed over, in little memory, and never half believed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.format.segment import SegmentTable
from pulse_registry.log import LogReader, RunState
from pulse_registry.log.block import MOST_BYTES, Block
from pulse_registry.log.segmented import snapshot_of
from pulse_registry.log.segments import Content, cut, encoded, live_ids
from pulse_schemas import Head, NextIds, Retired, SegmentedSnapshot, SegmentRows
from tests.security.attacks.peak import peak_of
from tests.support.records import RUN, DictStore, every_kind, new_store
from tests.support.states import said

HONEST = every_kind()
LAST = HONEST.state.seq
MOST = 30 << 20
Tables = dict[str, SegmentTable]


def planted(
    content: Callable[[Tables], Any] = lambda _: None,
    document: Callable[[SegmentedSnapshot], dict[str, Any]] = lambda _: {},
) -> DictStore:
    """Return the honest run with a newest snapshot in which a segment, or the document, was changed."""
    store = HONEST.store_in(new_store())
    assert isinstance(store, DictStore)
    state: RunState = HONEST.state
    (found,) = cut(state.tables, live_ids(state.tables))
    tables = dict(found)
    content(tables)
    segment, data = encoded(LAST, tables)
    store.put(segment.key, data)
    snapshot = snapshot_of(state, [segment])
    snapshot = snapshot.model_copy(update=document(snapshot))
    store.put(keys.snapshot_key(LAST), snapshot.seal())
    store.put(keys.HEAD, Head(seq=LAST, snapshot=LAST).seal())
    return store


def column(table: str, row: int, number: int, at: int = 0) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        numbers = tables[table].numbers.copy()
        numbers[row, at] = number
        tables[table] = replace(tables[table], numbers=numbers)

    return change


def frame(table: str, make: Callable[[list[bytes]], bytes]) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        (rows, packed), *rest = tables[table].blocks
        tables[table] = replace(tables[table], blocks=((rows, make(Block(rows, packed).lines())), *rest))

    return change


def bombs(tables: Tables) -> None:
    """As many rows as make 2 GiB, of frames of some hundred bytes which say truly that they have 9 MiB each."""
    packed = zstandard.ZstdCompressor().compress(b"\n" * MOST_BYTES)
    count = (2 << 30) // MOST_BYTES + 1
    versions = tables["versions"]
    tables["versions"] = SegmentTable(
        np.arange(count), np.repeat(versions.numbers[:, :1], count, axis=1), ((1, packed),) * count
    )


def unsized(lines: list[bytes]) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(b"".join(lines))


CONTENTS: dict[str, Callable[[Tables], Any]] = {
    "a version over the count": column("versions", 0, 10**6, -1),
    "a version below zero": column("versions", 0, -1),
    "versions that fall": column("versions", 0, 3),
    "a version of a later record": column("versions", 1, LAST + 1, -1),
    "a patch of no version": column("patches", 1, 77),
    "a patch backwards": column("patches", 0, 5),
    "a patch of a coder that is none": column("patches", 4, 9),
    "a patch that changes less than nothing": column("patches", 5, -1),
    "a patch below zero bytes": column("patches", 2, -(2**63)),
    "a patch of more than any bytes": column("patches", 2, 2**63 - 1),
    "a patch of no objects": column("patches", 3, 0),
    "a keyframe of no version": column("keyframes", 0, 2**63 - 1),
    "a keyframe without shards": column("keyframes", 2, 1),
    "layouts that differ": column("versions", 3, 7, 1),
    "a frame of no zstd": frame("versions", lambda _: b"junk"),
    "a frame that says too much": frame("versions", lambda _: zstandard.compress(b"\n" * (MOST_BYTES + 1))),
    "a frame that says nothing": frame("patches", unsized),
    "frames that unpack to gigabytes": bombs,
}

ROWS = SegmentRows(rows=2**40)
DOCUMENTS: dict[str, Callable[[SegmentedSnapshot], dict[str, Any]]] = {
    "more rows than there are": lambda s: {"segments": (s.segments[0].model_copy(update={"versions": ROWS}),)},
    "dead rows that are none": lambda s: {
        "segments": (
            s.segments[0].model_copy(
                update={"versions": SegmentRows(rows=s.segments[0].versions.rows, dead=((0, 2**62),))}
            ),
        )
    },
    "a segment twice": lambda s: {"segments": s.segments * 2},
    "a segment of another length": lambda s: {"segments": (s.segments[0].model_copy(update={"size": 2**40}),)},
    "a segment longer than it is": lambda s: {
        "segments": (s.segments[0].model_copy(update={"size": s.segments[0].size + 1}),)
    },
    "a segment of no snapshot": lambda s: {"segments": (s.segments[0].model_copy(update={"seq": 2**62}),)},
    "a segment that is not there": lambda s: {"segments": (s.segments[0].model_copy(update={"blake3": "0" * 64}),)},
    "no segment": lambda _: {"segments": ()},
    "ids that are taken": lambda _: {"next_ids": NextIds(versions=0, patches=0, keyframes=0)},
    "a count that is another": lambda s: {"count": s.count + 1},
    "retired versions without end": lambda _: {"retired": (Retired(seq=1, versions=((0, 2**62),)),)},
    "retired versions beyond all numbers": lambda _: {"retired": (Retired(seq=1, versions=((2**63 - 1, 1),)),)},
    "the newest version as retired": lambda s: {"retired": (Retired(seq=1, versions=((s.count - 1, 1),)),)},
    "a version retired twice": lambda _: {
        "retired": (Retired(seq=1, versions=((2, 1),)), Retired(seq=2, versions=((2, 1),)))
    },
    "a key retired outside": lambda _: {"retired": (Retired(seq=1, keys=("log/000000000000.json",)),)},
    "a live key as retired": lambda _: {
        "retired": (Retired(seq=1, keys=(HONEST.state.tables.patches.row(2).object.key,)),)
    },
    "a record to come that retired": lambda _: {"retired": (Retired(seq=LAST + 1, keys=("objects/x",)),)},
    "a move of a record to come": lambda s: {"home": s.home.model_copy(update={"seq": LAST + 1})},
    "a move by the first record": lambda s: {"home": s.home.model_copy(update={"seq": 0})},
    "no move in the format of one": lambda _: {"home": None},
    "a move in the format of none": lambda _: {"format": "pulse-snapshot/5"},
    "a tag of no version": lambda _: {"tags": {"best": 2**62}},
    "a tag of a retired version": lambda _: {"tags": {"best": 1}},
}


def check_passed_over(store: DictStore, caplog: pytest.LogCaptureFixture) -> None:
    reader = LogReader(store, RUN)
    with caplog.at_level(logging.WARNING):
        assert peak_of(reader.refresh) < MOST
    assert f"ignoring the snapshot {keys.snapshot_key(LAST)}" in caplog.text
    assert reader.snapshot_seq == -1
    assert said(reader.state) == said(HONEST.state)


def test_the_honest_one_is_believed() -> None:
    reader = LogReader(planted(), RUN)
    assert said(reader.refresh()) == said(HONEST.state)
    assert reader.snapshot_seq == LAST


@pytest.mark.parametrize("attack", CONTENTS)
def test_a_hostile_segment_is_passed_over_and_takes_no_memory(attack: str, caplog: pytest.LogCaptureFixture) -> None:
    check_passed_over(planted(CONTENTS[attack]), caplog)


@pytest.mark.parametrize("attack", DOCUMENTS)
def test_a_snapshot_that_lies_of_its_segments_is_passed_over(attack: str, caplog: pytest.LogCaptureFixture) -> None:
    check_passed_over(planted(document=DOCUMENTS[attack]), caplog)


ROW_ATTACKS: dict[str, tuple[str, Callable[[list[bytes]], bytes]]] = {
    "junk": ("versions", lambda lines: zstandard.compress(b"junk\n" * len(lines))),
    "fewer rows": ("versions", lambda lines: zstandard.compress(b"".join(line + b"\n" for line in lines[1:]))),
    "another row": ("versions", lambda lines: zstandard.compress((lines[0] + b"\n") * len(lines))),
    "a patch outside": (
        "patches",
        lambda lines: Block.of([line.replace(b"objects/patch/", b"log/patch/") for line in lines]).frame,
    ),
    "a patch of others' keys": (
        "patches",
        lambda lines: Block.of([line.replace(b"/00000000000", b"/00000000001") for line in lines]).frame,
    ),
}


@pytest.mark.parametrize("attack", ROW_ATTACKS)
def test_a_row_that_is_not_what_its_columns_say_is_refused_when_it_is_read(attack: str) -> None:
    """The columns are right, so the run opens; who has no pins believes what a bucket says, but nothing twofold."""
    table, make = ROW_ATTACKS[attack]
    store = planted(frame(table, make))
    reader = LogReader(store, RUN)
    state = reader.refresh()
    assert reader.snapshot_seq == LAST
    with pytest.raises(CorruptObject, match="log/segments/"):
        _ = [*state.versions_since(0)] if table == "versions" else [*state.patches]


def test_contents_are_what_is_changed() -> None:
    (honest,) = cut(HONEST.state.tables, live_ids(HONEST.state.tables))
    for name, change in CONTENTS.items():
        tables: Content = dict(honest)
        change(tables)  # type: ignore[arg-type]
        assert encoded(LAST, tables)[1] != encoded(LAST, honest)[1], name
