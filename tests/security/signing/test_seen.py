"""What was seen is remembered: a rollback, and two stories of one record, are refused in this process and the next."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from pulse_registry.errors import CorruptObject, Distrust, InvalidArgument, StoreUnavailable, Untrusted
from pulse_registry.events import EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash, utc_now
from pulse_registry.signing import PinGuard, Trust
from pulse_registry.signing.last_seen import Memory
from pulse_schemas import unseal_record
from tests.security.signing.actors import TRAINER, history, put_record, reader, record_at, writer
from tests.support.records import RUN, DictStore, draft, patch


def refused(follower, reason):
    with pytest.raises(Untrusted) as caught:
        follower.refresh()
    assert caught.value.reason is reason
    return str(caught.value)


def copy(store):
    other = DictStore()
    other.objects = dict(store.objects)
    return other


def forked(store, seq):
    """Let the key's holder tell another story: another record ``seq``, and all after it anew."""
    other = DictStore()
    for number in range(seq):
        put_record(other, number, record_at(store, number))
    again = writer(other, TRAINER, number=7)
    again.begin()
    return other


# -- rollback ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", range(4))
def test_an_older_prefix_of_the_log_is_a_rollback_for_the_next_process(tmp_path, left):
    store = history(3)
    assert reader(store, tmp_path).refresh().seq == 3
    old = DictStore()
    for seq in range(left):
        put_record(old, seq, record_at(store, seq))
    message = refused(reader(old, tmp_path), Distrust.ROLLBACK)
    assert "record 3 was seen before" in message
    assert (f"the newest is {left - 1} now" if left else "there is none now") in message
    for folder in re.findall(rf"{tmp_path}/\S+", message.partition("begun anew on purpose, delete ")[2]):
        shutil.rmtree(folder)
    assert reader(old, tmp_path).refresh().seq == left - 1


def test_a_deleted_tail_is_a_rollback_and_stays_one_however_often_it_is_asked(tmp_path):
    store = history(3)
    reader(store, tmp_path).refresh()
    kept = store.objects.pop(keys.record_key(3))
    follower = reader(store, tmp_path)
    for ask in (follower.refresh, lambda: follower.state, lambda: follower.accept(record_at(store, 2))):
        with pytest.raises(Untrusted, match="rolled back"):
            ask()
    put_record(store, 3, kept)
    assert follower.refresh().seq == 3


def test_a_gap_before_the_newest_record_seen_is_named_and_is_no_rollback(tmp_path):
    store = history(9)
    reader(store, tmp_path).refresh()
    kept = store.objects.pop(keys.record_key(6))
    follower = reader(store, tmp_path)
    for ask in (follower.refresh, lambda: follower.state):
        with pytest.raises(CorruptObject, match=r"record 6 is missing: .* record 9, which was seen before") as caught:
            ask()
        assert caught.value.key == keys.record_key(6)
    put_record(store, 6, kept)
    assert follower.refresh().seq == 9


def test_a_prefix_behind_a_snapshot_is_a_rollback(tmp_path):
    store = history(9, every=4)
    reader(store, tmp_path).refresh()
    del store.objects[keys.record_key(8)], store.objects[keys.record_key(9)]
    refused(reader(store, tmp_path), Distrust.ROLLBACK)


def test_a_log_that_went_on_is_no_rollback(tmp_path):
    store = history(2)
    follower = reader(store, tmp_path)
    follower.refresh()
    trainer = writer(store, TRAINER, number=2)
    trainer.begin()
    for version in range(2, 9):
        trainer.commit(draft(version))
        assert follower.refresh().latest.version == version
    assert reader(store, tmp_path).refresh().latest.version == 8


def test_without_a_folder_what_was_seen_lasts_as_long_as_the_reader():
    store = history(3)
    reader(store).refresh()
    del store.objects[keys.record_key(3)]
    assert reader(store).refresh().seq == 2


def test_runs_and_registries_are_remembered_apart(tmp_path):
    long, short = history(3), history(1, run="physics")
    reader(long, tmp_path).refresh()
    assert reader(short, tmp_path, run="physics").refresh().seq == 1
    elsewhere = history(1, first=7)
    elsewhere.url = "dict://elsewhere"
    assert reader(elsewhere, tmp_path).refresh().seq == 1
    assert len(list(tmp_path.rglob("newest.json"))) == len(list(tmp_path.rglob("run.json"))) == 3


def test_an_older_process_takes_nothing_back(tmp_path):
    store = history(3)
    early = copy(store)
    del early.objects[keys.record_key(3)]
    behind, ahead = reader(store, tmp_path), reader(store, tmp_path)
    behind.accept(record_at(store, 0))
    ahead.refresh()
    behind.refresh()
    refused(reader(early, tmp_path), Distrust.ROLLBACK)


# -- forks -------------------------------------------------------------------------------------------------------------


def evidence(message, tmp_path):
    """The two files that a message names hold two records of one number."""
    files = [Path(name) for name in re.findall(r"/\S+\.json", message)]
    assert len(files) == 2
    assert all(tmp_path in file.parents for file in files)
    return [file.read_bytes() for file in files]


def test_another_record_at_the_newest_number_seen_is_a_fork_and_both_are_kept(tmp_path):
    store = history(2)
    reader(store, tmp_path).refresh()
    other = forked(store, 2)
    message = refused(reader(other, tmp_path), Distrust.FORK)
    assert "record 2 is another one than was seen before" in message
    ours, theirs = evidence(message, tmp_path)
    assert (ours, theirs) == (record_at(store, 2), record_at(other, 2))
    assert unseal_record(ours).seq == unseal_record(theirs).seq == 2
    refused(reader(other, tmp_path), Distrust.FORK)
    assert reader(store, tmp_path).refresh().seq == 2  # it goes on to believe what it saw first


def test_a_fork_before_the_newest_number_seen_is_found_where_the_stories_meet(tmp_path):
    store = history(3)
    reader(store, tmp_path).refresh()
    other = forked(store, 1)
    trainer = writer(other, TRAINER, number=8)
    trainer.begin()
    for version in range(3):
        trainer.commit(draft(version, tag=5))
    message = refused(reader(other, tmp_path), Distrust.FORK)
    assert "record 3 is another one" in message


def test_a_fork_is_found_by_a_reader_that_runs_when_the_log_goes_on_from_the_other_story():
    store = history(2)
    follower = reader(store)
    follower.refresh()
    seen, other = record_at(store, 2), forked(store, 2)
    writer(other, TRAINER, number=9).attach(patches=[], write_id="0" * 32)
    store.objects = other.objects
    assert record_at(store, 2) != seen
    assert "record 2 is another one" in refused(follower, Distrust.FORK)


def test_a_fork_behind_a_snapshot_is_found(tmp_path):
    store = history(2)
    reader(store, tmp_path).refresh()
    other = forked(store, 2)
    trainer = writer(other, TRAINER, number=8, every=4)
    trainer.begin()
    for version in range(1, 9):
        trainer.commit(draft(version, tag=5))
    assert any(key.startswith(keys.SNAPSHOTS) for key in other.objects)
    follower = reader(other, tmp_path)
    assert "record 2 is another one" in refused(follower, Distrust.FORK)


def test_two_processes_that_are_told_two_stories_find_out(tmp_path):
    store = history(2)
    one, two = reader(store, tmp_path), reader(forked(store, 2), tmp_path)
    one_guard, two_guard = one.guard, two.guard
    assert one_guard is not None
    assert two_guard is not None
    one_guard.begin(), two_guard.begin()  # neither has seen what the other is about to
    for guard, log in ((one_guard, store), (two_guard, forked(store, 2))):
        guard.folded(unseal_record(record_at(log, 2)), record_at(log, 2))
    one_guard.settle()
    with pytest.raises(Untrusted) as caught:
        two_guard.settle()
    assert caught.value.reason is Distrust.FORK


def test_a_signature_alone_that_differs_is_another_record(tmp_path):
    # Only the key's holder can do it: Ed25519 signs the same bytes in one way, and verifies others.
    store = history(1)
    reader(store, tmp_path).refresh()
    put_record(store, 1, unseal_record(record_at(store, 1)).model_copy(update={"step": 5}).seal(TRAINER))
    refused(reader(store, tmp_path), Distrust.FORK)


def test_a_writer_that_loses_a_race_has_seen_no_fork(tmp_path):
    store = history(2)
    first = writer(store, TRAINER, believes=reader(store, tmp_path), number=2)
    second = writer(store, TRAINER, believes=reader(store, tmp_path), number=3)
    first.attach(patches=[patch(0, 1, tag=9)])
    second.attach(patches=[patch(0, 1, tag=8)])
    first.attach(patches=[patch(0, 1, tag=7)])
    assert LogReader(store, RUN).refresh().seq == 5


def test_writers_of_many_threads_and_one_folder_see_neither_rollback_nor_fork(tmp_path):
    store = history(2)
    failures = []

    def work(number):
        try:
            mine = writer(store, TRAINER, believes=reader(store, tmp_path), number=10 + number)
            for count in range(8):
                mine.attach(patches=[patch(0, 1, tag=1000 * (number + 1) + count)])
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert reader(store, tmp_path).refresh().seq == 2 + 4 * 8


# -- the file ----------------------------------------------------------------------------------------------------------


def memory_file(tmp_path):
    (file,) = tmp_path.rglob("newest.json")
    return file


def test_the_newest_record_is_kept_as_it_was_sealed(tmp_path):
    store = history(3)
    reader(store, tmp_path).refresh()
    seen = Memory(tmp_path, store.url, RUN).newest()
    assert seen is not None
    assert (seen.seq, seen.record.encode()) == (3, record_at(store, 3))
    assert sealed_hash(seen.record.encode()) == LogReader(store, RUN).refresh().last
    assert sorted(file.name for file in memory_file(tmp_path).parent.iterdir()) == ["lock", "newest.json"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 100])
def test_a_damaged_memory_is_an_error_and_no_new_beginning(tmp_path, content):
    store = history(1)
    reader(store, tmp_path).refresh()
    memory_file(tmp_path).write_bytes(content)
    with pytest.raises(CorruptObject, match=r"newest\.json, which says what was seen of run 'math', is damaged"):
        reader(store, tmp_path).refresh()


def test_a_memory_of_another_run_is_refused(tmp_path):
    store, other = history(1), history(1, run="physics")
    reader(store, tmp_path).refresh()
    file = memory_file(tmp_path)
    reader(other, tmp_path, run="physics").refresh()
    file.write_bytes(next(f for f in tmp_path.rglob("newest.json") if f != file).read_bytes())
    with pytest.raises(CorruptObject, match="is of run 'physics'"):
        reader(store, tmp_path).refresh()


def test_a_memory_that_can_not_be_kept_is_an_error(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"can't be kept in .* give another folder as state_dir"):
        reader(history(1), in_the_way).refresh()


def test_a_disk_that_fails_is_told_and_the_next_look_makes_up_for_it(tmp_path, monkeypatch):
    store = history(1)
    follower = reader(store, tmp_path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match=r"can't be kept in .*: No space left on device"):
            follower.refresh()
    assert follower.refresh().seq == 1
    assert memory_file(tmp_path).parent.joinpath("new").exists() is False
    del store.objects[keys.record_key(1)]
    refused(reader(store, tmp_path), Distrust.ROLLBACK)


def test_a_folder_that_others_may_write_is_told_once(tmp_path, caplog):
    store = history(2)
    follower = reader(store, tmp_path)
    tmp_path.chmod(0o777)
    follower.refresh()
    writer(store, TRAINER, number=2).begin()
    follower.refresh()
    (message,) = (text for text in caplog.messages if "may be written by others" in text)
    assert message.startswith(f"{tmp_path} may be written by others (mode 0777): ")
    assert "state_dir, or in PULSE_STATE_DIR" in message


# -- freeze ------------------------------------------------------------------------------------------------------------


def test_an_old_newest_record_is_told_once_and_the_run_goes_on():
    told, store, now = [], history(2), utc_now()
    guard = PinGuard(
        Trust([TRAINER.public], max_age_s=3600), store.url, RUN, events=Events(told.append), clock=lambda: now
    )
    follower = LogReader(store, RUN, guard)
    for _ in range(3):
        assert follower.refresh().seq == 2
    (event,) = told
    assert (event.kind, event.run) == (EventKind.FROZEN, RUN)
    assert re.search(r"its newest record, 2, is \d+ s old, more than 3600 s", event.message)
    writer(store, TRAINER, number=2).begin()  # as old, by the tests' clock
    follower.refresh()
    follower.refresh()
    assert len(told) == 2


def test_a_young_record_is_not_told_until_it_is_old():
    told, store = [], history(2)
    at = [unseal_record(record_at(store, 2)).created_at]
    moment = [utc_now().fromisoformat(at[0])]
    guard = PinGuard(
        Trust([TRAINER.public], max_age_s=60), store.url, RUN, events=Events(told.append), clock=lambda: moment[0]
    )
    follower = LogReader(store, RUN, guard)
    follower.refresh()
    moment[0] += timedelta(seconds=60)
    follower.refresh()
    assert told == []
    moment[0] += timedelta(seconds=1)
    follower.refresh()
    assert len(told) == 1


def test_without_a_limit_no_age_is_told():
    told = []
    reader(history(1), events=Events(told.append)).refresh()
    assert told == []
