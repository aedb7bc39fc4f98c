"""Signed records through the service: stored as they are, and refused by a service that pins keys itself."""

from __future__ import annotations

import pytest

from pulse_registry.client.store import ServiceStore
from pulse_registry.errors import InvalidArgument, StoreUnavailable, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, Snapshotter
from pulse_registry.store import PrefixStore, open_store
from pulse_schemas import open_sealed, unseal_snapshot
from pulse_server import Settings, create_app
from tests.security.signing.actors import (
    COMPACTOR,
    LIMITED,
    STRANGER,
    TRAINER,
    claimed,
    forger,
    history,
    reader,
    record_at,
    writer,
)
from tests.support.records import RUN, DictStore, chain
from tests.support.service import pulse_serve


def door(store, *pins, signer=None, every=64):
    believes = reader(store, None, *pins) if pins else LogReader(store, RUN)
    return AppendGuard(store, RUN, believes, Snapshotter(store, believes, snapshot_every=every, signer=signer))


def test_a_signed_record_is_admitted_byte_for_byte_and_again():
    written, store = history(0), DictStore()
    append_guard = door(store, TRAINER.public)
    for _ in range(2):
        append_guard.admit(record_at(written, 0))
    assert record_at(store, 0) == record_at(written, 0)


def test_a_service_without_pins_admits_what_anybody_signed():
    written, store = history(0, signer=STRANGER), DictStore()
    door(store).admit(record_at(written, 0))
    assert record_at(store, 0) == record_at(written, 0)


def test_a_service_that_pins_keys_refuses_all_else_and_writes_nothing():
    record, store = chain(0).records[0], DictStore()
    for sealed in (record.seal(), record.seal(STRANGER), record.seal(COMPACTOR), claimed(record, STRANGER, TRAINER)):
        with pytest.raises(InvalidArgument, match="record 0 of run 'math'"):
            door(store, TRAINER.public, LIMITED).admit(sealed)
    assert store.objects == {}


def test_a_service_with_a_key_signs_its_snapshots():
    written, store = history(0), DictStore()
    door(store, TRAINER.public, f"{COMPACTOR.public}=snapshot", signer=COMPACTOR, every=1).admit(record_at(written, 0))
    signature = open_sealed(store.get(keys.snapshot_key(0))).signature
    assert signature == COMPACTOR.sign(unseal_snapshot(store.get(keys.snapshot_key(0))).canonical())
    follower = reader(store, None, TRAINER.public, f"{COMPACTOR.public}=snapshot")
    assert follower.refresh().seq == follower.snapshot_seq == 0


def test_settings_that_name_no_keys_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="is no public key"):
        create_app(Settings.read(root="memory://none", insecure_open=True, trust="abc"))
    with pytest.raises(InvalidArgument, match="can't be read"):
        create_app(Settings.read(root="memory://none", insecure_open=True, signing_key=tmp_path / "none.pem"))


def test_a_service_whose_snapshots_it_would_not_believe_itself_does_not_start(tmp_path):
    COMPACTOR.save(tmp_path / "key.pem")
    given = {"root": "memory://none", "insecure_open": True, "signing_key": tmp_path / "key.pem"}
    for trust in (TRAINER.public, f"{TRAINER.public} {LIMITED}"):
        with pytest.raises(InvalidArgument, match=f"PULSE_TRUST does not pin {COMPACTOR.public} for snapshots"):
            create_app(Settings.read(**given, trust=trust))
    create_app(Settings.read(**given, trust=f"{TRAINER.public} {COMPACTOR.public}=retire,snapshot"))
    create_app(Settings.read(**given))


@pytest.mark.slow
def test_a_trainer_and_a_worker_trust_one_another_through_a_service_that_pins_keys(tmp_path):
    root, environment = tmp_path / "root", {"PULSE_TRUST": TRAINER.public, "PULSE_STATE_DIR": str(tmp_path / "service")}
    with pulse_serve(str(root), tmp_path, "--insecure-open", environment=environment) as service:
        store = PrefixStore(ServiceStore(service.url, None), RUN)
        with pytest.raises(InvalidArgument, match="is not signed"):
            forger(store, None, number=1).begin()
        with pytest.raises(InvalidArgument, match=STRANGER.public):
            forger(store, STRANGER).begin()
        writer(store, TRAINER, number=3).begin()
        worker = reader(store, tmp_path / "worker")
        assert worker.refresh().epoch == 1
        with pytest.raises(Untrusted):
            reader(store, None, STRANGER.public).refresh()
        # Somebody writes to the bucket behind the service's back: neither believes it.
        forger(PrefixStore(open_store(str(root)), RUN), STRANGER, number=4).begin()
        with pytest.raises((Untrusted, StoreUnavailable)):
            reader(store, tmp_path / "worker").refresh()
