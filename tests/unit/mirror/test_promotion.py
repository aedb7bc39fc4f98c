"""A copy becomes the home of a run: no version is lost by a plan, and the old home takes no record any more."""

from __future__ import annotations

import itertools
import threading

import pytest

from pulse_registry.errors import Conflict, CorruptObject, Fenced, Forked, InvalidArgument, Mirrored, NotFound
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.mirror import Fleet, Lanes
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import PrefixStore
from tests.support.mirrors import copy, mirror, missing
from tests.support.promotions import Killed, Life, fence, promote, promote_lost, promotion, root, site
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, change, check_store, quick, small_model, state_of
from tests.support.waiting import HANG_S

EU, US = "dict://eu", "dict://us"


def push(store: DictStore, versions: int, *, begin: int = 0):
    """Push so many versions, and return the bits of each."""
    model = small_model()
    with quick(store) as registry:
        if begin:
            registry.pull("latest", into=model)
        found = []
        for step in range(begin, begin + versions):
            change(model, step)
            registry.push(step, model)
            found.append(bits(model))
    return found


def pulled(store: DictStore, version: int | str = "latest"):
    model = small_model(7)
    with quick(store) as registry:
        registry.pull(version, into=model)
    return bits(model)


def log_of(store: DictStore) -> dict[str, bytes]:
    return {key: data for key, data in store.objects.items() if "/log/0" in key}


def writer(store: DictStore) -> LogWriter:
    scoped = PrefixStore(store, RUN)
    return LogWriter(scoped, RUN, LogReader(scoped, RUN), utc_now, random_id, "other")


def again(store: DictStore) -> DictStore:
    """Return a root that has the same now."""
    made = root(store.url.removeprefix("dict://"))
    made.objects, made.times = dict(store.objects), dict(store.times)
    return made


def check_moved(old: DictStore, new: DictStore, states: list) -> None:
    """Check that the run lives at the new root alone, with all of its versions, and goes on there."""
    with pytest.raises(Fenced, match=f"moved it to {new.url}"):
        writer(old).begin()
    with pytest.raises(Fenced, match=f"moved it to {new.url}"):
        writer(old).tag("best", 0)
    assert [len(state_of(store).versions) for store in (old, new)] == [len(states)] * 2
    for number, state in enumerate(states):
        assert pulled(old, number) == pulled(new, number) == state
    states += push(new, 2, begin=len(states))
    assert pulled(new) == states[-1]
    assert check_store(new) == set()


def test_a_run_moves_and_goes_on_at_the_copy_alone():
    us, eu = root("us"), root("eu")
    states = push(us, 4)
    copy(us, eu)
    with pytest.raises(Mirrored):
        writer(eu).begin()
    states += push(us, 2, begin=4)
    done = promote(eu, us)
    assert done.home.to == EU
    assert done.latest is not None
    assert done.latest.version == 5
    check_moved(us, eu, states)


def test_a_run_moves_to_a_root_that_has_nothing_yet():
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    promote(eu, us)
    check_moved(us, eu, states)


def test_a_move_that_is_done_is_done_again_without_effect():
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    first = promote(eu, us)
    push(eu, 1, begin=3)
    before = [dict(store.objects) for store in (us, eu)]
    assert promote(eu, us).home == first.home
    assert [dict(store.objects) for store in (us, eu)] == before
    assert pulled(us, 2) == states[2]


def test_a_move_of_before_is_not_done_again_where_the_run_has_moved_on():
    us, eu, asia = root("us"), root("eu"), root("asia")
    push(us, 2)
    promote(eu, us)
    promote(asia, eu)
    copy(asia, eu)
    before = dict(eu.objects)
    with pytest.raises(Fenced, match="moved it to dict://asia"):
        promote(eu, us)
    assert eu.objects == before, "a copy, with its mark"


@pytest.mark.slow
def test_a_run_comes_back_the_same_way():
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    promote(eu, us)
    states += push(eu, 2, begin=3)
    copy(eu, us)  # the old home is a copy now
    with pytest.raises(Fenced):
        writer(us).begin()
    states += push(eu, 1, begin=5)
    promote(us, eu)
    check_moved(eu, us, states)
    copy(us, eu)
    promote(eu, us)
    check_moved(us, eu, states)


def test_only_the_home_of_a_run_is_left():
    us, eu, asia = root("us"), root("eu"), root("asia")
    push(us, 2)
    promote(eu, us)
    with pytest.raises(Fenced, match="moved it to dict://eu"):
        promote(asia, us)
    promote(asia, eu)
    assert LogReader(PrefixStore(asia, RUN), RUN).refresh().home is not None


def test_what_can_not_be_copied_is_told_before_a_writer_is_fenced():
    us, eu = root("us"), root("eu")
    push(us, 3)
    key = next(key for key in us.objects if "/patch/" in key)
    us.objects[key] = us.objects[key][:-1] + b"\0"
    before = log_of(us)
    with pytest.raises(CorruptObject):
        promote(eu, us)
    assert log_of(us) == before


def test_a_copy_that_somebody_wrote_to_is_not_promoted():
    us, eu = root("us"), root("eu")
    push(us, 2)
    copy(us, eu)
    del eu.objects[f"{RUN}/{keys.MIRROR}"]
    push(eu, 1, begin=2)
    eu.objects[f"{RUN}/{keys.MIRROR}"] = b"x"
    before = log_of(us)
    with pytest.raises((Forked, CorruptObject)):
        promote(eu, us)
    assert log_of(us) == before


def test_there_must_be_a_run_and_two_roots():
    us, eu = root("us"), root("eu")
    with pytest.raises(NotFound, match="no run 'run' in dict://us"):
        promote(eu, us)
    with pytest.raises(NotFound, match="nothing goes on there"):
        promote_lost(eu, us)
    push(us, 1)
    with pytest.raises(InvalidArgument, match="is both"):
        promotion(us, us)
    with pytest.raises(InvalidArgument, match="no copy of it"):
        promote_lost(us, eu)


@pytest.mark.slow
@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.sweep)], ids=["some", "each"])
def test_a_promotion_that_is_killed_anywhere_is_finished_by_the_next(acts: bool, stride: int):
    first, second = root("us"), root("eu")
    states = push(first, 3)
    copy(first, second)
    states += push(first, 1, begin=3)
    for operations in itertools.count(1, stride):
        us, eu = again(first), again(second)
        life = Life(operations, acts=acts)
        try:
            promote(life.over(eu), life.over(us))
        except Killed:
            pass
        else:
            break
        if not eu.exists(f"{RUN}/{keys.MIRROR}"):
            writer(eu).begin()  # a trainer that saw it go may begin at once
        promote(eu, us)
        assert [len(state_of(store).versions) for store in (us, eu)] == [4, 4]
        assert sum(b'"kind":"move"' in data for data in log_of(us).values()) == 1
        with pytest.raises(Fenced, match=EU):
            writer(us).begin()
        writer(eu).begin()
        assert missing(state_of(us), state_of(eu), eu) == []
    assert operations > 30
    assert pulled(us, 3) == pulled(eu, 3) == states[3]


def test_pushes_that_are_under_way_are_acknowledged_and_moved_or_fenced():
    us, eu = root("us"), root("eu")
    acknowledged: list = []
    told: list[str] = []
    moved, begun = threading.Event(), threading.Event()
    model = small_model()

    def train() -> None:
        with quick(us) as registry:
            for step in itertools.count():
                change(model, step)
                try:
                    registry.push(step, model)
                except Fenced as error:
                    told.append(str(error))
                    return
                acknowledged.append(bits(model))
                if len(acknowledged) == 3:
                    begun.set()
                assert not moved.is_set() or step < 10_000

    trainer = threading.Thread(target=train)
    trainer.start()
    assert begun.wait(HANG_S)
    promote(eu, us)
    trainer.join(HANG_S)
    assert not trainer.is_alive()
    assert EU in told[0]
    check_moved(us, eu, acknowledged)


def test_a_lost_home_is_left_and_what_it_had_beyond_is_named_once_it_is_back():
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    copy(us, eu)
    push(us, 2, begin=3)  # never seen by the copy
    done = promote_lost(eu, us)
    assert done.latest is not None
    assert (done.home.to, done.latest.version) == (EU, 2)
    states += push(eu, 2, begin=3)
    assert fence(eu, us) == [3, 4]
    assert promote_lost(eu, us).home == done.home
    for attempt in (lambda: writer(us).begin(), lambda: writer(us).tag("best", 0)):
        with pytest.raises(Fenced, match=EU):
            attempt()
    with pytest.raises(Forked):
        copy(eu, us)
    assert fence(eu, us) == [3, 4]
    assert pulled(eu) == states[-1]
    assert check_store(eu) == set()


def test_two_promotions_of_a_lost_run_at_once_leave_a_home_or_an_error(monkeypatch):
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    copy(us, eu)
    put, other = eu.put, iter([promotion(eu, us)])

    def late(key, data, **options):
        if keys.record_seq(key.removeprefix(f"{RUN}/")) is not None:
            for one in other:
                one.lost()  # between the proof and the move of the first one
        put(key, data, **options)

    monkeypatch.setattr(eu, "put", late)
    with pytest.raises(Conflict, match="do it again"):
        promote_lost(eu, us)
    assert promote_lost(eu, us).home.to == EU
    states += push(eu, 1, begin=3)
    assert pulled(eu) == states[-1]


def test_a_writer_that_looked_before_there_was_a_run_writes_to_no_copy():
    us, eu = root("us"), root("eu")
    push(us, 2)
    early = writer(eu)
    early.check("commit")
    copy(us, eu)
    before = log_of(eu)
    with pytest.raises(Mirrored):
        early.begin()
    assert log_of(eu) == before


def test_a_lost_home_that_had_nothing_beyond_comes_back_as_a_copy():
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    copy(us, eu)
    promote_lost(eu, us)
    states += push(eu, 2, begin=3)
    assert fence(eu, us) == []
    copy(eu, us)
    states += push(eu, 1, begin=5)
    promote(us, eu)
    check_moved(eu, us, states)


def test_a_planned_move_whose_new_home_is_lost_before_it_arrives_is_taken_back():
    us, eu = root("us"), root("eu")
    states = push(us, 3)
    there = site(us)
    there.reader.refresh()
    there.writer.move(EU, random_id())  # and no more
    with pytest.raises(Fenced):
        writer(us).begin()
    promote_lost(us, eu)
    states += push(us, 1, begin=3)
    assert pulled(us) == states[-1]


def test_a_copy_of_another_home_than_the_lost_one_is_not_promoted():
    us, eu, asia = root("us"), root("eu"), root("asia")
    push(us, 2)
    copy(us, eu)
    promote_lost(eu, us)
    promote(asia, eu)
    before = log_of(eu)
    with pytest.raises(InvalidArgument, match="moved it to dict://asia, and not to dict://us"):
        fence(eu, us)  # as it would have been right before the second move
    assert log_of(eu) == before
    assert fence(asia, us) == []


@pytest.mark.parametrize("records", range(4, 8))
def test_a_copy_that_lags_behind_two_moves_takes_a_lost_run_by_a_move_of_its_own(records: int):
    us, eu = root("us"), root("eu")
    push(us, 2)
    copy(us, eu)
    promote(eu, us)
    writer(eu).begin()
    promote(us, eu)
    whole = dict(us.objects)
    eu.objects.clear()
    behind = root("us")
    behind.objects |= whole
    for seq in range(records, len(log_of(us))):
        del behind.objects[f"{RUN}/{keys.record_key(seq)}"]
    copy(behind, eu)
    moves = {data for data in log_of(eu).values() if b'"kind":"move"' in data}
    done = promotion(eu, us).lost()
    assert done.home.seq == records
    assert not any(done.home.move.encode() in data for data in moves)
    fence(eu, us)
    writer(eu).begin()
    with pytest.raises(Fenced, match=EU):
        writer(us).begin()


@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_promotion_of_a_lost_run_that_is_killed_anywhere_is_finished_by_the_next(acts: bool, back: bool):
    first, second = root("us"), root("eu")
    push(first, 2)
    copy(first, second)
    push(first, 1, begin=2)
    for operations in itertools.count(1):
        us, eu = again(first), again(second)
        life = Life(operations, acts=acts)
        try:
            if back:
                fence(life.over(eu), life.over(us))
            else:
                promote_lost(life.over(eu), us)
        except Killed:
            pass
        else:
            break
        assert fence(eu, us) == [2]
        assert sum(b'"kind":"move"' in data for data in log_of(us).values()) == 1
        assert sum(b'"kind":"move"' in data for data in log_of(eu).values()) == 1
        with pytest.raises(Fenced, match=EU):
            writer(us).begin()
        writer(eu).begin()
    assert operations > 8


def test_a_mirror_that_follows_a_run_ends_when_that_has_moved_to_its_copy():
    us, eu = root("us"), root("eu")
    push(us, 3)
    copy(us, eu)
    lanes = Lanes()
    with Fleet(us, eu, RUN, lanes) as fleet:
        [*fleet.copy()]  # it has begun
        promote(eu, us)
        push(eu, 1, begin=3)
        before = dict(eu.objects)
        with pytest.raises(Fenced, match=r"record \d+ moved it to dict://eu: the copy has all"):
            [*fleet.follow(threading.Event(), 0.01)]
    lanes.close()
    assert {key: data for key, data in eu.objects.items() if not key.endswith("/head")} == {
        key: data for key, data in before.items() if not key.endswith("/head")
    }
    with mirror(eu, us) as one:
        one.catch_up()
        assert one.left is None  # its source is the home


def test_a_mirror_that_slept_through_a_promotion_deletes_nothing_at_the_new_home():
    us, eu = root("us"), root("eu")
    push(us, 3)
    now = itertools.count(0.0, 1e6)
    at_once = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
    with mirror(us, eu, policy=at_once, monotonic=lambda: next(now)) as old:
        old.catch_up()
        promote(eu, us)
        [state] = push(eu, 1, begin=3)
        old.step()
    assert check_store(eu) == set()
    assert pulled(eu) == state
