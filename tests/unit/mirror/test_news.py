"""A version comes to the copy by its own requests alone: none of what a mirror does beside keeps it waiting.

Far is the source: what a version waits for is counted in calls to it that follow one another, each a round trip.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from pulse_registry.format import keys
from pulse_registry.mirror import Fleet, Lanes, Mirror
from pulse_registry.registry import Registry
from pulse_registry.store import WrapperStore, open_store
from pulse_registry.testing import CountingStore
from pulse_schemas import Countersignature, Lease
from tests.support.inline import Inline
from tests.support.mirrors import copy, mirror, retrying, tree
from tests.support.outer_rounds import make_rounds
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model, without_pauses
from tests.support.waiting import HANG_S, until

_TRIPS = 4
"""So many round trips a version takes at most."""
_BESIDE = ("pulse-mirror-tend", "pulse-mirror-ask")
"""Threads that do what no version waits for."""


class Told(WrapperStore):
    """Tells of each call before it is made, and of each get after that."""

    def __init__(self, store: DictStore, before: Callable[[str, str], None], after: Callable[[str], None]) -> None:
        super().__init__(store)
        self._before, self._after = before, after

    def get(self, key, byte_range=None, **bound):
        self._before("get", key)
        try:
            return super().get(key, byte_range, **bound)
        finally:
            self._after(key)

    def put(self, key, data, *, if_absent=False):
        self._before("put", key)
        super().put(key, data, if_absent=if_absent)

    def exists(self, key):
        self._before("exists", key)
        return super().exists(key)

    def size(self, key):
        self._before("size", key)
        return super().size(key)

    def modified(self, key):
        self._before("size", key)
        return super().modified(key)

    def list(self, prefix, after=None):
        self._before("list", prefix)
        return super().list(prefix, after)

    def folders(self, prefix, after=None):
        self._before("list", prefix)
        return super().folders(prefix, after)

    def delete(self, key):
        self._before("delete", key)
        super().delete(key)


class Story:
    """A mirror that follows; one call of what it does beside the looks is held, and a version comes.

    The version appears at the source when a look has just been answered that there is none.
    """

    def __init__(self, source: DictStore, held: Callable[[str, str], bool]) -> None:
        self.source, self.copied = source, DictStore()
        self.held, self.let_go, self.stop = threading.Event(), threading.Event(), threading.Event()
        self._missed, self._pushed = threading.Event(), threading.Event()
        self._holds, self._record = held, ""
        self._far: list[tuple[str, str]] = []
        self.waited_for: list[tuple[str, str]] = []

    @contextmanager
    def following(self, **options):
        lease = Lease(run=RUN, reader="distant", version=0, seconds=3600)
        self.copied.put(f"{RUN}/{keys.lease_key('distant')}", lease.seal())
        there = Told(self.source, self._far_call, self._answered)
        here = Told(self.copied, self._near_call, lambda key: None)
        with (
            ThreadPoolExecutor(1) as thread,
            Fleet(there, here, RUN[:-1] + "*", LANES, retrying=retrying, **options) as fleet,
        ):
            followed = thread.submit(lambda: [*fleet.follow(self.stop, 0.01)])
            try:
                yield
            finally:
                self.let_go.set()
                self._pushed.set()
                self.stop.set()
                followed.result()

    def push(self, trainer: Registry, step: int, model) -> None:
        """Push a version in the worst moment, and wait for it at the copy."""
        seq = trainer.state().seq + 1
        until(lambda: f"{RUN}/{keys.record_key(seq - 1)}" in self.copied.objects)
        self._record = f"{RUN}/{keys.record_key(seq)}"
        assert self._missed.wait(HANG_S)
        change(model, step)
        trainer.push(step, model)
        assert trainer.state().seq == seq
        self._far.clear()
        self._pushed.set()
        until(lambda: self._record in self.copied.objects)

    def _is_held(self, verb: str, key: str) -> bool:
        if not threading.current_thread().name.startswith(_BESIDE):
            return False
        if self._holds(verb, key):
            self.held.set()
            assert self.let_go.wait(HANG_S)
        return True

    def _far_call(self, verb: str, key: str) -> None:
        if not self._is_held(verb, key):
            self._far.append((verb, key))

    def _near_call(self, verb: str, key: str) -> None:
        if not self._is_held(verb, key) and (verb, key) == ("put", self._record):
            self.waited_for = [*self._far]

    def _answered(self, key: str) -> None:
        """Hold the answer of the look that finds no record yet."""
        if key == self._record and not self._missed.is_set():
            self._missed.set()
            assert self._pushed.wait(HANG_S)


LANES = Lanes()


@pytest.fixture(scope="module")
def rounds(tmp_path_factory) -> dict[str, bytes]:
    """What outer rounds leave in a run."""
    root = tmp_path_factory.mktemp("rounds")
    make_rounds(str(root), RUN, 2)
    store = open_store(str(root))
    return {key: store.get(key) for key in store.list(f"{RUN}/outer/")}


def see(story: Story, trainer: Registry, step: int, model) -> None:
    """Push a version, and see what it waited for."""
    story.push(trainer, step, model)
    seq = trainer.state().seq
    [patch] = trainer.state().patches_into(step)
    own = [keys.record_key(seq), keys.record_key(seq + 1), patch.object.key]
    assert sorted(story.waited_for) == sorted(("get", f"{RUN}/{key}") for key in own)
    assert 1 + len(story.waited_for) <= _TRIPS, "with the look that came too early, and if all followed one another"


@pytest.mark.slow
def test_a_version_waits_for_no_call_of_what_is_done_beside(rounds, monkeypatch):
    over, real = threading.Event(), Mirror.tend

    def tend(self, **options):
        done = real(self, **options)
        over.set()
        return done

    monkeypatch.setattr(Mirror, "tend", tend)
    source, model = DictStore(), small_model()
    with without_pauses(snapshot_every=4), quick(source, keyframe_every=4) as before:
        for step in range(9):
            change(model, step)
            before.push(step, model)
    source.objects |= rounds
    of = Countersignature(run=RUN, seq=2, record="a" * 64)
    source.put(f"{RUN}/{keys.countersignature_key(2)}", of.seal())
    with quick(source, keyframe_share=1e9) as trainer:
        change(model, 9)
        trainer.push(9, model)
        for nth in itertools.count(1):
            over.clear()
            calls = itertools.count(1)
            story = Story(source, lambda verb, key, calls=calls, nth=nth: next(calls) == nth)
            with story.following():
                until(lambda story=story: story.held.is_set() or over.is_set())
                if not story.held.is_set():
                    break
                see(story, trainer, 9 + nth, model)
            copy(source, story.copied)
            assert tree(story.copied) == tree(source)
    assert nth > 30


def test_a_version_waits_for_no_list_of_runs():
    source, model, seconds = DictStore(), small_model(), [0.0]
    with quick(source, keyframe_share=1e9) as trainer:
        trainer.push(0, model)
        story = Story(source, lambda verb, key: seconds[0] > 0.0 and (verb, key) == ("list", ""))
        with story.following(monotonic=lambda: seconds[0]):
            until(lambda: f"{RUN}/{keys.record_key(trainer.state().seq)}" in story.copied.objects)
            seconds[0] += 60.0
            assert story.held.wait(HANG_S)
            see(story, trainer, 1, model)


def test_no_look_renews_a_lease():
    source, copied, model, seconds = DictStore(), DictStore(), small_model(), [0.0]
    ours = CountingStore(source)
    with quick(source, keyframe_share=1e9) as trainer, mirror(ours, copied, monotonic=lambda: seconds[0]) as one:
        trainer.push(0, model)
        one.look()
        change(model, 1)
        trainer.push(1, model)
        ours.reset()
        seconds[0] += 400.0
        assert one.look().records == 1
        assert ours.calls["put"] == 0
        one.tend(tidy=False)
        assert ours.calls["put"] == 1


def test_what_can_be_put_waits_for_no_later_record():
    source, copied, model, left = DictStore(), DictStore(), small_model(), 0

    class Busy(WrapperStore):
        """Has a version more whenever somebody asks for the next record."""

        def get(self, key, byte_range=None, **bound):
            nonlocal left
            if left and key == f"{RUN}/{keys.record_key(trainer.state().seq + 1)}":
                left -= 1
                change(model, left)
                trainer.push(20 - left, model)
            return super().get(key, byte_range, **bound)

    lanes = Lanes()
    lanes.workers = Inline()  # type: ignore[assignment]
    with quick(source, keyframe_share=1e9) as trainer, mirror(Busy(source), copied, lanes=lanes) as one:
        trainer.push(0, model)
        one.look()
        left = 20
        assert (one.look().records, left) == (2, 18), "the first one is whole when the second one is found"
        one.catch_up()
        assert left == 0, "who is to catch up reads on"
        assert tree(copied) == tree(source)
    lanes.close()


def test_looks_begin_at_intervals_however_long_each_takes():
    source, rests, seconds = DictStore(), list[float](), [0.0]

    class Slow(WrapperStore):
        def get(self, key, byte_range=None, **bound):
            seconds[0] += 60.0
            return super().get(key, byte_range, **bound)

    class Stop(threading.Event):
        def wait(self, timeout=None):
            rests.append(timeout)
            if timeout == 40.0:
                self.set()
            return self.is_set()

    with quick(source) as trainer:
        trainer.push(0, small_model())
    with Fleet(Slow(source), DictStore(), RUN, LANES, retrying=retrying, monotonic=lambda: seconds[0]) as fleet:
        assert [outcome.run for outcome in fleet.follow(Stop(), 100.0)] == [RUN]
    assert rests[-1] == 40.0
