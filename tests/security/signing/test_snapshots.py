"""Snapshots are a short cut past the records, so that they are believed on a signature alone, or not at all."""

from __future__ import annotations

import pytest

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.log import LogReader, Snapshotter, sealed_hash
from pulse_registry.testing import CountingStore
from pulse_schemas import SegmentedSnapshot, unseal_record
from tests.security.signing.actors import (
    COMPACTOR,
    LIMITED,
    STRANGER,
    TRAINER,
    forger,
    history,
    reader,
    unsigned,
    writer,
)
from tests.support.records import RUN, draft, patch
from tests.support.snapshots import put_snapshot, read_snapshot, with_patches

EVERY = 4


def snapshots(store):
    return sorted(key for key in store.objects if key.startswith(keys.SNAPSHOTS))


def poisoned(store, signer):
    """Let the newest snapshot name other bytes for every object, in the right log; return the lie."""
    lie = "0" * 64
    _, state = read_snapshot(store, snapshots(store)[-1])
    put_snapshot(store, with_patches(state, {"blake3": lie}), signer)
    return lie


def hashes(state):
    return {p.object.blake3 for p in state.patches}


def test_a_snapshot_that_a_pinned_key_signed_opens_the_run():
    store = history(9, every=EVERY)
    counting = CountingStore(store)
    follower = reader(counting)
    assert follower.refresh().seq == 9
    assert follower.snapshot_seq == 7
    assert counting.calls["get"] < 8 + len(follower.segments)


def test_without_pins_a_poisoned_snapshot_is_believed():
    # This is what signatures are for: whoever writes to the bucket writes what readers without pins believe.
    store = history(9, every=EVERY)
    lie = poisoned(store, None)
    assert lie in hashes(LogReader(store, RUN).refresh())


@pytest.mark.parametrize("signer", [None, STRANGER, COMPACTOR], ids=["unsigned", "stranger", "limited"])
def test_a_poisoned_snapshot_is_passed_over_by_a_reader_that_pins_keys(signer):
    store = history(9, every=EVERY)
    lie = poisoned(store, signer)
    follower = reader(store, None, TRAINER.public, LIMITED)
    assert lie not in hashes(follower.refresh())
    assert follower.snapshot_seq == 3  # the one before


def test_a_snapshot_whose_signature_was_left_on_other_contents_is_passed_over():
    store = history(9, every=EVERY)
    newest, older = reversed(snapshots(store)[-2:])
    store.objects[newest] = store.objects[older]
    assert reader(store).refresh().seq == 9


def test_without_a_snapshot_to_believe_all_records_are_read():
    store = history(9, every=EVERY)
    for key in snapshots(store):
        store.objects[key] = unsigned(store.objects[key])
    follower = reader(store)
    assert follower.refresh().seq == 9
    assert follower.snapshot_seq == -1


def test_a_snapshot_may_be_signed_by_a_key_that_is_pinned_for_nothing_else():
    store = history(9, every=EVERY)
    for key in snapshots(store):
        store.objects[key] = SegmentedSnapshot.unseal(store.objects[key]).seal(STRANGER)
    follower = reader(store, None, TRAINER.public, f"{STRANGER.public}=snapshot")
    assert follower.refresh().seq == 9
    assert follower.snapshot_seq == 7


def test_a_snapshot_of_a_record_that_nobody_signed_is_passed_over():
    store = history(3, every=EVERY)
    last = keys.record_key(3)
    bare = unsigned(store.objects[last])
    snapshot = SegmentedSnapshot.unseal(store.objects[keys.snapshot_key(3)])
    store.objects[last] = bare
    store.objects[keys.snapshot_key(3)] = snapshot.model_copy(update={"last": sealed_hash(bare)}).seal(TRAINER)
    follower = reader(store)
    with pytest.raises(Exception, match="record 3 of run 'math' in dict:// is not signed"):
        follower.refresh()
    assert follower.snapshot_seq == -1


def test_a_signing_writer_makes_snapshots_though_another_writer_always_has_the_turn():
    store = history(1, every=EVERY)
    trainer, compactor = writer(store, TRAINER, number=2, every=EVERY), forger(store, COMPACTOR, number=3, every=EVERY)
    trainer.begin()
    for version in range(1, 20):
        trainer.commit(draft(version))
        while LogReader(store, RUN).refresh().seq % EVERY >= EVERY - 2:
            compactor.attach(patches=[patch(0, 1, tag=len(store.objects))])
    seqs = [unseal_record(store.objects[key]).seq for key in store.objects if key.startswith("log/0")]
    follower = reader(store, None, TRAINER.public, LIMITED)
    assert follower.refresh().seq == max(seqs)
    assert follower.snapshot_seq >= max(seqs) - 3 * EVERY


@pytest.mark.parametrize("signer", [None, COMPACTOR], ids=["unsigned", "limited"])
def test_a_writer_leaves_no_snapshot_that_readers_with_its_pins_would_pass_over(signer):
    store = history(9, every=EVERY)
    before = snapshots(store)
    pins = (TRAINER.public, f"{COMPACTOR.public}=attach,epoch")
    follower = reader(store, None, *pins)
    follower.refresh()
    snapshotter = Snapshotter(store, follower, snapshot_every=1, signer=signer)
    snapshotter.appended(unseal_record(store.objects[keys.record_key(9)]))
    assert snapshots(store) == before
    Snapshotter(store, follower, snapshot_every=1, signer=TRAINER).appended(
        unseal_record(store.objects[keys.record_key(9)])
    )
    assert snapshots(store) == [*before[1:], keys.snapshot_key(9)]


@pytest.mark.parametrize("lost", [(7,), (6, 7, 8, 9)])
def test_a_gap_before_a_record_that_a_signed_snapshot_tells_of_is_named(lost):
    store = history(9, every=EVERY)
    kept = {seq: store.objects.pop(keys.record_key(seq)) for seq in lost}
    follower = reader(store)
    for ask in (follower.refresh, lambda: follower.state):
        match = f"record {lost[0]} is missing: .* a snapshot that a trusted key signed tells of record 7"
        with pytest.raises(CorruptObject, match=match):
            ask()
    for seq, sealed in kept.items():
        store.objects[keys.record_key(seq)] = sealed
    assert follower.refresh().seq == 9


def test_a_snapshot_that_no_pinned_key_signed_tells_of_nothing():
    store = history(9, every=EVERY, signer=STRANGER)
    for seq in range(6):
        record = unseal_record(store.objects[keys.record_key(seq)])
        store.objects[keys.record_key(seq)] = record.seal(STRANGER)
    for seq in range(6, 10):
        del store.objects[keys.record_key(seq)]
    assert reader(store, None, f"{STRANGER.public}=epoch,commit").refresh().seq == 5


def test_of_many_snapshots_that_nobody_signed_only_a_few_are_fetched():
    store = history(30, every=1)
    newest = unsigned(store.objects[snapshots(store)[-1]])
    for seq in range(31):
        store.objects[keys.snapshot_key(seq)] = newest
    counting = CountingStore(store)
    assert reader(counting).refresh().seq == 30
    assert sum(verb == "get" and keys.SNAPSHOTS in key for verb, key in counting.ledger) == 8
