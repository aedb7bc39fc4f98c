"""What a log says of shared bases: which keys it may name, that each is named once, and who retired it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log import LogReader, fold
from pulse_registry.log.rules import violation
from pulse_registry.log.segmented import snapshot_of
from pulse_schemas import KeyframeRef, Record, SchemaError, SegmentedSnapshot, unseal_record, unseal_snapshot
from tests.support.bases import BASE, base_keyframe
from tests.support.records import RUN, DictStore, Script, chain, keyframe, patch
from tests.support.snapshots import put_snapshot, read_snapshot

OTHER = "d" * 64 + "-0003"


def begun() -> Script:
    """Return a run whose version 0 is a shared base, and that has one version more."""
    return Script().epoch().commit(keyframe=base_keyframe()).commit()


def named(key: str, which: str = "index") -> KeyframeRef:
    """Return a keyframe that names another key in the place of one of its files."""
    good = base_keyframe()
    if which == "index":
        return good.model_copy(update={"index": good.index.model_copy(update={"key": key})})
    return good.model_copy(update={"shards": (good.shards[0].model_copy(update={"key": key}),)})


def test_a_keyframe_may_be_a_shared_base() -> None:
    state = begun().state
    assert state.bases == {BASE: None}
    found = state.keyframe(0)
    assert found is not None
    assert found.base == BASE
    assert state.is_live(base_keyframe().shards[0].key)


@pytest.mark.parametrize("which", ["index", "shard"])
@pytest.mark.parametrize(
    "key",
    [
        "_bases/../other/objects/keyframe/000000000000-00000000000000000000000000000000/model.safetensors",
        f"_bases/{BASE}/../{OTHER}/model.safetensors",
        f"_bases/{BASE}/closed",
        f"_bases/{BASE}/x/model.safetensors",
        f"_bases/{BASE}/.hidden.safetensors",
        f"_bases/{BASE[:-1]}/model.safetensors",
        f"_bases/{OTHER}/model.safetensors",
        f"other/_bases/{BASE}/model.safetensors",
        "../other/objects/keyframe/000000000000-00000000000000000000000000000000/model.safetensors",
        keys.keyframe_key(0, "0" * 32, "model.safetensors"),
    ],
)
def test_all_files_of_a_keyframe_are_those_of_one_base(key: str, which: str) -> None:
    script = Script().epoch()
    record = script.make_commit(keyframe=named(key, which))
    wrong = violation(script.state, record)
    assert wrong is not None
    assert "one shared base" in wrong or "outside the folder" in wrong


BROKEN: dict[str, tuple[Callable[[], tuple[Script, Record]], str]] = {
    "a base that the run names already": (
        lambda: (s := begun(), s.make_attach(keyframes=(base_keyframe(1),))),
        "named already",
    ),
    "a base that the run has retired": (
        lambda: (s := retired(), s.make_attach(keyframes=(base_keyframe(1),))),
        "named already",
    ),
    "one base twice": (
        lambda: (s := chain(2), s.make_attach(keyframes=(base_keyframe(0), base_keyframe(1)))),
        "named already",
    ),
    "a base's mark, retired": (lambda: (s := begun(), s.make_retire(keys=(keys.closed_key(BASE),))), "outside"),
    "a patch in a base": (
        lambda: (
            s := chain(3),
            s.make_attach(
                patches=(
                    patch(0, 2).model_copy(
                        update={"object": patch(0, 2).object.model_copy(update={"key": base_keyframe().index.key})}
                    ),
                )
            ),
        ),
        "outside the folder",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_breaks_a_rule_of_bases_is_told_why(name: str) -> None:
    (script, record), what = BROKEN[name][0](), BROKEN[name][1]
    wrong = violation(script.state, record)
    assert wrong is not None
    assert what in wrong


def retired() -> Script:
    return begun().attach(keyframes=(keyframe(1),)).retire(versions=(0,), keys=(base_keyframe().index.key,)).delete()


def test_a_base_that_was_retired_is_remembered_for_ever_and_its_keys_are_not() -> None:
    state = retired().state
    assert state.bases == {BASE: 4}
    assert state.find(0) is None
    assert not state.retired_keys
    assert state.is_retired_key(base_keyframe().shards[0].key)
    assert not state.is_live(base_keyframe().shards[0].key)


def test_a_base_goes_with_a_version_that_is_forgotten_though_nobody_retired_its_files() -> None:
    state = begun().attach(keyframes=(keyframe(1),)).retire(versions=(0,)).state
    assert state.bases == {BASE: None}
    forgotten = begun().attach(keyframes=(keyframe(1),)).retire(versions=(0,)).delete().state
    assert forgotten.bases == {BASE: 5}


def test_a_base_that_no_record_named_can_be_retired_so_that_none_will() -> None:
    script = chain(2).retire(keys=(base_keyframe().index.key,))
    assert script.state.bases == {BASE: 3}
    assert violation(script.state, script.make_attach(keyframes=(base_keyframe(1),))) is not None


def test_records_that_name_a_base_are_of_the_fourth_format_and_others_as_before() -> None:
    script = retired()
    assert [record.format for record in script.records] == [
        "pulse-record/1",
        "pulse-record/4",
        "pulse-record/1",
        "pulse-record/1",
        "pulse-record/4",
        "pulse-record/1",
    ]
    for record in script.records:
        assert unseal_record(record.seal()) == record
        other = "pulse-record/1" if record.format == "pulse-record/4" else "pulse-record/4"
        with pytest.raises(SchemaError):
            unseal_record(record.model_copy(update={"format": other}).seal())


@pytest.mark.parametrize("make", [begun, retired])
def test_a_snapshot_has_the_bases_in_the_sixth_format(make: Callable[[], Script]) -> None:
    store, script = DictStore(), make()
    snapshot, state = read_snapshot(store, put_snapshot(store, script.state))
    assert snapshot.format == "pulse-snapshot/6"
    assert (state.bases, [*state.keyframes]) == (script.state.bases, [*script.state.keyframes])
    assert unseal_snapshot(snapshot.seal()) == snapshot
    script.store_in(store)
    assert LogReader(store, RUN).refresh().bases == script.state.bases


def test_a_snapshot_of_a_run_without_bases_is_as_it_was() -> None:
    snapshot = snapshot_of(chain(2).state, ())
    assert snapshot.format == "pulse-snapshot/5"
    assert b"shared_bases" not in snapshot.canonical()


@pytest.mark.parametrize(
    "bases", [{}, {OTHER: None}, {BASE: None, OTHER: None}, {BASE: 2}, {BASE: None, OTHER: 99}], ids=str
)
def test_a_snapshot_that_says_other_bases_than_its_keyframes_is_refused(bases: dict[str, int | None]) -> None:
    store, script = DictStore(), begun()
    good, _ = read_snapshot(store, put_snapshot(store, script.state))
    fields = good.model_dump() | {"shared_bases": bases}
    del fields["format"]
    wrong = type(good).model_validate(fields)
    with pytest.raises(CorruptObject, match="shared base"):
        read_snapshot(store, _put(store, wrong))


def _put(store: DictStore, snapshot: SegmentedSnapshot) -> str:
    key = keys.snapshot_key(99)
    store.put(key, snapshot.seal())
    return key


def test_one_document_has_no_room_for_bases() -> None:
    with pytest.raises(UnsupportedFormat, match="segments"):
        begun().state.to_snapshot()


def test_a_search_avoids_a_base_that_is_damaged() -> None:
    state = begun().attach(keyframes=(keyframe(1),)).state
    edges = state.edges
    [row] = edges.rows_of([base_keyframe().shards[0].key])
    [leg] = edges.legs(np.array([row]))
    assert leg.keyframe == state.keyframe(0)


def test_the_fold_of_the_records_is_the_state() -> None:
    script = retired()
    assert fold(RUN, script.records).bases == {BASE: 4}
