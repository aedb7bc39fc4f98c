"""What readers would refuse for its length, writers refuse to write; and what honest users have fits."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.routes import SHAPES, a_run
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.format import keyframe as keyframe_module
from pulse_registry.format import keys
from pulse_registry.format.keyframe import MOST_SHARDS, SHARD_BYTES
from pulse_registry.format.pieces import MOST_INDEX_BYTES, PIECE_BYTES
from pulse_registry.log import AppendGuard, LogReader, Snapshotter, documents
from pulse_registry.log import snapshot_writer as snapshot_writer_module
from pulse_registry.push import keyframe as push_keyframe_module
from pulse_registry.push.labels import METADATA_BYTES
from pulse_registry.retention.collector import LONGEST
from pulse_registry.testing import CountingStore
from pulse_schemas import KeyframeRef, Layout, ObjectRef, RetireRecord, SchemaError, Tensor, unseal_record
from pulse_schemas.layout import MAX_CELLS
from tests.security.attacks.edits import sealed_bytes
from tests.support.records import RUN, DictStore, Script, chain, draft, keyframe, new_store, write_id, writer
from tests.support.registries import quick

TRILLION = 10**12
BF16_BYTES = 2


def a_layout(cells: int) -> Layout:
    """Return a layout of experts as the largest models have them: some 21 million cells a tensor."""
    count = cells // 21_000_000
    names = sorted(f"model.layers.{n // 1500}.mlp.experts.{n % 384}.w{n % 3}.{n:06d}.weight" for n in range(count))
    return Layout(tensors=tuple(Tensor(name=name, dtype="BF16", shape=(7168, 2929)) for name in names))


# -- what fits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_snapshot_of_a_million_versions_fits(shape: Any) -> None:
    count = 2000
    sealed = a_run(shape, count).to_snapshot().seal()
    assert len(sealed) / count * 10**6 < documents.SNAPSHOT


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_what_a_state_is_measured_to_be_is_what_its_snapshot_has(shape: Any) -> None:
    state = a_run(shape, 500)
    assert state.measure() == pytest.approx(len(state.to_snapshot().seal()), rel=0.01)


@pytest.mark.slow
def test_the_layout_of_a_trillion_cells_fits() -> None:
    nbytes = len(a_layout(TRILLION).canonical())
    assert nbytes > 4_000_000, "as many tensors as such a model has"
    assert nbytes < documents.LAYOUT / 4


def test_the_record_and_the_index_of_the_keyframe_of_a_trillion_cells_fit() -> None:
    shards = TRILLION * BF16_BYTES // SHARD_BYTES + 1
    frame = keyframe(10**6, shards=shards, size=SHARD_BYTES)
    sealed = Script().epoch().make_commit(version=0, keyframe=keyframe(0, shards=shards, size=SHARD_BYTES)).seal()
    assert 300_000 < len(sealed) < documents.RECORD / 10
    assert len(frame.shards) < MOST_SHARDS / 10
    assert TRILLION * BF16_BYTES / PIECE_BYTES * 80 + 10_000_000 < MOST_INDEX_BYTES / 4
    assert MAX_CELLS * BF16_BYTES / PIECE_BYTES * 80 < MOST_INDEX_BYTES / 2


def test_the_longest_records_that_are_written_fit() -> None:
    key = "objects/" + "é" * 508  # the longest keys that stores take have 1,024 bytes
    retire = RetireRecord(**Script().epoch().shared(), versions=(), keys=(key,) * LONGEST).seal()
    assert len(retire) < documents.RECORD
    ref = ObjectRef(
        key=keys.keyframe_key(10**12 - 1, write_id(1), f"model-{MOST_SHARDS:05d}-of-{MOST_SHARDS:05d}.safetensors"),
        size=2**63 - 1,
        blake3="a" * 64,
    )
    frame = KeyframeRef(version=0, index=ref, shards=(ref,))
    small = len(Script().epoch().make_commit(version=0, keyframe=frame).seal())
    each = len(ref.canonical()) + 1
    assert small + METADATA_BYTES + MOST_SHARDS * each < documents.RECORD


@pytest.mark.parametrize(
    ("key", "most"),
    [
        (keys.HEAD, documents.SMALL),
        (keys.record_key(0), documents.RECORD),
        (keys.snapshot_key(63), documents.SNAPSHOT),
        (keys.segment_key(63, "a" * 64), documents.SEGMENT),
        (keys.countersignature_key(0), documents.SMALL),
        (keys.layout_key("a" * 64), documents.LAYOUT),
        (keys.lease_key("worker"), documents.SMALL),
        ("log/snapshots/x.json", documents.SMALL),
        ("objects/x", documents.SMALL),
    ],
)
def test_each_kind_of_document_has_its_bound(key: str, most: int) -> None:
    assert documents.most_bytes(key) == most


# -- what is in a record -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        lambda: b"[" + b"[]," * 2_500_000 + b"[]]",
        lambda: b"[" + b"{}," * 2_500_000 + b"{}]",
        lambda: b"[" + b"1," * 3_500_000 + b"1]",
        lambda: b"[" + b'"",' * 2_500_000 + b'""]',
        lambda: b"{" + b",".join(b'"%x":1' % n for n in range(700_000)) + b"}",
    ],
    ids=["lists", "objects", "numbers", "texts", "keys"],
)
def test_a_record_of_too_many_parts_is_refused_before_they_are_made(metadata: Callable[[], bytes]) -> None:
    body = Script().epoch().make_commit(version=0).canonical()
    sealed = sealed_bytes(body.replace(b'"metadata":{}', b'"metadata":{"a":' + metadata() + b"}"))
    assert 6_000_000 < len(sealed) < documents.RECORD

    tracemalloc.start()
    try:
        with pytest.raises(SchemaError, match="lists and objects, or"):
            unseal_record(sealed)
        assert tracemalloc.get_traced_memory()[1] < 16 * documents.RECORD
    finally:
        tracemalloc.stop()


def test_what_is_in_texts_are_no_parts() -> None:
    script = Script().epoch()
    names = tuple("objects/" + text * (500 // len(text)) for text in ("[", "{", ",", '"', "\\", '",[{', '\\"'))
    for keys_ in (names * 280, ("objects/" + "[" * 1000,) * LONGEST, ("objects/" + '"' * 1000,) * LONGEST):
        record = RetireRecord(**script.shared(), keys=keys_)
        assert unseal_record(record.seal()) == record


@pytest.mark.slow
def test_a_keyframe_of_as_many_shards_as_there_may_be_is_no_record_of_too_many_parts() -> None:
    record = Script().epoch().make_commit(version=0, keyframe=keyframe(0, shards=MOST_SHARDS))
    assert unseal_record(record.seal()) == record


def test_a_record_of_too_many_parts_is_not_written() -> None:
    store = new_store()
    mine = writer(store)
    mine.begin()
    for version in range(2):
        mine.commit(draft(version))
    with pytest.raises(InvalidArgument, match="500,000 values: name fewer objects"):
        mine.retire(versions=[0] * 600_000)


# -- what is not written -----------------------------------------------------------------------------------------------


def test_a_record_that_readers_would_refuse_is_not_written() -> None:
    store = new_store()
    mine = writer(store)
    mine.begin()
    mine.commit(draft(0))
    before = dict(store.objects)
    wanted = tuple("objects/" + f"{n:07d}" * 140 for n in range(9_000))
    with pytest.raises(InvalidArgument, match="8,388,608 at most"):
        mine.retire(keys=wanted)
    assert store.objects == before
    mine.retire(keys=wanted[:100])


def test_a_record_that_readers_would_refuse_is_not_admitted() -> None:
    script = chain(1)
    store = script.store_in(DictStore())
    reader = LogReader(store, RUN)
    append_guard = AppendGuard(store, RUN, reader, Snapshotter(store, reader))
    long = script.make_commit(version=1, metadata={"note": "x" * documents.RECORD}).seal()
    before = dict(store.objects)
    with pytest.raises(InvalidArgument, match="at most 8,388,608 bytes"):
        append_guard.admit(long)
    assert store.objects == before


def test_a_snapshot_that_readers_would_refuse_is_not_written_and_the_one_before_it_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store()
    mine = writer(store, snapshot_every=4)
    mine.begin()
    for version in range(3):
        mine.commit(draft(version))
    before = [*store.list(keys.SNAPSHOTS)]
    assert before == [keys.snapshot_key(3)]
    monkeypatch.setattr(snapshot_writer_module, "SNAPSHOT", 500)
    with caplog.at_level(logging.WARNING, "pulse_registry"):
        for version in range(3, 12):
            mine.commit(draft(version))
    assert [*store.list(keys.SNAPSHOTS)] == before
    assert "delete what is retired (pulse gc), or some tags" in caplog.text
    reader = LogReader(store, RUN)
    assert len(reader.refresh().versions) == 12
    assert reader.snapshot_seq == 3


def test_a_model_of_more_shards_than_readers_take_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CountingStore(new_store())
    monkeypatch.setattr(keyframe_module, "MOST_SHARDS", 0)
    with quick(store) as trainer, pytest.raises(InvalidModel, match="a keyframe has at most 0 shards"):
        trainer.push(0, {"w": np.zeros(10, np.uint16)})
    assert not [key for key in store.list("") if "/objects/" in key]


def test_a_model_whose_index_readers_would_refuse_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CountingStore(new_store())
    monkeypatch.setattr(keyframe_module, "MOST_INDEX_BYTES", 100)
    with quick(store) as trainer, pytest.raises(InvalidModel, match="index has at most 100 bytes"):
        trainer.push(0, {"w": np.zeros(10, np.uint16)})
    assert not [key for key in store.list("") if "/objects/" in key]


def test_a_model_whose_layout_readers_would_refuse_is_refused_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CountingStore(new_store())
    monkeypatch.setattr(push_keyframe_module, "LAYOUT", 50)
    with quick(store) as trainer, pytest.raises(InvalidModel, match="a layout has at most 50 bytes"):
        trainer.push(0, {"w": np.zeros(10, np.uint16)})
    assert not [key for key in store.list("") if "/objects/" in key or "/layouts/" in key]


# -- what is looked at -------------------------------------------------------------------------------------------------


def test_of_snapshots_that_are_damaged_few_are_looked_at_whoever_reads() -> None:
    script = chain(3)
    store = CountingStore(script.store_in(new_store()))
    for seq in range(1000, 1100):
        store.put(keys.snapshot_key(seq), b"{}")
    assert LogReader(store, RUN).refresh().seq == script.state.seq
    assert len({key for verb, key in store.ledger if verb == "get" and key.startswith(keys.SNAPSHOTS)}) == 8
