"""Runs that share a base of the root: its files come along once, after the run's reference, which goes in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from pulse_registry.bases.collector import BaseCollector
from pulse_registry.bases.sharing import LOOK_SECONDS
from pulse_registry.errors import Conflict
from pulse_registry.format import keys
from pulse_registry.mirror import Mirror
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import Body, Store, WrapperStore
from pulse_registry.testing import CountingStore
from pulse_schemas import BASES
from tests.support.bases import LENDER, base_files, broken_promises, lend, opened, state_of, tuned
from tests.support.mirrors import retrying
from tests.support.records import DictStore

HOUR = 3600.0
NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


class Watched(DictStore):
    def put(self, key, data, *, if_absent=False):
        super().put(key, data, if_absent=if_absent)
        assert not broken_promises(self), f"after {key}"


def fleet() -> DictStore:
    """Return a root with a run that lends, and two that begin with its version."""
    source = DictStore()
    model = lend(source)
    for number, run in enumerate(("math", "code")):
        with opened(source, run, base=LENDER) as registry:
            for step in range(3):
                model = tuned(model, 10 * number + step)
                registry.push(step, model)
    return source


def test_a_base_is_copied_once_for_all_runs_that_name_it():
    source, copied = fleet(), Watched()
    counted = CountingStore(source)
    for run in ("math", "code"):
        with Mirror(counted, copied, run, retrying=retrying) as one:
            one.catch_up()
    assert base_files(copied) == base_files(source)
    assert all(copied.objects[key] == source.objects[key] for key in base_files(source))
    shards = [key for verb, key in counted.ledger if verb == "get" and key in base_files(source)]
    assert len(shards) == len(set(shards)), "each file was fetched once"
    own = {
        key: data
        for key, data in source.objects.items()
        if key.startswith(("math/", "code/")) and "/leases/" not in key
    }
    assert {key: copied.objects[key] for key in own} == own
    with opened(source, "math") as there, opened(copied, "math") as here:
        one, two = tuned(lend(DictStore()), 1), tuned(lend(DictStore()), 2)
        assert there.pull("latest", into=one).digest == here.pull("latest", into=two).digest


def test_a_reference_goes_at_the_copy_once_the_run_has_retired_the_base():
    source, copied = fleet(), DictStore()
    with Mirror(source, copied, "math", retrying=retrying, policy=NOW) as one:
        one.catch_up()
    reference = next(key for key in copied.objects if key.startswith("math/bases/"))
    with opened(source, "math", keyframe_every=1) as registry:
        model = lend(DictStore())
        for step in range(3, 6):
            model = tuned(model, step)
            registry.push(step, model)
        for _ in range(3):
            registry.gc(NOW, dry_run=False)
    assert reference not in source.objects
    for _ in range(2):
        with Mirror(source, copied, "math", retrying=retrying, policy=NOW) as one:
            one.catch_up()
    assert reference not in copied.objects
    assert any(key.startswith(BASES) for key in copied.objects), "which the root's own collector deletes"


class Clock:
    """Of a root: it goes on when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Stopped(WrapperStore):
    """A collector's store: ``meanwhile`` happens before its first deletion."""

    def __init__(self, store: Store, meanwhile: Callable[[], None]) -> None:
        super().__init__(store)
        self._meanwhile = [meanwhile]

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if key == f"{BASES}{keys.CLOCK}" and self.looked:
            while self._meanwhile:
                self._meanwhile.pop()()
        super().put(key, data, if_absent=if_absent)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self.looked = self.looked or not prefix
        return super().folders(prefix, after)

    looked = False
    """Whether it has looked for runs, and what they refer to."""


def closed_at_the_copy(clock: Clock) -> tuple[DictStore, DictStore]:
    """Return a source, and a copy whose only run has retired the base, so that it was closed there an hour ago."""
    source, copied = fleet(), DictStore(clock)
    with Mirror(source, copied, "math", retrying=retrying) as one:
        one.catch_up()
    for key in [key for key in copied.objects if key.startswith("math/")]:
        copied.delete(key)
    assert [base.due for base in BaseCollector(copied).collect(HOUR, dry_run=False)] == ["closed"]
    clock.wait(HOUR + 2)
    return source, copied


def test_a_run_comes_to_a_base_that_is_closed_at_the_copy_once_no_collector_can_delete_it():
    clock, seconds = Clock(), [0.0]
    source, copied = closed_at_the_copy(clock)
    with Mirror(source, copied, "code", retrying=retrying, monotonic=lambda: seconds[0]) as one:
        with pytest.raises(Conflict, match="mirror it again in 20 minutes"):
            one.catch_up()
        assert not state_of(copied, "code").versions
        for _ in range(2):
            clock.wait(LOOK_SECONDS - 1)
            seconds[0] += LOOK_SECONDS
            assert len(one.step().blocked) == 1, "its reference keeps its age, however often it is asked for"
        clock.wait(2)
        seconds[0] += 61.0
        assert one.catch_up().blocked == ()
    assert not broken_promises(copied)
    assert [base.due for base in BaseCollector(copied).collect(0.0, dry_run=False)] == [None], "it is kept by then"
    with opened(copied, "code") as registry:
        registry.pull("latest", into=tuned(lend(DictStore()), 5))


def test_a_collector_that_stopped_before_it_deletes_takes_nothing_that_a_copy_relies_on():
    clock = Clock()
    source, copied = closed_at_the_copy(clock)

    def meanwhile() -> None:
        for _ in range(2):
            with Mirror(source, copied, "code", retrying=retrying) as one, suppress(Conflict):
                one.catch_up()
            clock.wait(2 * LOOK_SECONDS)
        assert state_of(copied, "code").versions

    collector = BaseCollector(Stopped(copied, meanwhile))
    assert [base.due for base in collector.collect(HOUR, dry_run=False)] == ["deleted"], "as it looked then"
    assert state_of(copied, "code").versions
    assert not broken_promises(copied)


def test_files_that_a_collector_deletes_meanwhile_are_copied_anew():
    clock = Clock()
    source, copied = closed_at_the_copy(clock)
    with Mirror(source, copied, "code", retrying=retrying) as one:
        assert one.step().blocked
    for key in base_files(copied):
        copied.delete(key)  # by a collector that looked before the reference was there
    clock.wait(2 * LOOK_SECONDS)
    with Mirror(source, copied, "code", retrying=retrying) as one:
        one.catch_up()
    assert not broken_promises(copied)
    assert base_files(copied) == base_files(source)
