"""Many runs: which are copied, what each look says, and how following ends."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from pulse_registry.errors import Conflict, Forked, NotFound
from pulse_registry.format import keys
from pulse_registry.mirror import Fleet, Lanes
from pulse_registry.store import PrefixStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.bases import opened, tuned
from tests.support.mirrors import retrying
from tests.support.records import DictStore
from tests.support.registries import small_model
from tests.support.waiting import HANG_S


def pushed(store: DictStore, *runs: str, step: int = 0) -> None:
    for run in runs:
        with opened(store, run) as registry:
            registry.push(step, tuned(small_model(), step))


def fleet(source: DictStore, destination: DictStore, runs: str, **options: object) -> Fleet:
    return Fleet(source, destination, runs, LANES, retrying=retrying, **options)  # type: ignore[arg-type]


LANES = Lanes()


def test_following_goes_on_as_records_and_runs_come():
    source, copied, stop, seconds = DictStore(), DictStore(), threading.Event(), [0.0]
    pushed(source, "math-1", "math-2", "chat")
    with fleet(source, copied, "Math-*", monotonic=lambda: seconds[0]) as one:
        seen = Counter[str]()
        for outcome in one.follow(stop, 0.0):
            assert outcome.copied is not None
            seen[outcome.run] += outcome.copied.records
            if seen == {"math-1": 2, "math-2": 2}:
                pushed(source, "math-1", step=1)
                pushed(source, "math-3")
                seconds[0] += 60.0
            if seen == {"math-1": 4, "math-2": 2, "math-3": 2}:
                stop.set()
    assert not any(key.startswith("chat") for key in copied.objects)


def test_a_store_that_fails_is_asked_again_and_a_fork_ends_that_run_alone():
    source, copied, stop = DictStore(), DictStore(), threading.Event()
    pushed(source, "a", "b")
    broken = FaultStore(copied, [Fault("fail_before", verb="put", nth=4, times=1)])
    with fleet(source, broken, "*") as one:
        found = one.follow(stop, 0.0)
        assert sorted(next(found).run for _ in range(2)) == ["a", "b"]
        record = PrefixStore(copied, "a").get(keys.record_key(0))
        copied.objects[f"a/{keys.record_key(2)}"] = record
        pushed(source, "a", "b", step=1)
        records, failed = 0, None
        while records < 2 or failed is None:
            outcome = next(found)
            if outcome.copied is not None:
                assert outcome.run == "b"
                records += outcome.copied.records
            else:
                failed = outcome
        assert (failed.run, type(failed.error)) == ("a", Forked)
        copied.objects[f"b/{keys.record_key(4)}"] = record
        pushed(source, "b", step=2)
        with pytest.raises(Forked, match=r"record 2 of"):
            list(found)


def test_a_run_that_takes_long_keeps_no_other_one_waiting(monkeypatch):
    source, copied, stop, let_go = DictStore(), DictStore(), threading.Event(), threading.Event()
    pushed(source, "a", "b")
    get = source.get

    def slow(key, *args, **named):
        if key.startswith("a/objects/"):
            assert let_go.wait(HANG_S)
        return get(key, *args, **named)

    monkeypatch.setattr(source, "get", slow)
    with fleet(source, copied, "*") as one:
        found = one.follow(stop, 0.01)
        assert next(found).run == "b"
        pushed(source, "b", step=1)
        assert next(found).run == "b"
        let_go.set()
        assert "a" in (outcome.run for outcome in found)


def test_who_asks_for_no_run_is_told():
    source = DictStore()
    pushed(source, "a")
    with fleet(source, DictStore(), "b*") as one, pytest.raises(NotFound, match="is called b"):
        list(one.copy())
    with fleet(source, source, "a") as one:
        [outcome] = one.copy()
        assert isinstance(outcome.error, Conflict), "onto itself"


@pytest.mark.parametrize("name", ["b", "pulse-doctor-00"])
def test_a_folder_without_a_log_is_no_run_until_it_has_one(name: str):
    source, copied, stop, seconds = DictStore(), DictStore(), threading.Event(), [0.0]
    source.objects[f"{name}/layouts/1.json"] = b"its first push is under way"
    with fleet(source, DictStore(), "*") as one, pytest.raises(NotFound, match=r"is called \*"):
        list(one.copy())
    with fleet(source, DictStore(), name) as one:
        [outcome] = one.copy()
        assert isinstance(outcome.error, NotFound)
    pushed(source, "a")
    with fleet(source, copied, "*", monotonic=lambda: seconds[0]) as one:
        found = one.follow(stop, 0.0)
        assert next(found).run == "a"
        pushed(source, name)
        seconds[0] += 60.0
        assert next(found).run == name
    with fleet(source, DictStore(), "*") as one:
        assert [outcome.run for outcome in one.copy()] == ["a", name]


def test_following_goes_on_while_the_source_can_not_be_listed():
    source, copied, stop, seconds = DictStore(), DictStore(), threading.Event(), [0.0]
    pushed(source, "a")
    listing = Fault("fail_before", verb="list", matches=lambda verb, key: key == "", nth=2, times=1)
    with fleet(FaultStore(source, [listing]), copied, "*", monotonic=lambda: seconds[0]) as one:
        found = one.follow(stop, 0.0)
        next(found)
        pushed(source, "a", step=1)
        seconds[0] += 60.0
        assert next(found).run == "a"
        pushed(source, "b")
        seconds[0] += 60.0
        assert next(found).run == "b"
