"""The way back for a run with a record that readers refuse: a key's holder answers for it, and for nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pulse_registry import Registry, Trust
from pulse_registry.cli import main
from pulse_registry.client.store import ServiceStore
from pulse_registry.errors import Conflict, Distrust, Fenced, InvalidArgument, NotFound, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash
from pulse_registry.options import Options
from pulse_registry.signing.countersigning import Countersigning
from pulse_registry.store import PrefixStore, open_store
from pulse_registry.testing import CountingStore
from pulse_schemas import Countersignature, Head, Sealed, Signature, open_sealed, unseal_record
from tests.security.signing.actors import (
    COMPACTOR,
    LIMITED,
    STRANGER,
    TRAINER,
    forger,
    history,
    key,
    put_record,
    reader,
    record_at,
    writer,
)
from tests.security.signing.test_open import weights
from tests.support.records import RUN, DictStore, draft, patch
from tests.support.service import pulse_serve

BAD = 4
"""Number of the record that nobody signed; one that the trainer signed follows it."""


def locked(signer=None):
    """Return a run that pinned readers refuse from record 4 on, and that goes on behind it."""
    store = history(3)
    forger(store, signer).tag("best", 1)
    forger(store, TRAINER, number=3).begin()
    return store


def countersigning(store, signer=TRAINER, *pins):
    return Countersigning(store, reader(store, None, *pins), signer)


def mended(store, signer=TRAINER, *pins):
    found = countersigning(store, signer, *pins)
    found.countersign(found.refused()[-1].name)
    return store


def refused(store, reason, *pins):
    with pytest.raises(Untrusted) as caught:
        reader(store, None, *pins).refresh()
    assert caught.value.reason is reason
    return str(caught.value)


@pytest.mark.parametrize("signer", [None, STRANGER, COMPACTOR], ids=["unsigned", "stranger", "limited"])
def test_who_holds_the_key_answers_for_a_record_and_all_readers_go_on(signer, tmp_path):
    store, pins = locked(signer), (TRAINER.public, LIMITED)
    early = reader(store, tmp_path, *pins)
    with pytest.raises(Untrusted):
        early.refresh()
    log = {seq: record_at(store, seq) for seq in range(6)}
    mended(store, TRAINER, *pins)
    for follower in (early, reader(store, tmp_path, *pins), reader(store, None, *pins)):
        state = follower.refresh()
        assert (state.seq, state.last, dict(state.tags)) == (5, LogReader(store, RUN).refresh().last, {"best": 1})
    assert {seq: record_at(store, seq) for seq in range(6)} == log
    assert countersigning(store, TRAINER, *pins).refused() == []


def test_what_is_refused_is_named_by_number_and_hash_and_said_why():
    store = locked()
    forger(store, STRANGER, number=4).attach(patches=[patch(0, 1, tag=9)])
    first, second = countersigning(store).refused()
    assert (first.record, first.name) == (
        unseal_record(record_at(store, BAD)),
        f"4:{sealed_hash(record_at(store, BAD))}",
    )
    assert "record 4 of run 'math' in dict:// is not signed" in first.why
    assert (second.record.seq, second.record.kind) == (6, "attach")
    assert STRANGER.public in second.why


def test_only_what_was_looked_at_is_countersigned():
    store = locked()
    found = countersigning(store)
    (looked,) = found.refused()
    forger(store, None, number=4).tag("worst", 0)
    assert [one.name for one in found.countersign(looked.name)] == [looked.name]
    refused(store, Distrust.UNSIGNED)
    (left,) = found.refused()
    assert left.record.seq == 6
    for name in (looked.name, f"6:{looked.hash}", "6", "latest"):
        with pytest.raises(Conflict, match="look again"):
            found.countersign(name)


def test_a_record_that_was_exchanged_since_it_was_looked_at_is_not_countersigned():
    store = history(3)
    forger(store, None).tag("best", 1)
    found = countersigning(store)
    name = found.refused()[-1].name
    put_record(store, BAD, unseal_record(record_at(store, BAD)).model_copy(update={"version": 0}).seal())
    before = dict(store.objects)
    with pytest.raises(Conflict):
        found.countersign(name)
    assert store.objects == before


@pytest.mark.parametrize(
    ("signer", "reason"),
    [(None, Distrust.UNSIGNED), (STRANGER, Distrust.WRONG_KEY), (COMPACTOR, Distrust.WRONG_KEY)],
    ids=["nobody", "stranger", "limited"],
)
def test_nobody_else_can_answer_for_a_record(signer, reason):
    store, pins = locked(), (TRAINER.public, LIMITED)
    before = dict(store.objects)
    with pytest.raises(Untrusted) as caught:
        mended(store, signer, *pins)
    assert caught.value.reason is reason
    assert store.objects == before
    # Nor is it believed where an attacker writes it all the same.
    said = Countersignature(run=RUN, seq=BAD, record=sealed_hash(record_at(store, BAD)))
    store.put(keys.countersignature_key(BAD), said.seal(signer))
    assert "the countersignature of record 4" in refused(store, reason, *pins)


def test_a_limited_key_may_answer_for_what_it_may_sign():
    store, pins = history(3), (TRAINER.public, LIMITED)
    forger(store, None).attach(patches=[patch(0, 1, tag=9)])
    mended(store, COMPACTOR, *pins)
    assert reader(store, None, *pins).refresh().seq == 4


def test_a_countersignature_counts_for_one_record_at_its_place():
    store = locked()
    forger(store, None, number=4).tag("worst", 0)
    countersigning(store).countersign(f"4:{sealed_hash(record_at(store, BAD))}")
    good = store.get(keys.countersignature_key(BAD))
    store.put(keys.countersignature_key(6), good)
    assert "record 6 of run 'math' in dict:// is one of other bytes" in refused(store, Distrust.BAD_SIGNATURE)
    store.delete(keys.countersignature_key(6))
    refused(store, Distrust.UNSIGNED)
    for about in ({"run": "physics"}, {"seq": 5}, {"record": "0" * 64}):
        said = Countersignature.unseal(good).model_copy(update=about).seal(TRAINER)
        store.put(keys.countersignature_key(BAD), said)
        assert "is one of other bytes" in refused(store, Distrust.BAD_SIGNATURE)


def test_a_record_put_into_the_place_of_a_countersigned_one_is_refused():
    store = history(3)
    forger(store, None).tag("best", 1)
    mended(store)
    put_record(store, BAD, unseal_record(record_at(store, BAD)).model_copy(update={"version": 0}).seal())
    refused(store, Distrust.BAD_SIGNATURE)


def test_no_countersignature_lets_a_record_be_left_out():
    store = mended(locked())
    del store.objects[keys.countersignature_key(BAD)]
    refused(store, Distrust.UNSIGNED)
    del store.objects[keys.record_key(BAD)]
    assert reader(store).refresh().seq == BAD - 1
    put_record(store, BAD, record_at(store, 5))
    with pytest.raises(Exception, match="record 5, where record 4 belongs"):
        reader(store).refresh()


MENDED = mended(locked())


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_no_changed_bit_of_a_countersignature_is_believed(data):
    store, good = DictStore(), MENDED.get(keys.countersignature_key(BAD))
    store.objects = dict(MENDED.objects)
    content = bytearray(good[len(b'{"blake3":"","body":') + 64 : -1])
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    content[at // 8] ^= 1 << at % 8
    store.put(keys.countersignature_key(BAD), Sealed(bytes(content)).to_bytes())  # the seal is made to fit
    with pytest.raises(Untrusted):
        reader(store).refresh()
    assert reader(mended(store)).refresh().seq == 5  # nor is it in the way of the true one


def test_a_key_that_another_signs_for_is_not_believed():
    store = locked()
    said = Countersignature(run=RUN, seq=BAD, record=sealed_hash(record_at(store, BAD)))
    body = said.canonical()
    pinned = TRAINER.sign(b"").key
    store.put(keys.countersignature_key(BAD), Sealed(body, Signature(pinned, STRANGER.sign(body).value)).to_bytes())
    refused(store, Distrust.BAD_SIGNATURE)


def test_a_countersignature_is_no_record_and_no_snapshot():
    good = mended(locked()).get(keys.countersignature_key(BAD))
    store = history(3)
    put_record(store, 4, good)
    with pytest.raises(Exception, match="kind None is not known"):
        reader(store).refresh()
    store = history(9, every=4)
    store.put(keys.snapshot_key(7), good)
    assert reader(store).refresh().seq == 9


def test_a_record_that_readers_believe_costs_no_look_for_a_countersignature():
    store = CountingStore(mended(locked()))
    reader(store).refresh()
    asked = [name for _, name in store.ledger if name.startswith(keys.COUNTERSIGNED)]
    assert asked == [keys.countersignature_key(BAD)]


def test_a_countersigned_record_is_remembered_and_opened_at_as_any_other(tmp_path):
    store = history(3)
    forger(store, None).tag("best", 1)
    mended(store)
    reader(store, tmp_path).refresh()
    assert reader(store, tmp_path).refresh().seq == BAD  # it is what was seen last, and is still there
    del store.objects[keys.record_key(BAD)]
    with pytest.raises(Untrusted) as caught:
        reader(store, tmp_path).refresh()
    assert caught.value.reason is Distrust.ROLLBACK


def test_a_run_opens_at_a_snapshot_whose_last_record_was_countersigned(tmp_path):
    store = history(3)
    forger(store, None).tag("best", 1)
    mended(store)
    follower = reader(store, tmp_path)
    store.put(keys.snapshot_key(BAD), follower.refresh().to_snapshot().seal(TRAINER))
    store.put(keys.HEAD, Head(seq=BAD, snapshot=BAD).seal())
    again = reader(store, tmp_path)
    assert (again.refresh().seq, again.snapshot_seq) == (BAD, BAD)


def test_a_trainer_that_pins_goes_on_in_its_term_after_a_tag_and_is_fenced_after_a_push():
    store = DictStore()
    trainer = writer(store, TRAINER, believes=reader(store))
    trainer.begin()
    trainer.commit(draft(0))
    forger(store, None).tag("best", 0)
    with pytest.raises(Untrusted):
        trainer.commit(draft(1))
    mended(store)
    trainer.commit(draft(1))
    forger(store, None, number=3).begin()
    with pytest.raises(Untrusted):
        trainer.commit(draft(2))
    mended(store)
    with pytest.raises(Fenced):
        trainer.commit(draft(2))
    again = writer(store, TRAINER, number=4, believes=reader(store))
    again.begin()
    again.commit(draft(2))
    assert len(reader(store).refresh().versions) == 3


def test_records_that_nobody_answers_for_can_be_removed_from_the_end_and_no_pinned_reader_minds(tmp_path):
    # They are an attacker's: readers that pin keys have folded none of them.
    store = history(3)
    follower = reader(store, tmp_path)
    follower.refresh()
    attacker = forger(store, None)
    attacker.begin()
    attacker.commit(draft(3, tag=7))
    with pytest.raises(Untrusted):
        follower.refresh()
    for refused_record in reversed(countersigning(store).refused()):
        store.delete(keys.record_key(refused_record.record.seq))
    term = writer(store, TRAINER, number=5)
    term.begin()
    term.commit(draft(3))
    assert follower.refresh().seq == reader(store, tmp_path).refresh().seq == 5


def test_without_pins_nothing_says_what_is_refused():
    store = locked()
    with pytest.raises(InvalidArgument, match="depends on what they pin"):
        Countersigning(store, LogReader(store, RUN), TRAINER)
    with pytest.raises(NotFound, match="there is no run 'math'"):
        countersigning(DictStore()).refused()


def test_a_service_is_not_the_place_to_countersign():
    trust = Trust([TRAINER.public])
    with Registry(ServiceStore("http://127.0.0.1:9"), RUN, Options(signer=TRAINER, trust=trust)) as registry:
        for call in (registry.refused_records, lambda: registry.countersign("4:0")):
            with pytest.raises(InvalidArgument, match="takes no countersignatures: go to the bucket"):
                call()


@pytest.mark.slow
def test_a_worker_of_a_service_finds_the_countersignature(tmp_path):
    root = tmp_path / "root"
    bucket, written = PrefixStore(open_store(str(root)), RUN), locked()
    for name, data in written.objects.items():
        bucket.put(name, data)
    with pulse_serve(str(root), tmp_path, "--insecure-open") as service:
        through = PrefixStore(ServiceStore(service.url, None), RUN)
        worker = reader(through, tmp_path / "worker")
        with pytest.raises(Untrusted):
            worker.refresh()
        with pytest.raises(InvalidArgument, match=r"the service at .* keeps this itself"):
            mended(through)
        mended(bucket)
        assert worker.refresh().seq == reader(through).refresh().seq == 5


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def pulse(monkeypatch, tmp_path, capsys):
    """Run a command on one run; return its exit code and the JSON document that it printed."""
    for name in ("PULSE_TRUST", "PULSE_SIGNING_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PULSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PULSE_ROOT", str(tmp_path / "r"))
    monkeypatch.setenv("PULSE_RUN", "math")
    save_file(weights(), tmp_path / "m.safetensors")
    TRAINER.save(tmp_path / "key.pem")

    def run(*arguments):
        code = main([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    assert run("push", tmp_path / "m.safetensors", "--step", 0, "--signing-key", tmp_path / "key.pem")[0] == 0
    return run


COMMANDS = {
    "push": ("push", "m.safetensors", "--step", "1"),
    "tag": ("tag", "best", "--version", "0"),
    "gc": ("gc", "--delete"),
    "import": ("import", "delta"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_into_a_signed_run_without_a_key(pulse, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    log = {file.name: file.read_bytes() for file in (tmp_path / "r/math/log").glob("*.json")}
    if command == "import":  # what another run has become
        for step in range(2):
            save_file(weights(step), tmp_path / "m.safetensors")
            pulse("push", "m.safetensors", "--step", step, "--run", "other")
        pulse("export", "--run", "other", "delta")
    code, answer = pulse(*COMMANDS[command])
    assert (code, answer["error"]) == (10, "Untrusted")
    assert f"is signed by {TRAINER.public}, and this writer has no key" in answer["message"]
    assert {file.name: file.read_bytes() for file in (tmp_path / "r/math/log").glob("*.json")} == log


def test_a_run_that_was_locked_is_opened_again_by_two_commands(pulse, tmp_path, capsys):
    store = PrefixStore(open_store(str(tmp_path / "r")), "math")
    forger(store, None).tag("best", 0)
    trust = ("--trust", TRAINER.public)
    assert pulse("log", *trust)[0] == 10
    code, (found,) = pulse("countersign", *trust)
    assert (code, found["record"]["kind"], found["record"]["name"]) == (0, "tag", "best")
    assert main(["countersign", *trust]) == 0
    shown = capsys.readouterr().out
    assert "lets tag best stand for version 0" in shown
    assert f"pulse countersign {found['name']}" in shown
    code, answer = pulse("countersign", found["name"], *trust)
    assert (code, answer["error"]) == (10, "Untrusted")  # by whom?
    code, (done,) = pulse("countersign", found["name"], *trust, "--signing-key", tmp_path / "key.pem")
    assert (code, done["name"]) == (0, found["name"])
    assert pulse("log", *trust)[0] == 0
    assert pulse("countersign", *trust) == (0, [])
    code, said = pulse("inspect", keys.countersignature_key(found["record"]["seq"]))
    assert (code, said["type"], said["signed_by"]) == (0, "countersignature", TRAINER.public)
    assert open_sealed(store.get(keys.countersignature_key(found["record"]["seq"]))).signature is not None
    assert pulse("countersign")[0] == 2
    assert key(9).public not in shown
