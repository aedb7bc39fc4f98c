"""A copy that lags is waited for, whatever was seen elsewhere; an older log, or another one, stays refused."""

from __future__ import annotations

import json
import tempfile
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch as patched

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import Behind, Distrust, StoreUnavailable, Untrusted
from pulse_registry.events import EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash, utc_now
from pulse_registry.roots import NearestStore
from pulse_registry.signing import PinGuard, Trust, guard, seen_run
from pulse_registry.store import PrefixStore
from pulse_schemas import open_sealed
from tests.security.signing.actors import TRAINER, history, put_record, reader, record_at, writer
from tests.support.clock import Clock
from tests.support.records import RUN, DictStore, draft
from tests.support.roots import Region


def cut(store, records, url="dict://mirror"):
    """Return a copy of a run, at another root, that has come so far."""
    copy = DictStore()
    copy.url = url
    for seq in range(records):
        put_record(copy, seq, record_at(store, seq))
    return copy


def other_story(store, records, url, length):
    """Return a root whose log is another one from a record on."""
    copy = cut(store, records, url)
    term = writer(copy, TRAINER, number=9)
    term.begin()
    for version in range(length):
        term.commit(draft(version, tag=5)) if records == 0 else term.attach(patches=[])
    return copy


def refused(follower):
    with pytest.raises(Untrusted) as caught:
        follower.refresh()
    return caught.value


def test_a_copy_that_ends_where_it_was_seen_elsewhere_is_behind_and_goes_on_once_it_has_come_as_far(tmp_path):
    source = history(5)
    mirror = cut(source, 4)
    assert reader(source, tmp_path).refresh().seq == 5
    follower = reader(mirror, tmp_path)
    for ask in (follower.refresh, lambda: follower.state, lambda: follower.accept(record_at(source, 2))):
        with pytest.raises(Behind, match=r"ends at record 3, and record 5 was seen in dict://: .*[Ww]ait"):
            ask()
    put_record(mirror, 4, record_at(source, 4))
    with pytest.raises(StoreUnavailable, match="ends at record 4"):  # to try again helps
        follower.refresh()
    put_record(mirror, 5, record_at(source, 5))
    assert follower.refresh().seq == 5


def test_a_copy_that_has_shown_more_itself_was_rolled_back(tmp_path):
    source = history(5)
    assert reader(cut(source, 4), tmp_path).refresh().seq == 3
    assert reader(source, tmp_path).refresh().seq == 5
    assert refused(reader(cut(source, 3), tmp_path)).reason is Distrust.ROLLBACK
    with pytest.raises(Behind):
        reader(cut(source, 4), tmp_path).refresh()


def test_a_copy_of_nothing_is_no_copy_that_is_behind(tmp_path):
    assert reader(history(2), tmp_path).refresh().seq == 2
    assert reader(cut(history(2), 0), tmp_path).refresh().seq == -1  # a root that was never seen, and has no such run


def test_the_source_is_rolled_back_where_it_no_longer_has_what_it_has_shown(tmp_path):
    source = history(5)
    assert reader(source, tmp_path).refresh().seq == 5
    assert reader(cut(source, 6), tmp_path).refresh().seq == 5
    assert refused(reader(cut(source, 5, source.url), tmp_path)).reason is Distrust.ROLLBACK


def test_a_shorter_log_of_another_story_is_a_fork_and_the_evidence_is_kept(tmp_path):
    source = history(5)
    assert reader(source, tmp_path).refresh().seq == 5
    fork = other_story(source, 3, "dict://mirror", 0)
    error = refused(reader(fork, tmp_path))
    assert error.reason is Distrust.FORK
    assert "record 3 is another one" in str(error)
    kept = {file.read_bytes() for file in tmp_path.rglob("fork-000000000003-*.json")}
    assert kept == {record_at(fork, 3), record_at(source, 5)}


def test_a_longer_log_of_another_story_is_a_fork_also_behind_a_snapshot(tmp_path):
    source = history(3)
    assert reader(source, tmp_path).refresh().seq == 3
    fork = cut(source, 2)
    term = writer(fork, TRAINER, number=9, every=4)
    term.begin()
    for version in range(1, 9):
        term.commit(draft(version, tag=5))
    assert any(key.startswith(keys.SNAPSHOTS) for key in fork.objects)
    assert refused(reader(fork, tmp_path)).reason is Distrust.FORK


def test_two_readers_at_work_on_two_roots_find_out_that_these_tell_two_stories(tmp_path):
    source = history(2)
    mirror = cut(source, 3)
    here, there = reader(source, tmp_path), reader(mirror, tmp_path)
    here.refresh(), there.refresh()
    writer(source, TRAINER, number=4).begin()
    here.refresh()
    writer(mirror, TRAINER, number=5).begin()
    error = refused(there)
    assert (error.reason, "record 3 is another one" in str(error)) == (Distrust.FORK, True)


def test_a_reader_at_work_is_not_stopped_by_what_another_process_sees_elsewhere(tmp_path):
    source = history(5)
    mirror = cut(source, 4)
    follower = reader(mirror, tmp_path)
    assert follower.refresh().seq == 3
    assert reader(source, tmp_path).refresh().seq == 5
    assert follower.refresh().seq == 3
    put_record(mirror, 4, record_at(source, 4))
    assert follower.refresh().seq == 4


def test_of_a_log_that_was_opened_at_a_snapshot_what_was_not_read_is_not_known(tmp_path):
    source = history(9, every=4)
    assert reader(source, tmp_path).refresh().seq == 9
    file = next(tmp_path.rglob("run.json"))
    known = json.loads(open_sealed(file.read_bytes()).body)
    opened = LogReader(source, RUN)
    opened.refresh()
    begin = opened.snapshot_seq - 1
    assert known["hashes"] == "".join(sealed_hash(record_at(source, seq)) for seq in range(begin, 10))
    with pytest.raises(Behind):
        reader(cut(source, begin + 1), tmp_path).refresh()
    assert refused(reader(cut(source, begin, "dict://far"), tmp_path)).reason is Distrust.ROLLBACK


def test_a_frozen_copy_is_told_of_though_it_is_only_behind(tmp_path):
    source, told, now = history(5), [], utc_now()
    reader(source, tmp_path).refresh()
    judge = PinGuard(
        Trust([TRAINER.public], max_age_s=60),
        "dict://mirror",
        RUN,
        tmp_path,
        events=Events(told.append),
        clock=lambda: now + timedelta(days=365),
    )
    follower = LogReader(cut(source, 3), RUN, judge)
    for _ in range(2):
        with pytest.raises(Behind):
            follower.refresh()
    (event,) = told
    assert (event.kind, "its newest record, 5, is" in event.message) == (EventKind.FROZEN, True)


# -- several roots -----------------------------------------------------------------------------------------------------


def two_roots(near, far):
    """Return a near root and a far one that have so many records, and a store of both."""
    source, regions = history(5), (Region("near"), Region("far"))
    for region, records in zip(regions, (near, far), strict=True):
        region.held.objects = {f"{RUN}/{keys.record_key(seq)}": record_at(source, seq) for seq in range(records)}
    clock = Clock()
    return *regions, NearestStore(regions, clock=clock, sleep=clock.sleep)


def pinned(store, state):
    below = PrefixStore(store, RUN)
    return LogReader(below, RUN, PinGuard(Trust([TRAINER.public]), store.url, RUN, state))


def test_where_the_nearest_root_is_behind_what_this_host_has_seen_the_next_one_is_read(tmp_path):
    near, far, roots = two_roots(4, 6)
    assert pinned(roots, tmp_path).refresh().seq == 3
    assert pinned(far, tmp_path).refresh().seq == 5
    assert pinned(roots, tmp_path).refresh().seq == 5
    far.dead = True
    with pytest.raises(StoreUnavailable):
        pinned(roots, tmp_path).refresh()
    with pytest.raises(Behind):
        pinned(near, tmp_path).refresh()


def test_a_near_root_of_another_story_is_refused_though_the_far_one_is_right(tmp_path):
    near, far, roots = two_roots(4, 6)
    assert pinned(far, tmp_path).refresh().seq == 5
    fork = other_story(history(5), 3, "dict://fork", 0)
    near.held.objects = {f"{RUN}/{key}": data for key, data in fork.objects.items()}
    error = refused(pinned(roots, tmp_path))
    assert (error.reason, "record 3 is another one" in str(error)) == (Distrust.FORK, True)


def test_roots_that_have_shown_more_together_were_rolled_back_together(tmp_path):
    near, far, roots = two_roots(4, 6)
    assert pinned(roots, tmp_path).look_further().seq == 5
    for seq in (4, 5):
        del far.held.objects[f"{RUN}/{keys.record_key(seq)}"]
    clock = Clock()
    again = NearestStore([near, far], clock=clock, sleep=clock.sleep)
    assert refused(pinned(again, tmp_path)).reason is Distrust.ROLLBACK


# -- against a plain model ---------------------------------------------------------------------------------------------

LENGTH, WINDOW = 8, 4
SOURCE = history(LENGTH - 1)
FORKS = {at: other_story(SOURCE, at, "dict://fork", LENGTH - at - 1) for at in (1, 4, 6)}
STORIES = {0: SOURCE, **FORKS}


class Model:
    """What is remembered, in lists: all that each URL has shown, and the last hashes of all."""

    def __init__(self):
        self.shown, self.window, self.newest, self.at = {}, {}, -1, ""

    def open(self, url, log):
        """Return what a new process is to say of a log."""
        end, known = len(log) - 1, self.shown.get(url, (-1, b""))
        if known[0] > end:
            return Distrust.ROLLBACK
        if known[0] >= 0 and log[known[0]] != known[1]:
            return Distrust.FORK
        if self.newest > end >= 0:
            if url == self.at or end not in self.window:
                return Distrust.ROLLBACK
            return Behind if self.window[end] == log[end] else Distrust.FORK
        if any(
            self.window.get(seq, record) != record
            for seq, record in [*self.folded(log), (self.newest, log[self.newest])]
        ):
            return Distrust.FORK
        self.shown[url] = (end, log[end])
        if end > self.newest:
            self.window |= dict(self.folded(log))
            self.newest, self.at = end, url
            self.window = {seq: record for seq, record in self.window.items() if seq > end - WINDOW}
        return end

    @staticmethod
    def folded(log):
        return list(enumerate(log))[-WINDOW:]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(["a://", "b://", "c://"]), st.sampled_from(sorted(STORIES)), st.integers(1, LENGTH)),
        max_size=7,
    )
)
def test_whatever_roots_show_in_whatever_order_a_process_says_what_a_plain_model_says(steps):
    model = Model()
    with (
        tempfile.TemporaryDirectory() as folder,
        patched.object(guard, "MOST_HASHES", WINDOW),
        patched.object(seen_run, "MOST_HASHES", WINDOW),
    ):
        for url, story, records in steps:
            store = cut(STORIES[story], records, url)
            expected = model.open(url, [record_at(store, seq) for seq in range(records)])
            try:
                said = reader(store, Path(folder)).refresh().seq
            except Behind:
                said = Behind
            except Untrusted as error:
                said = error.reason
            assert said == expected
