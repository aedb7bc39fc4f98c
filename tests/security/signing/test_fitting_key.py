"""A run whose record 0 is signed takes no record that its readers would refuse, from whatever writer of ours."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_registry import Registry, Trust
from pulse_registry.errors import CorruptObject, Distrust, InvalidArgument, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, Snapshotter
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.retention import RetentionPolicy
from pulse_registry.testing import CountingStore
from tests.security.signing.actors import (
    COMPACTOR,
    LIMITED,
    STRANGER,
    TRAINER,
    forger,
    history,
    reader,
    record_at,
    writer,
)
from tests.support.records import APPENDS, RUN, DictStore, draft, patch


@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize(
    ("signer", "reason"), [(None, Distrust.UNSIGNED), (STRANGER, Distrust.WRONG_KEY)], ids=["no key", "another key"]
)
def test_a_writer_without_the_runs_key_appends_nothing_and_is_told_which_it_is(kind, signer, reason):
    store = history(3)
    before = dict(store.objects)
    with pytest.raises(Untrusted) as caught:
        APPENDS[kind](writer(store, signer, number=2))
    assert caught.value.reason is reason
    assert f"run 'math' in dict:// is signed by {TRAINER.public}" in str(caught.value)
    assert ("--signing-key" if signer is None else "--trust") in str(caught.value)
    assert store.objects == before
    assert reader(store).refresh().seq == 3


@pytest.mark.parametrize("kind", APPENDS)
def test_the_runs_own_key_fits_everywhere(kind):
    store = history(3)
    APPENDS[kind](writer(store, TRAINER, number=2))
    assert reader(store).refresh().seq == 4


def test_another_key_fits_for_who_says_that_readers_pin_it():
    # This is how keys are changed: all pin both, then the trainer signs with the new one.
    store = history(3)
    pins = (TRAINER.public, STRANGER.public)
    term = writer(store, STRANGER, number=2, believes=reader(store, None, *pins))
    term.begin()
    term.commit(draft(3))
    assert reader(store, None, *pins).refresh().seq == 5


def test_a_run_that_nobody_signed_takes_signed_and_unsigned_records():
    # A compactor, or a service, that has a key must not stop a trainer that has none.
    store = history(2, signer=None)
    writer(store, COMPACTOR, number=2).attach(patches=[patch(0, 1, tag=9)])
    term = writer(store, None, number=3)
    term.begin()
    term.commit(draft(2))
    assert LogReader(store, RUN).refresh().seq == 5


def test_who_signs_the_run_is_asked_once_where_it_was_opened_at_a_snapshot():
    store = CountingStore(history(9, every=4))
    term = writer(store, TRAINER, number=2)
    for _ in range(3):
        term.attach(patches=[])
    assert store.ledger.count(("get", keys.record_key(0))) == 1


def test_a_run_whose_first_record_is_gone_takes_none():
    store = history(9, every=4)
    del store.objects[keys.record_key(0)]
    before = dict(store.objects)
    with pytest.raises(CorruptObject, match=r"log/000000000000\.json is missing, whose key signs the run: restore"):
        writer(store, None, number=2).attach(patches=[])
    assert store.objects == before


def test_a_writer_that_lost_the_race_for_the_first_record_asks_who_won_it():
    class Late(DictStore):
        """Another writer's record comes in while this one's is on its way."""

        def put(self, key, data, *, if_absent=False):
            if key == keys.record_key(0) and key not in self.objects:
                self.objects[key] = record_at(history(0), 0)
            super().put(key, data, if_absent=if_absent)

    store = Late()
    with pytest.raises(Untrusted, match="this writer has no key"):
        writer(store, None, number=2).begin()
    assert list(store.objects) == [keys.record_key(0)]


def door(store):
    believes = LogReader(store, RUN)
    return AppendGuard(store, RUN, believes, Snapshotter(store, believes))


def test_a_service_without_pins_admits_no_unsigned_record_to_a_signed_run():
    store, ahead = history(2), history(2)
    forger(ahead, None).attach(patches=[])
    with pytest.raises(InvalidArgument, match=f"record 3 is not signed, and the run is, by {TRAINER.public}"):
        door(store).admit(record_at(ahead, 3))
    assert keys.record_key(3) not in store.objects


@pytest.mark.parametrize("signer", [TRAINER, COMPACTOR])
def test_a_service_without_pins_leaves_it_to_readers_which_keys_are_good(signer):
    store, ahead = history(2), history(2)
    forger(ahead, signer).attach(patches=[])
    assert door(store).admit(record_at(ahead, 3)).seq == 3


# -- what works before it writes -------------------------------------------------------------------------------------


def registry(store, **options):
    push, compute = PushOptions(dtype="keep", keyframe_share=100.0), ComputeOptions(backend="reference")
    return Registry(store, RUN, Options(push=push, compute=compute, **options))


def trained(versions=8):
    store = DictStore()
    weights = {"w": np.arange(64, dtype=np.float16)}
    with registry(store, signer=TRAINER) as trainer:
        for step in range(versions):
            weights["w"][step] += 1
            trainer.push(step, weights)
    return store


@pytest.mark.parametrize("signer", [None, STRANGER], ids=["no key", "another key"])
@pytest.mark.parametrize("pins", [None, [TRAINER.public, LIMITED]], ids=["no pins", "pins"])
def test_a_compactor_and_a_collector_without_the_key_do_no_work(signer, pins, tmp_path):
    store = trained()
    before = dict(store.objects)
    trust = None if pins is None else Trust(pins, state_dir=tmp_path)
    with registry(store, signer=signer, trust=trust) as mine:
        compactor = mine.compactor()
        assert compactor.pending()
        with pytest.raises(Untrusted):
            compactor.step()
        compactor.close()
        everything = RetentionPolicy(keep_last=1, keep_every=None, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
        with pytest.raises(Untrusted):
            mine.gc(everything, dry_run=False)
        with pytest.raises(Untrusted):
            mine.push(99, {"w": np.zeros(64, np.float16)})
        assert mine.gc(everything).plan.kept  # to look takes no key
    after = dict(store.objects)
    after.pop(f"{RUN}/{keys.CLOCK}", None)
    assert after == before
