"""Appending to a run's log: races, lost answers, fencing, snapshots."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pulse_registry.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    Fenced,
    InvalidArgument,
    StoreUnavailable,
)
from pulse_registry.format import keys
from pulse_registry.log import CommitDraft, LogReader, LogWriter, random_id, timestamp, utc_now
from pulse_registry.store import open_store
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_schemas import AttachRecord, CommitRecord, EpochRecord, Head, unseal_record
from tests.support.records import (
    LAYOUT,
    RUN,
    Script,
    chain,
    clock,
    draft,
    ids,
    keyframe,
    new_store,
    patch,
    write_id,
    writer,
)


def log_of(store):
    """Every record in the bucket, in order."""
    found = [key for key in store.list(keys.LOG) if keys.record_seq(key) is not None]
    return [unseal_record(store.get(key)) for key in found]


def state_of(store):
    return LogReader(store, RUN).refresh()


def is_record(verb, key):
    return keys.record_seq(key) is not None


def put_again(verb, key):
    """What a client says that sends a conditional put again after a lost answer."""
    return AlreadyExists(key)


class LateStore(WrapperStore):
    """Keeps back puts of the log while ``late`` is set, as a network does that delivers after the caller gave up."""

    def __init__(self, store):
        super().__init__(store)
        self.late = False
        self.kept = []

    def put(self, key, data, *, if_absent=False):
        if self.late and is_record("put", key):
            self.kept.append((key, data))
            raise StoreUnavailable(f"{key}: no answer")
        super().put(key, data, if_absent=if_absent)

    def deliver(self):
        """Do what was kept back; return how many of the puts took effect."""
        done = 0
        for key, data in self.kept:
            try:
                super().put(key, data, if_absent=True)
                done += 1
            except AlreadyExists:
                pass
        self.kept = []
        return done


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_history_is_the_same_in_every_kind_of_store(scheme, tmp_path):
    url = f"file://{tmp_path}/run" if scheme == "file" else f"memory://{tmp_path.name}-log"
    store = open_store(url)
    trainer = writer(store, snapshot_every=4)
    trainer.begin()
    for number in range(6):
        trainer.commit(draft(number))
    trainer.attach([patch(0, 4, tag=1)])
    expected = new_store()
    again = writer(expected, snapshot_every=4)
    again.begin()
    for number in range(6):
        again.commit(draft(number))
    again.attach([patch(0, 4, tag=1)])
    assert {key: store.get(key) for key in store.list("")} == expected.objects
    assert state_of(open_store(url)).to_snapshot() == state_of(expected).to_snapshot()


def test_a_term_begins_with_an_epoch_record():
    store = new_store()
    trainer = writer(store)
    assert trainer.epoch is None
    assert trainer.begin() == 1 == trainer.epoch
    (record,) = log_of(store)
    assert isinstance(record, EpochRecord)
    assert (record.run, record.seq, record.epoch, record.writer) == (RUN, 0, 1, "w1")
    assert record.created_at == "2026-01-02T00:00:00.000Z"


def test_to_begin_a_term_that_has_begun_writes_nothing():
    store = new_store()
    trainer = writer(store)
    assert [trainer.begin(), trainer.begin()] == [1, 1]
    assert len(log_of(store)) == 1


def test_a_commit_is_one_put_and_is_seen_by_every_reader():
    store = CountingStore(new_store())
    writer(store).begin()
    trainer = writer(store)
    trainer.begin()
    store.reset()
    record = trainer.commit(draft(0))
    assert store.ledger == [("put", keys.record_key(2))]
    assert isinstance(record, CommitRecord)
    state = state_of(store)
    assert state.latest.version == 0
    assert state.latest.digest == draft(0).digest
    assert state.keyframe(0) == draft(0).keyframe


def test_a_commit_without_a_term_is_refused():
    store = new_store()
    with pytest.raises(InvalidArgument, match="begin"):
        writer(store).commit(draft(0))
    assert log_of(store) == []


def test_a_new_writer_fences_the_old_one_for_ever():
    store = new_store()
    old, new = writer(store, 1), writer(store, 2)
    old.begin()
    old.commit(draft(0))
    assert new.begin() == 2
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch 2"):
            old.commit(draft(1, tag=1))
    with pytest.raises(Fenced):
        old.begin()
    assert old.fenced
    new.commit(draft(1, tag=2))
    with pytest.raises(Fenced):
        old.commit(draft(2, tag=1))
    assert [entry.digest for entry in state_of(store).versions] == [draft(0).digest, draft(1, tag=2).digest]
    assert not new.fenced


def test_of_two_writers_that_begin_at_once_the_later_in_the_log_has_the_higher_epoch():
    store = new_store()
    first, second = writer(store, 1), writer(store, 2)

    class Overtaken(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            if key == keys.record_key(0) and second.epoch is None:
                second.begin()
            super().put(key, data, if_absent=if_absent)

    overtaken = Overtaken(store)
    first = writer(overtaken, 1)
    assert first.begin() == 2
    assert second.epoch == 1
    with pytest.raises(Fenced):
        second.commit(draft(0))
    first.commit(draft(0))


def test_a_version_that_an_earlier_writer_committed_is_a_conflict():
    store = new_store()
    old, new = writer(store, 1), writer(store, 2)
    old.begin()
    old.commit(draft(0, tag=1))
    new.begin()
    with pytest.raises(Conflict, match=f"version 0 is committed already, by write {draft(0, tag=1).write_id}"):
        new.commit(draft(0, tag=2))
    with pytest.raises(Conflict, match="version 2 can't be committed: the newest is 0"):
        new.commit(draft(2))
    assert len(log_of(store)) == 3


def test_a_draft_that_was_committed_can_be_committed_again_at_no_effect():
    store = new_store()
    trainer = writer(store)
    trainer.begin()
    record = trainer.commit(draft(0))
    trainer.commit(draft(1))
    assert trainer.commit(draft(0)) == record
    assert len(log_of(store)) == 3


@pytest.mark.parametrize("error", [None, put_again])
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_lost_answer_at_any_append_is_a_success(nth, error):
    store = new_store()
    more = {} if error is None else {"error": error}
    fault = Fault("fail_after", verb="put", matches=is_record, nth=nth, **more)
    trainer = writer(FaultStore(store, [fault]))
    trainer.begin()
    trainer.commit(draft(0))
    trainer.commit(draft(1))
    trainer.attach([patch(0, 1, tag=7)])
    trainer.retire(keys=[patch(0, 1, tag=7).object.key])
    assert [record.kind for record in log_of(store)] == ["epoch", "commit", "commit", "attach", "retire"]
    assert trainer.commit(draft(2)).version == 2


@pytest.mark.parametrize("nth", range(1, 6))
def test_an_append_that_never_reached_the_store_can_be_tried_again(nth):
    store = new_store()
    trainer = writer(FaultStore(store, [Fault("fail_before", verb="put", matches=is_record, nth=nth)]))
    steps = [
        trainer.begin,
        lambda: trainer.commit(draft(0)),
        lambda: trainer.commit(draft(1)),
        lambda: trainer.attach([patch(0, 1, tag=7)], write_id=write_id(77)),
        lambda: trainer.retire([0], write_id=write_id(78)),
    ]
    failures = 0
    for step in steps:
        try:
            step()
        except StoreUnavailable:
            failures += 1
            step()
    assert failures == 1
    assert [record.kind for record in log_of(store)] == ["epoch", "commit", "commit", "attach", "retire"]


@pytest.mark.parametrize("error", [None, put_again])
def test_an_append_whose_fate_could_not_be_read_back_lands_once(error):
    store = new_store()
    more = {} if error is None else {"error": error}
    faults = [
        Fault("fail_after", verb="put", matches=lambda verb, key: key == keys.record_key(2), nth=1, **more),
        Fault("fail_before", verb="get", matches=lambda verb, key: key == keys.record_key(2), nth=1),
    ]
    trainer = writer(FaultStore(store, faults))
    trainer.begin()
    trainer.commit(draft(0))
    first = trainer.landed(draft(1).write_id)
    with pytest.raises(StoreUnavailable):
        trainer.commit(draft(1))
    assert first is None
    assert trainer.landed(draft(1).write_id).seq == 2
    assert trainer.commit(draft(1)).seq == 2
    assert len(log_of(store)) == 3


def late_commit():
    """A writer whose commit of version 1 was given up and is still under way."""
    base = new_store()
    store = LateStore(base)
    trainer = writer(store)
    trainer.begin()
    trainer.commit(draft(0))
    store.late = True
    with pytest.raises(StoreUnavailable):
        trainer.commit(draft(1, tag=1))
    store.late = False
    return base, store, trainer


def test_a_put_that_lands_late_is_found_by_the_same_draft():
    base, store, trainer = late_commit()
    assert store.deliver() == 1
    assert trainer.commit(draft(1, tag=1)).seq == 2
    trainer.commit(draft(2))
    assert [entry.version for entry in state_of(base).versions] == [0, 1, 2]


def test_a_put_that_lands_late_is_found_by_the_same_draft_after_the_reader_has_seen_it():
    _, store, _ = late_commit()
    base = new_store()
    store = LateStore(base)
    reader = LogReader(store, RUN)
    trainer = LogWriter(store, RUN, reader, clock(), ids(), "w")
    trainer.begin()
    store.late = True
    with pytest.raises(StoreUnavailable):
        trainer.commit(draft(0))
    store.late = False
    store.deliver()
    assert reader.refresh().latest.version == 0
    assert trainer.commit(draft(0)).seq == 1


def test_a_put_that_lands_late_and_another_draft_in_its_place_lose_nothing():
    base, store, trainer = late_commit()
    assert store.deliver() == 1
    with pytest.raises(Conflict, match="an earlier try of this writer"):
        trainer.commit(draft(1, tag=2))
    landed = trainer.landed(draft(1, tag=1).write_id)
    assert isinstance(landed, CommitRecord)
    assert state_of(base).versions[1].digest == draft(1, tag=1).digest
    trainer.commit(draft(2))


def test_a_put_that_comes_after_another_draft_took_its_place_has_no_effect():
    base, store, trainer = late_commit()
    trainer.commit(draft(1, tag=2))
    assert store.deliver() == 0
    assert trainer.landed(draft(1, tag=1).write_id) is None
    assert state_of(base).versions[1].digest == draft(1, tag=2).digest
    with pytest.raises(Conflict):
        trainer.commit(draft(1, tag=1))


def test_a_put_that_comes_after_its_own_retry_has_no_effect():
    base, store, trainer = late_commit()
    trainer.commit(draft(1, tag=1))
    assert store.deliver() == 0
    assert len(log_of(base)) == 3


def test_a_put_that_lands_late_and_was_overtaken_by_a_new_term_is_void_or_refused():
    base, store, trainer = late_commit()
    writer(base, 2).begin()
    assert store.deliver() == 0
    with pytest.raises(Fenced):
        trainer.commit(draft(1, tag=1))


def test_a_late_put_of_an_old_term_that_lands_before_the_new_term_counts_for_both():
    base, store, trainer = late_commit()
    store.deliver()
    new = writer(base, 2)
    new.begin()
    assert trainer.commit(draft(1, tag=1)).seq == 2
    with pytest.raises(Conflict):
        new.commit(draft(1, tag=2))


def test_an_epoch_record_that_lands_late_begins_the_term_once():
    base = new_store()
    store = LateStore(base)
    trainer = writer(store)
    store.late = True
    with pytest.raises(StoreUnavailable):
        trainer.begin()
    store.late = False
    store.deliver()
    assert trainer.begin() == 1
    assert len(log_of(base)) == 1


def test_a_commit_goes_on_after_records_of_others():
    store = new_store()
    trainer, compactor = writer(store, 1), writer(store, 2)
    trainer.begin()
    trainer.commit(draft(0))
    trainer.commit(draft(1))
    compactor.attach([patch(0, 1, tag=1)])
    compactor.attach(keyframes=[keyframe(1, tag=1)])
    record = trainer.commit(draft(2))
    assert (record.seq, record.version) == (5, 2)
    assert [entry.seq for entry in state_of(store).versions] == [1, 2, 5]


def test_an_attach_is_not_fenced():
    store = new_store()
    old, new = writer(store, 1), writer(store, 2)
    old.begin()
    old.commit(draft(0))
    new.begin()
    record = old.attach(keyframes=[keyframe(0, tag=1)])
    assert isinstance(record, AttachRecord)
    assert record.epoch == 2
    old.retire(keys=[keyframe(0, tag=1).index.key])
    assert state_of(store).keyframe(0) == draft(0).keyframe


@pytest.mark.parametrize(
    "act",
    [
        lambda w: w.attach([patch(0, 5)]),
        lambda w: w.attach([draft(1).patch]),
        lambda w: w.attach([patch(0, 1)], write_id="not an id"),
        lambda w: w.retire([9]),
        lambda w: w.retire(keys=["head"]),
        lambda w: w.commit(CommitDraft(2, 2, "b" * 64, "0" * 32, 1, 10, write_id(1), patch=patch(1, 2))),
        lambda w: w.commit(CommitDraft(2, 2, LAYOUT, "0" * 32, 1, 10, write_id(1))),
        lambda w: w.commit(CommitDraft(2, 2, LAYOUT, "0" * 32, 11, 10, write_id(1), patch=patch(1, 2))),
        lambda w: w.commit(
            CommitDraft(2, 2, LAYOUT, "0" * 32, 1, 10, write_id(1), patch=patch(1, 2), metadata={"x": float("nan")})
        ),
    ],
)
def test_what_a_reader_would_refuse_is_never_written(act):
    store = new_store()
    trainer = writer(store)
    trainer.begin()
    trainer.commit(draft(0))
    trainer.commit(draft(1))
    before = list(store.list(""))
    with pytest.raises(InvalidArgument):
        act(trainer)
    assert list(store.list("")) == before
    trainer.commit(draft(2))


def test_metadata_is_stored_as_it_is():
    store = new_store()
    trainer = writer(store)
    trainer.begin()
    base = draft(0)
    metadata = {"loss": 0.1, "betas": (0.9, 0.999), "notes": {"é": [1, None, True]}}
    trainer.commit(
        CommitDraft(0, -5, LAYOUT, base.digest, 1, 10, base.write_id, keyframe=base.keyframe, metadata=metadata)
    )
    entry = state_of(store).by_step(-5)
    assert entry.metadata == {**metadata, "betas": [0.9, 0.999]}
    assert LogReader(store, RUN).state.versions[0] == entry


def test_a_snapshot_and_the_hint_are_written_every_so_many_records():
    store = new_store()
    trainer = writer(store, snapshot_every=4)
    trainer.begin()
    for number in range(10):
        trainer.commit(draft(number))
    assert list(store.list(keys.SNAPSHOTS)) == [keys.snapshot_key(3), keys.snapshot_key(7)]
    assert Head.unseal(store.get(keys.HEAD)) == Head(seq=7, snapshot=7)


def test_a_writer_whose_snapshots_somebody_else_keeps_writes_records_alone():
    store = new_store()
    trainer = LogWriter(store, RUN, LogReader(store, RUN), clock(), ids(), "w", snapshot_every=None)
    trainer.begin()
    for number in range(70):
        trainer.commit(draft(number))
    assert list(store.list("")) == [keys.record_key(seq) for seq in range(71)]


def test_a_young_run_has_a_hint_so_that_its_readers_need_no_list():
    store = CountingStore(new_store())
    writer(store).begin()
    store.reset()
    state_of(store)
    assert store.calls["list"] == 0


def test_a_new_term_writes_the_snapshot_that_an_earlier_writer_owed():
    store = chain(100).store_in(new_store())
    writer(store).begin()
    assert list(store.list(keys.SNAPSHOTS)) == [keys.snapshot_key(101)]
    assert Head.unseal(store.get(keys.HEAD)).snapshot == 101


def test_a_snapshot_or_hint_that_can_not_be_written_is_logged_and_made_up_for(caplog):
    store = new_store()
    faults = [
        Fault("fail_before", verb="put", matches=lambda verb, key: key.startswith(keys.SNAPSHOTS), times=2),
        Fault("fail_before", verb="put", matches=lambda verb, key: key == keys.HEAD, nth=1),
    ]
    trainer = writer(FaultStore(store, faults), snapshot_every=3)
    with caplog.at_level(logging.WARNING):
        trainer.begin()
        for number in range(4):
            trainer.commit(draft(number))
    assert caplog.text.count("no snapshot or hint written") == 3
    assert list(store.list(keys.SNAPSHOTS)) == [keys.snapshot_key(4)]


def test_a_store_that_contradicts_itself_is_reported_and_not_waited_for():
    class Liar(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            if if_absent:
                raise AlreadyExists(key)
            super().put(key, data)

    with pytest.raises(StoreUnavailable, match="said to exist and not to"):
        writer(Liar(new_store())).begin()


def test_a_damaged_record_in_the_way_stops_the_writer():
    store = chain(2).store_in(new_store())
    trainer = writer(store)
    trainer.begin()
    store.put(keys.record_key(4), b"junk")
    with pytest.raises(CorruptObject, match=keys.record_key(4)):
        trainer.commit(draft(2))
    assert store.get(keys.record_key(4)) == b"junk"


def test_snapshots_are_taken_every_one_record_or_more():
    with pytest.raises(InvalidArgument, match="snapshot_every"):
        writer(new_store(), snapshot_every=0)


def test_moments_are_told_in_utc_to_the_millisecond():
    moment = datetime(2026, 3, 4, 5, 6, 7, 891_999, tzinfo=UTC)
    assert timestamp(moment) == "2026-03-04T05:06:07.891Z"
    assert timestamp(moment.astimezone(timezone(timedelta(hours=5, minutes=30)))) == timestamp(moment)
    with pytest.raises(InvalidArgument, match="time zone"):
        timestamp(datetime(2026, 1, 1))
    assert utc_now().tzinfo is UTC


def test_random_ids_are_32_hex_digits_and_differ():
    found = {random_id() for _ in range(100)}
    assert len(found) == 100
    assert all(len(item) == 32 and set(item) <= set("0123456789abcdef") for item in found)


@pytest.mark.parametrize("name", ["", "a/b", ".", ".."])
def test_a_file_of_a_keyframe_has_a_plain_name(name):
    with pytest.raises(InvalidArgument):
        keys.keyframe_key(0, write_id(1), name)


def test_keys_are_in_the_order_of_their_numbers():
    numbers = [0, 9, 10, 99, 10**6, 10**12 - 1]
    assert [keys.record_key(n) for n in numbers] == sorted(keys.record_key(n) for n in numbers)
    assert keys.record_key(7) == "log/000000000007.json"
    assert keys.snapshot_key(7) == "log/snapshots/000000000007.json"
    assert keys.snapshot_seq(keys.snapshot_key(7)) == 7
    assert keys.layout_key("ab") == "layouts/ab.json"
    assert keys.patch_key(1, 2, "w") == "objects/patch/000000000001-000000000002-w.safetensors"
    assert keys.keyframe_key(3, "w", "f") == "objects/keyframe/000000000003-w/f"
    with pytest.raises(InvalidArgument):
        keys.record_key(10**12)


def test_after_the_last_epoch_that_there_can_be_a_writer_is_told_that_there_is_none():
    store = Script().epoch().epoch(epoch=2**63 - 1).store_in(new_store())
    with pytest.raises(Fenced, match="there is none after it"):
        writer(store).begin()
    assert len([key for key in store.list("log/") if "snapshots" not in key]) == 2
