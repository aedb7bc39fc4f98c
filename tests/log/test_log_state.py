"""The fold of records into the state of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.log import Effect, RunState, fold, sealed_hash
from pulse_schemas import Snapshot
from tests.log.builders import LAYOUT, OTHER_LAYOUT, RUN, Script, chain, keyframe, patch


def facts(state: RunState) -> dict[str, object]:
    """Everything that a state can be asked."""
    numbers = range(len(state.versions))
    return {
        "head": (state.run, state.seq, state.last, state.epoch, state.latest),
        "versions": list(state.versions),
        "patches": list(state.patches),
        "keyframes": list(state.keyframes),
        "into": [state.patches_into(n) for n in numbers],
        "from": [state.patches_from(n) for n in numbers],
        "keyframe": [state.keyframe(n) for n in numbers],
        "step": [state.by_step(entry.step) for entry in state.versions],
        "retired": [state.is_retired(n) for n in numbers],
        "retired_keys": set(state.retired_keys),
        "live": [state.is_live(p.object.key) for p in state.patches],
    }


def rich() -> Script:
    """A history with every kind of record, a void commit and a change of layout."""
    script = chain(4)
    script.attach(patches=(patch(0, 2, tag=5), patch(0, 3, tag=6)), keyframes=(keyframe(2, shards=3),))
    script.epoch().commit(epoch=1).commit(step=10)
    script.retire(versions=(1,), keys=(patch(0, 1).object.key, keyframe(2, shards=3).shards[1].key))
    return script.commit(layout=OTHER_LAYOUT).attach(keyframes=(keyframe(3, tag=9),), epoch=1)


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
    assert state.advance(record, sealed_hash(record.seal())) is Effect.VOID
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
        script.state.advance(script.make_commit(version=7, patch=patch(6, 7)), "0" * 64)
    assert facts(script.state) == before


@pytest.mark.parametrize("length", range(len(rich().records) + 1))
def test_a_snapshot_says_all_that_the_records_say(length):
    state = fold(RUN, rich().records[:length])
    if length:
        snapshot = state.to_snapshot()
        again = RunState.from_snapshot(Snapshot.unseal(snapshot.seal()))
        assert facts(again) == facts(state)
        assert again.to_snapshot().seal() == snapshot.seal()


@given(st.data())
def test_a_fold_that_goes_on_from_a_snapshot_is_the_fold_of_all_records(data):
    records = rich().records
    cut = data.draw(st.integers(1, len(records)))
    state = RunState.from_snapshot(fold(RUN, records[:cut]).to_snapshot())
    for record in records[cut:]:
        state.advance(record, sealed_hash(record.seal()))
    assert facts(state) == facts(fold(RUN, records))


def test_to_advance_a_copy_leaves_the_original_as_it_was():
    records = rich().records
    for cut in range(len(records)):
        original = fold(RUN, records[:cut])
        before, other = facts(original), original.copy()
        for record in records[cut:]:
            other.advance(record, sealed_hash(record.seal()))
        assert facts(original) == before
        assert facts(other) == facts(fold(RUN, records))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"versions": s.versions[1:]}, "version 1 in the place of 0"),
        (lambda s: {"patches": (*s.patches, patch(0, 9))}, "over its newest"),
        (lambda s: {"keyframes": (keyframe(9),)}, "over its newest"),
        (lambda s: {"retired_versions": (9,)}, "over its newest"),
    ],
)
def test_a_snapshot_that_no_fold_can_have_made_is_refused(change, message):
    snapshot = chain(3).state.to_snapshot()
    with pytest.raises(CorruptObject, match=message):
        RunState.from_snapshot(snapshot.model_copy(update=change(snapshot)))


def test_a_layout_can_change_and_change_back():
    script = chain(2).commit(layout=OTHER_LAYOUT).commit(layout=LAYOUT)
    assert [entry.layout for entry in script.state.versions] == [LAYOUT, LAYOUT, OTHER_LAYOUT, LAYOUT]
