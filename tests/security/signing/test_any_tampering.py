"""Whatever is done to the bucket without a key: a reader that pins keys sees a part of the true history, or refuses."""

from __future__ import annotations

import functools
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.errors import PulseError
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash
from pulse_schemas import (
    Countersignature,
    Head,
    SchemaError,
    SegmentedSnapshot,
    open_sealed,
    unseal_record,
    unseal_snapshot,
)
from tests.security.signing.actors import COMPACTOR, LIMITED, STRANGER, TRAINER, forger, history, reader, unsigned
from tests.support.records import RUN, DictStore, patch

VERSIONS, EVERY = 9, 3
LAST = VERSIONS + 2


@functools.cache
def true_store():
    store = history(VERSIONS, every=EVERY)
    forger(store, COMPACTOR, every=EVERY).attach(patches=[patch(0, 2, tag=9)])
    forger(store, None, number=3, every=EVERY).tag("best", 1)  # by mistake: the trainer answers for it
    store.put(keys.countersignature_key(LAST), countersignature(store, LAST, TRAINER))
    return store


def countersignature(store, seq, signer):
    return Countersignature(run=RUN, seq=seq, record=sealed_hash(store.get(keys.record_key(seq)))).seal(signer)


@functools.cache
def true_states():
    """Every prefix of the true history, by the hash of its last record: what a reader may believe."""
    store, found = true_store(), {}
    for seq in range(LAST + 1):
        prefix = DictStore()
        prefix.objects = {keys.record_key(n): store.objects[keys.record_key(n)] for n in range(seq + 1)}
        state = LogReader(prefix, RUN).refresh()
        found[state.last] = state.to_snapshot()
    return found


def signed_by(signer):
    def resigned(data):
        for unseal in (unseal_record, Countersignature.unseal):
            with suppress(SchemaError):
                return unseal(data).seal(signer)
        return unseal_snapshot(data).seal(signer)

    return resigned


def lying_snapshot(data):
    """Say of the first patch that it is no more."""
    try:
        snapshot = SegmentedSnapshot.unseal(data)
    except SchemaError:
        return data
    first, *others = snapshot.segments
    lie = first.model_copy(update={"patches": first.patches.model_copy(update={"dead": ((0, 1),)})})
    return snapshot.model_copy(update={"segments": (lie, *others)}).seal(COMPACTOR)


CHANGES = {
    "strip": unsigned,
    "by a stranger": signed_by(STRANGER),
    "by the compactor": signed_by(COMPACTOR),
    "lie in a snapshot": lying_snapshot,
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
    "bare body": lambda data: open_sealed(data).body,
}
FORGERS = {"nobody": None, "a stranger": STRANGER, "the compactor": COMPACTOR}
KEYS = [key(n) for key in (keys.record_key, keys.snapshot_key, keys.countersignature_key) for n in range(LAST + 2)]
TAMPERING = st.one_of(
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("change"), st.sampled_from(KEYS), st.sampled_from(sorted(CHANGES))),
    st.tuples(st.just("copy"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
    st.tuples(st.just("end"), st.integers(0, LAST)),
    st.tuples(
        st.just("countersign"), st.integers(0, LAST + 1), st.sampled_from(["nobody", "a stranger", "the compactor"])
    ),
    st.tuples(st.just("append"), st.sampled_from(["nobody", "a stranger", "the compactor"])),
    st.tuples(st.just("lie")),
    st.tuples(st.just("hint"), st.none() | st.integers(0, LAST + 2)),
)


def tamper(store, what):
    try:
        match what:
            case ("delete", key):
                store.delete(key)
            case ("change", key, how):
                store.put(key, CHANGES[how](store.get(key)))
            case ("copy", source, target):
                store.put(target, store.get(source))
            case ("end", seq):
                for number in range(seq, LAST + 2):
                    store.delete(keys.record_key(number))
            case ("append", who):
                term = forger(store, FORGERS[who], number=4)
                term.begin() if who == "the compactor" else term.attach(patches=[patch(0, 3, tag=8)])
            case ("countersign", seq, who):
                record = unseal_record(store.get(keys.record_key(seq)))
                if record.kind != "attach" or who != "the compactor":  # which may say that anyway
                    store.put(keys.countersignature_key(seq), countersignature(store, seq, FORGERS[who]))
            case ("lie",):
                for key in KEYS:
                    if key.startswith(keys.SNAPSHOTS) and store.exists(key):
                        store.put(key, lying_snapshot(store.get(key)))
            case ("hint", seq):
                store.put(keys.HEAD, Head(seq=5, snapshot=seq).seal(STRANGER))
    except (PulseError, SchemaError):
        pass  # it was done to something that is not there, or no document any more


def look(store, state_dir):
    """Return what a new process of a reader believes, as a snapshot; None if it refuses, or sees no run."""
    try:
        state = reader(store, state_dir, TRAINER.public, LIMITED).refresh()
    except PulseError:
        return None
    return None if state.seq < 0 else state.to_snapshot()


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(TAMPERING, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_reader_sees_a_true_prefix_that_never_gets_shorter_or_refuses(rounds):
    with tempfile.TemporaryDirectory() as folder:
        store, longest = DictStore(), -1
        for tampering in rounds:
            store.objects = dict(true_store().objects)
            for what in tampering:
                tamper(store, what)
            seen = look(store, Path(folder))
            if seen is not None:
                assert seen == true_states()[seen.last]
                assert seen.seq >= longest
                longest = seen.seq
        store.objects = dict(true_store().objects)
        assert look(store, Path(folder)) == true_states()[LogReader(true_store(), RUN).refresh().last]


def test_an_untouched_bucket_is_believed_to_its_end():
    assert look(true_store(), None).seq == LAST
