"""Pushes, merged patches, tags, leases, orphans, stalled writers, readers and collectors, in any order.

The model beside the real thing knows what must be there: whatever the log says is live, what has a tag or a living
lease, what a reader began to fetch less than the grace time ago. The invariants list the bucket.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulse_registry.errors import Conflict, Gone, InvalidArgument
from pulse_registry.format import keys
from pulse_registry.log import CommitDraft
from pulse_registry.pull.route import plan
from pulse_registry.retention import RetentionPolicy
from pulse_schemas import PatchRef
from tests.support.records import keyframe, patch
from tests.unit.retention.world import HOUR, World

GRACE, OLD = HOUR, 4 * HOUR
POLICIES = st.builds(
    RetentionPolicy,
    keep_last=st.integers(1, 4),
    keep_every=st.none() | st.integers(2, 5),
    keep_seconds=st.sampled_from([0.0, 2 * HOUR]),
    grace_seconds=st.just(GRACE),
    orphan_seconds=st.just(OLD),
)
PICK = st.integers(0, 2**16)


class Retention(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.commit(whole=True)
        self.tag = 100
        self.leases: dict[str, tuple[int, datetime]] = {}
        self.reading: list[tuple[datetime, list[str]]] = []
        self.stalled: list[CommitDraft | PatchRef] = []

    def fresh(self) -> int:
        self.tag += 1
        return self.tag

    def choose(self, pick: int) -> int:
        versions = self.world.versions()
        return versions[pick % len(versions)]

    @rule(count=st.integers(1, 4), whole=st.booleans())
    def push(self, count: int, whole: bool) -> None:
        for number in range(count):
            self.world.commit(whole=whole and number == 0)

    @rule(pick=PICK, span=st.integers(2, 8), size=st.sampled_from([50, 100_000]))
    def merge(self, pick: int, span: int, size: int) -> None:
        base = self.choose(pick)
        target = next((v for v in reversed(self.world.versions()) if v <= base + span), base)
        if target > base:
            self.world.attach([patch(base, target, size=size, tag=self.fresh())])

    @rule(pick=PICK)
    def make_keyframe(self, pick: int) -> None:
        self.world.attach(keyframes=[keyframe(self.choose(pick), tag=self.fresh())])

    @rule(name=st.sampled_from(["best", "other"]), pick=st.none() | PICK)
    def give_tag(self, name: str, pick: int | None) -> None:
        self.world.writer().tag(name, None if pick is None else self.choose(pick))

    @rule(reader=st.sampled_from(["r1", "r2"]), pick=PICK, seconds=st.sampled_from([60, 7200, 36_000]))
    def take_lease(self, reader: str, pick: int, seconds: int) -> None:
        version = self.choose(pick)
        self.world.lease(reader, version, seconds)
        self.leases[reader] = version, self.world.now + timedelta(seconds=seconds)

    @rule(pick=PICK, have=st.none() | PICK)
    def begin_to_read(self, pick: int, have: int | None) -> None:
        target, base = self.choose(pick), None if have is None else self.choose(have)
        route = plan(self.world.state, target, have=base)
        self.reading.append((self.world.now, [ref.key for ref in route.refs]))

    @rule(pick=PICK)
    def stall_before_the_record(self, pick: int) -> None:
        base = self.choose(pick)
        newest = len(self.world.state.versions) - 1
        if base < newest and not self.world.state.is_retired(base):
            ref = patch(base, newest, tag=self.fresh())
            self.world.put(ref)
            self.stalled.append(ref)
        draft = self.world.draft(newest + 1, tag=self.fresh())
        assert draft.patch is not None
        self.world.put(draft.patch)
        self.stalled.append(draft)

    @precondition(lambda self: self.stalled)
    @rule(pick=PICK)
    def wake(self, pick: int) -> None:
        item = self.stalled.pop(pick % len(self.stalled))
        try:
            if isinstance(item, CommitDraft):
                self.world.trainer.commit(item)
            else:
                self.world.writer().attach([item])
        except (Conflict, InvalidArgument):
            return

    @rule(pick=PICK, policy=POLICIES, again=st.booleans())
    def sleep_through_a_collection(self, pick: int, policy: RetentionPolicy, again: bool) -> None:
        self.stall_before_the_record(pick)
        self.wait(5)
        self.collect(policy)
        if again:
            self.wait(1.1)
            self.collect(policy)
        self.wake(len(self.stalled) - 1)

    @rule(pick=PICK, seconds=st.none() | st.sampled_from([60, 7200]))
    def stay_through_a_strict_collection(self, pick: int, seconds: int | None) -> None:
        if seconds is None:
            self.give_tag("best", pick)
        else:
            self.take_lease("r1", pick, seconds)
        self.push(2, True)
        self.collect(RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=GRACE, orphan_seconds=OLD))

    @rule(hours=st.sampled_from([0.1, 0.9, 1.1, 5]))
    def wait(self, hours: float) -> None:
        self.world.wait(hours * HOUR)

    @rule(policy=POLICIES)
    def collect(self, policy: RetentionPolicy) -> None:
        before = self.world.state
        found = self.world.collect(policy)
        after = self.world.state
        assert found.plan.kept.keys() == {v for v in range(len(after.versions)) if not after.is_retired(v)}
        newest = len(before.versions) - 1
        for version in found.plan.kept:
            assert plan(after, version, have=None).nbytes == plan(before, version, have=None).nbytes
            if version in found.held.values():
                assert plan(after, newest, have=version).nbytes == plan(before, newest, have=version).nbytes

    @invariant()
    def what_the_log_says_is_live_is_there(self) -> None:
        state = self.world.state
        for ref in state.patches:
            assert self.world.store.exists(ref.object.key)
        for frame in state.keyframes:
            assert all(self.world.store.exists(item.key) for item in (frame.index, *frame.shards))

    @invariant()
    def every_version_that_is_offered_can_be_restored(self) -> None:
        state = self.world.state
        for version in self.world.versions():
            assert plan(state, version, have=None).target == version

    @invariant()
    def what_has_a_tag_or_a_living_lease_stays(self) -> None:
        state = self.world.state
        held = [version for version, until in self.leases.values() if until >= self.world.now]
        for version in (*state.tags.values(), *held, len(state.versions) - 1):
            assert not state.is_retired(version)

    @invariant()
    def who_began_to_read_less_than_the_grace_time_ago_goes_on(self) -> None:
        self.reading = [one for one in self.reading if one[0] + timedelta(seconds=GRACE) > self.world.now]
        for _, wanted in self.reading:
            assert all(map(self.world.store.exists, wanted))

    @invariant()
    def what_was_forgotten_is_gone_and_nothing_else_is_in_the_bucket(self) -> None:
        state = self.world.state
        for version in range(len(state.versions)):
            if state.find(version) is None:
                try:
                    state.version(version)
                except Gone:
                    continue
                raise AssertionError(version)
        strange = [
            key
            for key in self.world.store.objects
            if not key.startswith((keys.LOG, keys.OBJECTS, keys.LEASES)) and key not in (keys.CLOCK, keys.HEAD)
        ]
        assert strange == []


Retention.TestCase.settings = settings(max_examples=6, stateful_step_count=25, deadline=None)
TestRetention = pytest.mark.slow(Retention.TestCase)


@pytest.mark.sweep
class TestLongRetention(Retention.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
