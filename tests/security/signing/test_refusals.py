"""What a reader that pins keys refuses, and that it refuses before it believes a word of it."""

from __future__ import annotations

import pytest

from pulse_registry.errors import CorruptObject, Distrust, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_schemas import RECORD_KINDS, CommitRecord, SchemaError, Sealed, open_sealed, unseal_record
from tests.security.signing.actors import (
    COMPACTOR,
    LIMITED,
    STRANGER,
    TRAINER,
    claimed,
    forger,
    history,
    put_record,
    reader,
    record_at,
    unsigned,
    writer,
)
from tests.support.records import APPENDS, RUN, draft, patch, write_id


def refused(store, reason, *pins, state=None):
    """A new reader refuses the run for this reason; return what it says."""
    with pytest.raises(Untrusted) as caught:
        reader(store, state, *pins).refresh()
    assert caught.value.reason is reason
    return str(caught.value)


def test_what_a_pinned_key_signed_is_believed():
    store = history(3)
    assert reader(store).refresh().last == LogReader(store, RUN).refresh().last
    assert len(reader(store).state.versions) == 3


def test_a_reader_without_pins_reads_a_signed_run():
    assert len(LogReader(history(3), RUN).refresh().versions) == 3


def test_an_unsigned_record_is_refused_where_signatures_are_expected():
    store = history(2)
    forger(store, None).attach(patches=[patch(0, 1, tag=9)])
    assert "record 3 of run 'math' in dict:// is not signed" in refused(store, Distrust.UNSIGNED)


def test_a_run_that_nobody_signed_is_refused():
    refused(history(1, signer=None), Distrust.UNSIGNED)


@pytest.mark.parametrize("seq", range(4))
def test_a_record_without_its_signature_is_refused(seq):
    store = history(3)
    put_record(store, seq, unsigned(record_at(store, seq)))
    refused(store, Distrust.UNSIGNED)


def test_a_record_that_a_stranger_signed_is_refused():
    store = history(2)
    forger(store, STRANGER).attach(patches=[patch(0, 1, tag=9)])
    assert STRANGER.public in refused(store, Distrust.WRONG_KEY)


def test_a_whole_history_by_a_stranger_is_refused():
    refused(history(3, signer=STRANGER), Distrust.WRONG_KEY)


def test_a_stranger_who_names_a_pinned_key_is_refused():
    store = history(2)
    put_record(store, 2, claimed(unseal_record(record_at(store, 2)), by=STRANGER, of=TRAINER))
    refused(store, Distrust.BAD_SIGNATURE)


def test_a_signature_of_another_record_is_refused():
    store = history(3)
    body, other = open_sealed(record_at(store, 3)).body, open_sealed(record_at(store, 2)).signature
    put_record(store, 3, Sealed(body, other).to_bytes())
    refused(store, Distrust.BAD_SIGNATURE)


CHANGES = {
    "version": {"version": 2, "parent": 1, "patch": patch(1, 2)},
    "epoch": {"epoch": 2},
    "write id": {"write_id": write_id(5)},
    "parent record": {"previous": "0" * 64},
    "layout": {"layout": "b" * 64},
    "digest": {"digest": "1" * 32},
    "step": {"step": 77},
    "cells": {"cells": 101},
    "time": {"created_at": "2030-01-01T00:00:00.000Z"},
    "metadata": {"metadata": {"reward": 1}},
    "run": {"run": "other"},
    "object": {"patch": patch(0, 1, tag=9)},
    "object's hash": {},
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_field_of_a_signed_record_can_be_changed(what):
    store = history(2)
    record = unseal_record(record_at(store, 2))
    assert isinstance(record, CommitRecord)
    assert record.patch is not None
    changes = CHANGES[what] or {
        "patch": record.patch.model_copy(update={"object": record.patch.object.model_copy(update={"blake3": "0" * 64})})
    }
    signature = open_sealed(record_at(store, 2)).signature
    changed = record.model_copy(update=changes)
    assert changed != record
    put_record(store, 2, Sealed(changed.canonical(), signature).to_bytes())
    refused(store, Distrust.OTHER_RUN if what == "run" else Distrust.BAD_SIGNATURE)


def test_no_flipped_bit_of_a_signed_record_passes_though_the_seal_be_made_to_fit():
    store = history(0)
    sealed = record_at(store, 0)
    found = open_sealed(sealed)
    content = sealed[len(b'{"blake3":"","body":') + 64 : -1]
    guard = reader(store).guard
    assert guard is not None
    reasons = set()
    for at in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        forged = Sealed(bytes(flipped)).to_bytes()
        try:
            record = unseal_record(forged)
        except SchemaError:
            reasons.add("document")
            continue
        with pytest.raises(Untrusted) as caught:
            guard.check(record, forged)
        reasons.add(caught.value.reason)
    # Each flip is a document that is none, or one that nobody signed: a flip in the run's name is seen first.
    assert reasons == {"document", Distrust.BAD_SIGNATURE, Distrust.WRONG_KEY, Distrust.OTHER_RUN}
    guard.check(unseal_record(sealed), sealed)
    assert found.signature is not None


def test_a_record_of_another_run_is_refused_though_the_same_key_signed_it():
    ours, theirs = history(2), history(2, run="physics")
    ours.objects = theirs.objects
    assert "is of another run, 'physics'" in refused(ours, Distrust.OTHER_RUN)


def test_a_limited_key_may_say_what_it_is_pinned_for():
    store = history(2)
    forger(store, COMPACTOR).attach(patches=[patch(0, 1, tag=9)])
    assert reader(store, None, TRAINER.public, LIMITED).refresh().seq == 3


@pytest.mark.parametrize("kind", sorted(RECORD_KINDS.keys() - {"attach"}))
def test_a_limited_key_may_say_nothing_else(kind):
    store = history(2)
    compactor = forger(store, COMPACTOR)
    if kind == "commit":
        compactor.begin()
        compactor.commit(draft(2))
    else:
        APPENDS[kind](compactor)
    pin = f"{LIMITED},epoch" if kind == "commit" else LIMITED
    assert f"may not sign a {kind}" in refused(store, Distrust.WRONG_KEY, TRAINER.public, pin)


def test_a_reader_goes_on_to_believe_what_it_had_read_before_the_bad_record():
    store = history(2)
    follower = reader(store)
    before = follower.refresh()
    forger(store, STRANGER).begin()
    for _ in range(2):
        with pytest.raises(Untrusted):
            follower.refresh()
    assert follower.state.last == before.last


def test_a_writer_that_pins_keys_writes_nothing_that_its_readers_would_refuse():
    store = history(2)
    for signer, reason in ((None, Distrust.UNSIGNED), (STRANGER, Distrust.WRONG_KEY)):
        before = dict(store.objects)
        with pytest.raises(Untrusted) as caught:
            writer(store, signer, believes=reader(store)).attach(patches=[patch(0, 1, tag=9)])
        assert caught.value.reason is reason
        assert store.objects == before
    compactor = writer(store, COMPACTOR, believes=reader(store, None, TRAINER.public, LIMITED))
    with pytest.raises(Untrusted, match="may not sign a epoch"):
        compactor.begin()
    assert compactor.attach(patches=[patch(0, 1, tag=9)]).seq == 3


def test_a_damaged_record_is_damage_and_no_matter_of_trust():
    store = history(2)
    put_record(store, 1, record_at(store, 1)[:-9] + b'"deadbee"')
    with pytest.raises(CorruptObject, match=keys.record_key(1)):
        reader(store).refresh()
