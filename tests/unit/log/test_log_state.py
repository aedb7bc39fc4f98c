"""The fold of records into the state of a run."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, Gone, NotFound
from pulse_registry.log import Effect, RunState, fold, sealed_hash
from pulse_registry.log.fold import advance
from pulse_registry.log.unsealing import unsealed_snapshot
from pulse_schemas import RetiredVersion, Snapshot, VersionEntry
from tests.support.records import LAYOUT, OTHER_LAYOUT, RUN, DictStore, Script, chain, keyframe, patch
from tests.support.snapshots import put_snapshot, read_snapshot


def facts(state: RunState) -> dict[str, object]:
    """Everything that a state can be asked."""
    numbers = range(len(state.versions))
    return {
        "head": (state.run, state.seq, state.last, state.epoch, state.latest),
        "versions": list(state.versions),
        "count": len(state.versions),
        "found": [state.find(n) for n in numbers],
        "tags": dict(state.tags),
        "patches": list(state.patches),
        "keyframes": list(state.keyframes),
        "into": [state.patches_into(n) for n in numbers],
        "from": [state.patches_from(n) for n in numbers],
        "keyframe": [state.keyframe(n) for n in numbers],
        "step": [state.by_step(entry.step) for entry in state.versions],
        "retired": [state.is_retired(n) for n in numbers],
        "retired_by": (dict(state.retired_versions), dict(state.retired_keys), dict(state.bases)),
        "live": [state.is_live(p.object.key) for p in state.patches],
    }


def rich() -> Script:
    """A history with every kind of record, a void commit and a change of layout."""
    script = chain(4)
    script.attach(patches=(patch(0, 2, tag=5), patch(0, 3, tag=6)), keyframes=(keyframe(2, shards=3),))
    script.epoch().commit(epoch=1).commit(step=10)
    script.retire(versions=(1,), keys=(patch(0, 1).object.key, keyframe(2, shards=3).shards[1].key))
    return script.commit(layout=OTHER_LAYOUT).attach(keyframes=(keyframe(3, tag=9),), epoch=1)


def long() -> Script:
    """A history that goes on where the rich one ends: with tags, and with versions that are deleted and forgotten."""
    script = rich().tag("best", 3).tag("first", 0).tag("best", 4)
    script.delete().tag("first", None)
    script.retire(versions=(0, 2), keys=(patch(0, 3, tag=6).object.key, patch(0, 7).object.key, "objects/strange"))
    script.commit().delete(until=script.state.seq - 1)
    return script.retire(versions=(3,)).tag("best", None)


def test_the_state_of_a_run_without_records_is_empty():
    state = RunState(RUN)
    assert (state.seq, state.last, state.epoch, state.latest, list(state.versions)) == (-1, None, 0, None, [])
    with pytest.raises(NotFound, match="no record yet"):
        state.to_snapshot()


def test_versions_are_found_by_number_and_by_step():
    state = rich().state
    assert [entry.version for entry in state.versions] == [0, 1, 2, 3, 4, 5]
    assert state.latest == state.versions[5] == state.version(5)
    assert state.by_step(20) == state.versions[2]
    assert state.by_step(77) is None


def test_of_two_versions_with_one_step_the_newer_is_found():
    assert rich().state.by_step(10).version == 4


def test_the_newest_version_of_a_digest_and_a_layout_is_found_and_no_other_is_read(monkeypatch: pytest.MonkeyPatch):
    one, two = "1" * 32, "2" * 32
    script = chain(1).commit(digest=one).commit(digest=two).commit(digest=one, metadata={"digest": two})
    state = script.commit(digest=two, layout=OTHER_LAYOUT).commit().state
    read, parse = [], VersionEntry.model_validate_json

    def counted(line: bytes) -> VersionEntry:
        read.append(line)
        return parse(line)

    store = DictStore()
    _, stored = read_snapshot(store, put_snapshot(store, state))
    monkeypatch.setattr(VersionEntry, "model_validate_json", counted)
    found = [stored.by_digest(layout, digest) for layout in (LAYOUT, OTHER_LAYOUT) for digest in (one, two, "3" * 32)]
    assert [entry and entry.version for entry in found] == [3, 2, None, None, 4, None]
    assert sorted({parse(line).version for line in read}) == [1, 2, 3, 4]


@pytest.mark.parametrize("number", [-1, 6])
def test_a_version_that_was_never_committed_is_not_found(number):
    with pytest.raises(NotFound, match="the newest is 5"):
        rich().state.version(number)


def test_patches_and_keyframes_are_found_by_version():
    state = rich().state
    assert state.patches_into(2) == (patch(1, 2), patch(0, 2, tag=5))
    assert state.patches_from(0) == (patch(0, 2, tag=5), patch(0, 3, tag=6))
    assert state.keyframe(0) == keyframe(0)
    assert state.keyframe(3) == keyframe(3, tag=9)
    assert state.keyframe(4) is None


def test_retired_objects_are_gone_and_a_keyframe_goes_as_a_whole():
    state = rich().state
    gone = keyframe(2, shards=3)
    assert state.patches_into(1) == ()
    assert state.keyframe(2) is None
    for key in (patch(0, 1).object.key, gone.index.key, *(shard.key for shard in gone.shards)):
        assert not state.is_live(key)
        assert key in state.retired_keys


def test_the_keyframe_of_a_retired_version_is_not_offered():
    state = chain(2).retire(versions=(0,)).state
    assert state.is_retired(0)
    assert state.keyframe(0) is None
    assert list(state.keyframes) == [keyframe(0)]


def test_of_two_keyframes_of_a_version_the_newer_is_offered_until_it_is_retired():
    script = chain(1).attach(keyframes=(keyframe(0, tag=3),))
    assert script.state.keyframe(0) == keyframe(0, tag=3)
    assert script.retire(keys=(keyframe(0, tag=3).index.key,)).state.keyframe(0) == keyframe(0)


def test_to_retire_twice_changes_nothing():
    once = chain(2).retire(keys=(patch(0, 1).object.key,))
    before = facts(once.state)
    after = facts(once.retire(versions=(), keys=(patch(0, 1).object.key,)).state)
    assert {**before, "head": 0} == {**after, "head": 0}


def test_a_commit_of_an_older_epoch_is_void_and_takes_its_place_in_the_log():
    script = chain(2).epoch()
    state, record = script.state, script.make_commit(epoch=1)
    before = facts(state)
    assert advance(state, record, sealed_hash(record.seal())) is Effect.VOID
    assert {**facts(state), "head": 0} == {**before, "head": 0}
    assert (state.seq, state.last) == (record.seq, sealed_hash(record.seal()))


def test_a_void_commit_may_name_any_version_and_objects_that_are_named_later():
    script = chain(2).epoch().commit(epoch=1, version=7, patch=patch(6, 7)).commit(epoch=1).commit()
    assert [entry.version for entry in script.state.versions] == [0, 1, 2]


def test_attach_and_retire_of_an_older_epoch_are_valid():
    script = chain(3).epoch()
    script.attach(epoch=1, patches=(patch(0, 2, tag=1),)).retire(epoch=1, keys=(patch(0, 1).object.key,))
    assert patch(0, 2, tag=1) in script.state.patches
    assert patch(0, 1) not in script.state.patches


def test_a_record_that_breaks_a_rule_leaves_the_state_as_it_was():
    script = chain(2)
    before = facts(script.state)
    with pytest.raises(CorruptObject, match="record 3"):
        advance(script.state, script.make_commit(version=7, patch=patch(6, 7)), "0" * 64)
    assert facts(script.state) == before


def test_versions_that_were_retired_and_deleted_are_forgotten_and_the_rest_keep_their_numbers():
    state = long().state
    assert [entry.version for entry in state.versions] == [3, 4, 5, 6]
    assert len(state.versions) == 7
    assert [entry.version for entry in state.versions[1:5]] == [3, 4]
    assert state.latest == state.versions[-1] == state.version(6)
    assert (state.find(2), state.find(7), state.find(-1)) == (None, None, None)
    assert [state.is_retired(n) for n in range(7)] == [True, True, True, True, False, False, False]
    assert (state.by_step(20), state.by_step(0)) == (None, None)
    for number in (0, 1, 2):
        with pytest.raises(Gone, match=f"version {number} .* retired and deleted"):
            state.version(number)
        with pytest.raises(Gone):
            state.versions[number]
    with pytest.raises(NotFound, match="the newest is 6"):
        state.version(7)


def test_of_a_step_that_two_versions_carry_the_one_that_is_left_is_found():
    script = chain(2).commit(step=0).retire(versions=(0,)).delete()
    assert script.state.by_step(0).version == 2


def test_what_was_retired_after_the_record_that_a_delete_names_is_not_forgotten():
    script = chain(4).retire(versions=(0,))
    until = script.state.seq
    state = script.retire(versions=(1,)).delete(until=until).state
    assert (state.find(0), state.find(1)) == (None, chain(4).state.versions[1])
    assert dict(state.retired_versions) == {1: until + 1}


def test_objects_of_forgotten_versions_are_live_no_more_even_if_nothing_retired_them():
    script = chain(4).attach(patches=(patch(0, 2, tag=1), patch(1, 3, tag=1)), keyframes=(keyframe(1), keyframe(2)))
    state = script.retire(versions=(0, 1)).delete().state
    assert list(state.patches) == [patch(2, 3)]
    assert list(state.keyframes) == [keyframe(2)]
    assert not state.is_live(keyframe(0).shards[0].key)
    assert state.patches_into(2) == state.patches_from(1) == ()
    assert RunState.from_snapshot(state.to_snapshot()).to_snapshot() == state.to_snapshot()


def test_keys_are_remembered_as_long_as_a_record_could_name_them():
    keys = [patch(0, 2).object.key, patch(1, 3).object.key, patch(3, 4).object.key, "objects/strange"]
    state = chain(4).retire(versions=(0,), keys=tuple(keys)).delete().state
    assert state.retired_keys.keys() == set(keys[1:3])


def test_a_tag_stands_for_one_version_and_can_be_moved_and_taken_away():
    script = chain(3).tag("best", 0).tag("best", 2).tag("other", 1)
    assert dict(script.state.tags) == {"best": 2, "other": 1}
    assert dict(script.tag("best", None).tag("never-given", None).state.tags) == {"other": 1}
    assert script.retire(versions=(0,)).state.is_retired(0)


@pytest.mark.parametrize("length", range(len(long().records) + 1))
def test_a_snapshot_says_all_that_the_records_say(length):
    state = fold(RUN, long().records[:length])
    if length:
        snapshot = state.to_snapshot()
        again = RunState.from_snapshot(Snapshot.unseal(snapshot.seal()))
        assert facts(again) == facts(state)
        assert again.to_snapshot().seal() == snapshot.seal()


def test_cycles_are_looked_for_as_often_as_a_snapshot_is_read_however_long_it_is() -> None:
    def collections(versions: int) -> int:
        sealed, runs, threshold = chain(versions).state.to_snapshot().seal(), list[str](), gc.get_threshold()
        gc.callbacks.append(lambda phase, _: runs.append(phase))
        gc.set_threshold(10)
        try:
            RunState.from_snapshot(unsealed_snapshot(sealed)[0])
        finally:
            gc.set_threshold(*threshold)
            del gc.callbacks[-1]
        return len(runs)

    collections(2)  # what is made once is there
    assert collections(200) <= collections(20) + 4


@given(st.data())
def test_a_fold_that_goes_on_from_a_snapshot_is_the_fold_of_all_records(data):
    records = long().records
    cut = data.draw(st.integers(1, len(records)))
    state = RunState.from_snapshot(fold(RUN, records[:cut]).to_snapshot())
    for record in records[cut:]:
        advance(state, record, sealed_hash(record.seal()))
    assert facts(state) == facts(fold(RUN, records))


def test_to_advance_a_copy_leaves_the_original_as_it_was():
    records = long().records
    for cut in range(len(records)):
        original = fold(RUN, records[:cut])
        before, other = facts(original), original.copy()
        for record in records[cut:]:
            advance(other, record, sealed_hash(record.seal()))
        assert facts(original) == before
        assert facts(other) == facts(fold(RUN, records))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"versions": s.versions[::-1]}, "version 1 is out of its place"),
        (lambda s: {"versions": (s.versions[0], *s.versions)}, "version 0 is out of its place"),
        (lambda s: {"count": 2}, "version 2 is out of its place"),
        (lambda s: {"count": 4}, "its newest version is missing"),
        (lambda s: {"versions": s.versions[:2]}, "its newest version is missing"),
        (lambda s: {"versions": s.versions[1:]}, "names version 0, which is not in it"),
        (lambda s: {"versions": s.versions[1:], "keyframes": ()}, "names version 0, which is not in it"),
        (lambda s: {"patches": (*s.patches, patch(0, 9))}, "over its newest"),
        (lambda s: {"keyframes": (keyframe(9),)}, "over its newest"),
        (lambda s: {"retired_versions": (RetiredVersion(version=9, seq=1),)}, "over its newest"),
        (lambda s: {"retired_versions": (RetiredVersion(version=2, seq=1),)}, "version 2, its newest, as retired"),
        (lambda s: {"tags": {"best": 3}}, "over its newest"),
        (
            lambda s: {"tags": {"best": 1}, "retired_versions": (RetiredVersion(version=1, seq=1),)},
            "tag 'best' is that of a version that was retired",
        ),
    ],
)
def test_a_snapshot_that_no_fold_can_have_made_is_refused(change, message):
    snapshot = chain(3).state.to_snapshot()
    with pytest.raises(CorruptObject, match=message):
        RunState.from_snapshot(snapshot.model_copy(update=change(snapshot)))


def test_a_layout_can_change_and_change_back():
    script = chain(2).commit(layout=OTHER_LAYOUT).commit(layout=LAYOUT)
    assert [entry.layout for entry in script.state.versions] == [LAYOUT, LAYOUT, OTHER_LAYOUT, LAYOUT]


def test_versions_from_one_on_leave_out_the_forgotten():
    script = chain(8).retire(versions=(0, 1, 4))
    script.delete()
    state = script.state
    for first in range(-1, 9):
        expected = [entry.version for entry in state.versions[max(0, first) :]]
        assert [entry.version for entry in state.versions_since(first)] == expected
    assert [entry.version for entry in reversed(state.versions)] == [7, 6, 5, 3, 2]
