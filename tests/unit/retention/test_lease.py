"""A reader's lease: few writes, none that a pull waits for, and one that the collector keeps to."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from pulse_registry.errors import Conflict, Gone, InvalidArgument, StoreUnavailable
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.pull.lease import LeaseKeeper, ReaderLease
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.runtime.dependencies import Dependencies, Threads
from pulse_registry.store import MOST_WHOLE_BYTES, PrefixStore, WrapperStore, body_views
from pulse_registry.testing import CountingStore
from pulse_schemas import Lease
from tests.support.clock import Clock
from tests.support.records import RUN, DictStore
from tests.support.waiting import HANG_S, until

KEY = keys.lease_key("w1")


class Refusing(WrapperStore):
    """A store that takes no leases while it is told so."""

    refuses = True

    def put(self, key, data, *, if_absent=False):
        if self.refuses and keys.LEASES in key:
            raise StoreUnavailable(key)
        super().put(key, data, if_absent=if_absent)

    def delete(self, key):
        if self.refuses:
            raise StoreUnavailable(key)
        super().delete(key)


def lease_over(store, clock=None, told=None, seconds=3600.0) -> ReaderLease:
    events = Events() if told is None else Events(told.append)
    return ReaderLease(store, RUN, "w1", seconds, events=events, monotonic=clock or Clock())


def test_nothing_is_written_before_a_version_is_held():
    store = CountingStore(DictStore())
    lease = lease_over(store)
    assert lease.renew() is None
    lease.give_up()
    assert store.ledger == []


def test_a_lease_says_who_holds_what_and_for_how_long():
    store = DictStore()
    lease = lease_over(store)
    lease.hold(7)
    assert lease.renew() == 1200
    assert Lease.unseal(store.get(KEY)) == Lease(run=RUN, reader="w1", version=7, seconds=3600)


def test_a_worker_that_pulls_every_ten_seconds_writes_three_times_an_hour():
    store, clock = CountingStore(DictStore()), Clock()
    lease = lease_over(store, clock)
    for version in range(360):
        lease.hold(version)
        lease.renew()
        clock.now += 10
    assert store.calls == {"put": 3}
    assert Lease.unseal(store.get(KEY)).version == 240
    lease.give_up()
    lease.give_up()
    assert store.calls["delete"] == 1
    assert not store.exists(KEY)


def test_a_worker_that_pulls_nothing_keeps_its_lease():
    store, clock = CountingStore(DictStore()), Clock()
    lease = lease_over(store, clock)
    lease.hold(7)
    for _ in range(3):
        left = lease.renew()
        assert left is not None
        clock.now += left
    assert store.calls == {"put": 3}


def test_a_lease_that_can_not_be_written_is_told_of_once_and_tried_again():
    told: list[Event] = []
    store, clock = Refusing(DictStore()), Clock()
    lease = lease_over(store, clock, told)
    lease.hold(7)
    for _ in range(3):
        assert lease.renew() == 15, "soon, and not when a third of its time is over"
        clock.now += 15
    assert [(event.kind, event.run, event.key) for event in told] == [(EventKind.LEASE_FAILED, RUN, KEY)]
    store.refuses = False
    lease.renew()
    assert store.exists(KEY)
    store.refuses = True
    clock.now += 1200
    lease.renew()
    assert len(told) == 2
    lease.give_up()
    assert store.exists(KEY)


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 604_801, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused(seconds):
    with pytest.raises(InvalidArgument, match="lease_seconds"):
        lease_over(DictStore(), seconds=seconds)


def test_a_keeper_writes_in_a_thread_of_its_own_and_ends_when_it_is_closed():
    written = threading.Event()

    class Noting(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            super().put(key, data, if_absent=if_absent)
            if threading.current_thread() is not threading.main_thread():
                written.set()

    store = Noting(DictStore())
    keeper = LeaseKeeper(lease_over(store))
    keeper.hold(7)
    assert written.wait(HANG_S)
    keeper.hold(8)
    keeper.close()
    keeper.close()
    keeper.hold(9)
    assert not store.exists(KEY)
    assert "pulse-lease" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("error", [StoreUnavailable("down"), RuntimeError("a hardware key was pulled"), MemoryError()])
def test_a_lease_is_written_in_the_end_whatever_signers_stores_and_listeners_raise(error: Exception):
    failures, written, told = iter([error, error]), threading.Event(), []

    class Failing(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            for failure in failures:
                raise failure
            super().put(key, data, if_absent=if_absent)
            written.set()

    def listen(event: Event) -> None:
        told.append(event.kind)
        raise ValueError("a listener's own error")

    clock = iter(range(0, 10**9, 2000))  # a renewal is due at every look
    lease = ReaderLease(
        Failing(DictStore()), RUN, "w1", 3600, events=Events(listen), monotonic=lambda: float(next(clock))
    )
    keeper = LeaseKeeper(lease)
    keeper.hold(7)
    assert written.wait(60)
    keeper.close()
    assert told == [EventKind.LEASE_FAILED]


def test_a_reader_for_which_no_thread_can_be_started_is_told_and_tries_again(monkeypatch: pytest.MonkeyPatch):
    told: list[Event] = []
    store = DictStore()
    keeper = LeaseKeeper(lease_over(store, told=told))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        keeper.hold(7)
    assert [event.kind for event in told] == [EventKind.LEASE_FAILED]
    keeper.hold(8)
    until(lambda: KEY in store.objects)
    keeper.close()


def test_a_lease_that_can_not_be_removed_stops_no_registry_from_closing():
    asked = []

    class Broken(WrapperStore):
        def delete(self, key):
            asked.append(key)
            raise RuntimeError("not ours")

    lease = lease_over(Broken(DictStore()))
    lease.hold(7)
    lease.renew()
    lease.give_up()
    assert asked == [KEY]


# -- through the registry ----------------------------------------------------------------------------------------------


def weights() -> dict[str, np.ndarray]:
    return {"w": np.zeros(64, np.uint16)}


def pushed(store, versions: int) -> None:
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as trainer:
        model = weights()
        for step in range(versions):
            model["w"][step % 64] += 1
            trainer.push(step, model)


def leases(store) -> list[Lease]:
    below = PrefixStore(store, RUN)
    return [Lease.unseal(below.get(key)) for key in below.list(keys.LEASES)]


class Waiting(WrapperStore):
    """Tells when the first lease was written."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.leased = threading.Event()

    def put(self, key, data, *, if_absent=False):
        super().put(key, data, if_absent=if_absent)
        if keys.LEASES in key:
            self.leased.set()


def test_a_worker_with_a_name_has_a_lease_from_its_first_pull_until_it_is_closed():
    store = Waiting(DictStore())
    pushed(store, 3)
    with Registry(
        store, RUN, Options(name="w", pull=PullOptions(lease_seconds=100), compute=ComputeOptions(backend="reference"))
    ) as worker:
        assert leases(store) == []
        worker.pull(1, into=weights())
        assert store.leased.wait(HANG_S)
        (lease,) = leases(store)
        assert (lease.version, lease.seconds, lease.reader.rpartition("-")[0]) == (1, 100, "w")
    assert leases(store) == []


@pytest.mark.parametrize("options", [{}, {"name": "w", "pull": PullOptions(lease_seconds=None)}])
def test_a_worker_without_a_name_or_that_wants_none_takes_no_lease(options):
    store = CountingStore(DictStore())
    pushed(store, 2)
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"), **options)) as worker:
        worker.pull("latest", into=weights())
    assert not any(keys.LEASES in key for _, key in store.ledger)


@pytest.mark.slow
def test_a_pull_does_not_fail_where_no_lease_can_be_written():
    store, told = Refusing(DictStore()), []
    pushed(store, 2)
    heard = threading.Event()

    def listen(event: Event) -> None:
        told.append(event.kind)
        heard.set()

    with Registry(
        store, RUN, Options(name="w", on_event=listen, compute=ComputeOptions(backend="reference"))
    ) as worker:
        assert worker.pull("latest", into=weights()).version == 1
        assert heard.wait(HANG_S)
    assert told == [EventKind.LEASE_FAILED]


def test_a_registry_that_is_forgotten_renews_its_lease_no_more():
    store = Waiting(DictStore())
    pushed(store, 1)
    pools: list[Threads] = []

    def threads(count: int, name: str) -> Threads:
        pools.append(Threads(count, name))
        return pools[-1]

    options = Options(name="w", compute=ComputeOptions(backend="reference"))
    worker = Registry(store, RUN, options, dependencies=Dependencies(threads=threads))
    worker.pull("latest", into=weights())
    assert store.leased.wait(HANG_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "pulse-lease"]
    for pool in pools:
        pool.shutdown()
    del worker
    gc.collect()
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_what_a_worker_holds_stays_and_it_goes_on_by_patches():
    store = Waiting(DictStore())
    pushed(store, 6)
    policy = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0)
    with (
        Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as operator,
        Registry(store, RUN, Options(name="w", compute=ComputeOptions(backend="reference"))) as worker,
    ):
        model = weights()
        worker.pull(2, into=model)
        assert store.leased.wait(HANG_S)
        for _ in range(2):
            operator.gc(policy, dry_run=False)
        assert [version.version for version in operator.versions()][-1] == 5
        assert 2 in [version.version for version in operator.versions()]
        assert worker.pull("latest", into=model).version == 5


def test_a_reader_of_a_version_that_was_deleted_is_told_that_it_is_gone():
    store = DictStore()
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry:
        model = {"w": np.zeros(64, np.uint16)}
        for step in range(6):
            model["w"][:] += 1  # so much that keyframes follow
            registry.push(step, model)
        policy = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0)
        holder = weights()
        registry.pull(0, into=holder)
        retired = registry.gc(policy, dry_run=False).plan.versions
        assert 0 in retired
        with pytest.raises(Gone):
            registry.load(0)
        assert registry.gc(policy, dry_run=False).deleted > 0
        with pytest.raises(Gone):
            registry.load(0)
        with pytest.raises(Gone):
            registry.version(0)
        assert registry.pull("latest", into=holder).version == 5
        np.testing.assert_array_equal(holder["w"], model["w"])


def test_a_tag_keeps_a_version_and_can_be_pulled():
    store = DictStore()
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry:
        model = {"w": np.zeros(64, np.uint16)}
        for step in range(6):
            model["w"][:] += 1
            registry.push(step, model)
        assert registry.tag("best", 1) is None
        assert registry.tag("best", 3) == 1
        registry.tag("newest", "latest")
        assert registry.tags() == {"best": 3, "newest": 5}
        for _ in range(2):
            registry.gc(RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0), dry_run=False)
        assert registry.pull("best", into=weights()).version == 3
        assert registry.tag("best", None) == 3
        assert registry.tags() == {"newest": 5}
        with pytest.raises(InvalidArgument, match="newest version at any time"):
            registry.tag("latest", 5)
        with pytest.raises(Gone):
            registry.tag("old", 0)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_pull_whose_objects_are_retired_or_deleted_on_its_way_goes_by_a_keyframe(deletes: bool):
    inner = DictStore()
    with Registry(
        inner, RUN, Options(push=PushOptions(keyframe_share=1e9), compute=ComputeOptions(backend="reference"))
    ) as trainer:
        model, holder = weights(), weights()
        for step in range(6):
            model["w"][step] += 1
            trainer.push(step, model)
        trainer.pull(1, into=holder)

    class Collected(WrapperStore):
        """A store whose garbage is collected the moment that a patch is first asked for."""

        done = False

        def get(self, key, byte_range=None, *, max_bytes=MOST_WHOLE_BYTES):
            if "/patch/" in key and not self.done:
                self.done = True
                with Registry(
                    inner, RUN, Options(push=PushOptions(keyframe_every=1), compute=ComputeOptions(backend="reference"))
                ) as operator:
                    operator.push(7, model)
                with Registry(
                    inner, RUN, Options(compute=ComputeOptions(backend="reference"))
                ) as operator:  # the push has ended, with its keyframe
                    for _ in range(1 + deletes):
                        operator.gc(RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0), dry_run=False)
            return super().get(key, byte_range, max_bytes=max_bytes)

    store = Collected(inner)
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as worker:
        worker.verify(0)
        store.done = False
        worker.verify(1, model=holder)
        result = worker.pull("latest", into=holder)
        assert store.done
        assert result.version == (6 if deletes else 5)
        assert result.avoided == ()
        np.testing.assert_array_equal(holder["w"], model["w"])


@pytest.mark.parametrize("first", [False, True])
def test_a_trainer_that_slept_through_a_collection_loses_nothing(first: bool):
    inner = DictStore()
    if not first:
        pushed(inner, 3)

    class Sleepy(WrapperStore):
        """A store to which a trainer's next commit comes so late that what it names was taken for an orphan."""

        awake = False

        def put(self, key, data, *, if_absent=False):
            if "/log/0" in key and b'"kind":"commit"' in b"".join(body_views(data)) and not self.awake:
                self.awake = True
                with Registry(inner, RUN, Options(compute=ComputeOptions(backend="reference"))) as operator:
                    policy = RetentionPolicy(keep_last=9, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
                    for _ in range(2):
                        operator.gc(policy, dry_run=False)
            super().put(key, data, if_absent=if_absent)

    store = Sleepy(inner)
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as trainer:
        model = weights()
        if not first:
            trainer.pull("latest", into=model)
        model["w"][7] += 5
        with pytest.raises(Conflict, match="the next push"):
            trainer.push(3, model)
        model["w"][8] += 5
        result = trainer.push(4, model)
        assert result.version == (0 if first else 3)
    with Registry(inner, RUN, Options(compute=ComputeOptions(backend="reference"))) as reader:
        found = reader.load("latest", framework="numpy")
        np.testing.assert_array_equal(found["w"], model["w"])
        reader.verify()
