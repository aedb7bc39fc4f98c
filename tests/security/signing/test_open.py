"""Keys and pins where users meet them: `open`, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import pulse_registry
from pulse_registry.cli import main
from pulse_registry.errors import Distrust, InvalidArgument, Untrusted
from pulse_registry.events import EventKind
from pulse_registry.format import keys
from pulse_schemas import open_sealed
from tests.security.signing.actors import STRANGER, TRAINER, key


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("PULSE_STATE_DIR", str(tmp_path / "state"))
    for name in ("PULSE_TRUST", "PULSE_SIGNING_KEY"):
        monkeypatch.delenv(name, raising=False)


def opened(root, *, signing_key=None, **options):
    return pulse_registry.open(
        str(root),
        run="math",
        push=pulse_registry.PushOptions(dtype="keep", signing_key=signing_key),
        compute=pulse_registry.ComputeOptions(backend="reference"),
        **options,
    )


def weights(seed=0):
    return {"w": np.arange(seed, seed + 64, dtype=np.float32)}


def filled(root, versions=2, **options):
    with opened(root, **options) as trainer:
        for number in range(versions):
            trainer.push(number, weights(number))


def test_a_worker_pulls_what_the_trainers_key_signed(tmp_path):
    filled(tmp_path / "r", signing_key=TRAINER, trust=[TRAINER.public])
    with opened(tmp_path / "r", trust=[TRAINER.public]) as worker:
        assert np.array_equal(worker.load()["w"], weights(1)["w"])
    assert list((tmp_path / "state").iterdir())


def test_a_key_may_be_anything_that_signs(tmp_path):
    class Elsewhere:
        """A key in another process, or on a card."""

        def sign(self, body):
            return TRAINER.sign(body)

    filled(tmp_path / "r", signing_key=Elsewhere())
    with opened(tmp_path / "r", trust=[TRAINER.public]) as worker:
        assert len(worker.versions()) == 2


def test_a_worker_changes_nothing_when_it_refuses(tmp_path):
    filled(tmp_path / "r", signing_key=TRAINER)
    with opened(tmp_path / "r", trust=[STRANGER.public]) as worker:
        mine = {"w": np.full(64, 7, np.float32)}
        for call in (lambda: worker.pull(into=mine), worker.versions, worker.verify, lambda: worker.push(9, mine)):
            with pytest.raises(Untrusted) as caught:
                call()
            assert caught.value.reason is Distrust.WRONG_KEY
        assert (mine["w"] == 7).all()
    with pytest.raises(Untrusted):
        opened(tmp_path / "r", trust=[STRANGER.public], create=False)


def test_the_environment_makes_all_sign_and_all_believe_no_other(tmp_path, monkeypatch):
    TRAINER.save(tmp_path / "key.pem")
    monkeypatch.setenv("PULSE_SIGNING_KEY", str(tmp_path / "key.pem"))
    monkeypatch.setenv("PULSE_TRUST", TRAINER.public)
    filled(tmp_path / "r")
    records = sorted((tmp_path / "r" / "math" / "log").glob("*.json"))
    assert len(records) >= 3
    assert all(open_sealed(file.read_bytes()).signature is not None for file in records)
    monkeypatch.setenv("PULSE_TRUST", STRANGER.public)
    with opened(tmp_path / "r") as worker, pytest.raises(Untrusted):
        worker.load()


def test_a_rollback_is_refused_by_the_next_process_of_a_worker(tmp_path):
    filled(tmp_path / "r", 3, signing_key=TRAINER)
    with opened(tmp_path / "r", trust=[TRAINER.public]) as worker:
        worker.load()
    for seq in (3, 4, 5):
        (tmp_path / "r" / "math" / keys.record_key(seq)).unlink()
    with opened(tmp_path / "r", trust=[TRAINER.public]) as worker, pytest.raises(Untrusted, match="rolled back"):
        worker.load()


def test_a_run_that_stands_still_is_told_and_pulled(tmp_path):
    filled(tmp_path / "r", signing_key=TRAINER)
    told = []
    trust = pulse_registry.Trust([TRAINER.public], max_age_s=1e-9, state_dir=tmp_path / "other")
    with opened(tmp_path / "r", trust=trust, on_event=told.append) as worker:
        worker.load()
        worker.load()
    assert [event.kind for event in told] == [EventKind.FROZEN]


def test_a_key_that_is_none_is_refused_before_anything_is_opened(tmp_path):
    with pytest.raises(InvalidArgument, match="can't be read"):
        opened(tmp_path / "r", signing_key=tmp_path / "nowhere.pem")
    with pytest.raises(InvalidArgument, match="is no public key"):
        opened(tmp_path / "r", trust=["abc"])
    assert not (tmp_path / "r").exists()


# -- the command line --------------------------------------------------------------------------------------------------


def pulse(capsys, *arguments):
    """Run a command; return its exit code and the JSON document that it printed."""
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_key_is_made_once_and_shown_as_readers_pin_it(tmp_path, capsys):
    file = tmp_path / "k.pem"
    code, made = pulse(capsys, "key", "new", "--out", file)
    assert (code, made["file"]) == (0, str(file))
    assert pulse(capsys, "key", "show", file) == (0, made)
    code, refusal = pulse(capsys, "key", "new", "--out", file)
    assert (code, refusal["error"]) == (2, "InvalidArgument")
    assert main(["key", "show", str(file)]) == 0
    assert capsys.readouterr().out == made["public"] + "\n"


@pytest.fixture
def pushed(tmp_path, capsys) -> Path:
    """A registry with a run of one version, pushed and signed by the command line."""
    save_file(weights(), tmp_path / "m.safetensors")
    TRAINER.save(tmp_path / "key.pem")
    root = tmp_path / "r"
    code, _ = pulse(
        capsys, "push", tmp_path / "m.safetensors", "--step", 0, "--root", root, "--run", "math",
        "--signing-key", tmp_path / "key.pem",
    )  # fmt: skip
    assert code == 0
    return root


READING = {
    "pull": lambda folder: ["pull", "--out", folder / "out"],
    "log": lambda _: ["log"],
    "verify": lambda _: ["verify"],
    "route": lambda _: ["route"],
}


@pytest.mark.parametrize("command", READING)
def test_a_command_believes_the_keys_that_it_is_given(pushed, tmp_path, capsys, command):
    at = [*READING[command](tmp_path), "--root", pushed, "--run", "math", "--trust"]
    code, answer = pulse(capsys, *at, STRANGER.public)
    assert (code, answer["error"]) == (10, "Untrusted")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.safetensors"))
    assert pulse(capsys, *at, key(9).public, "--trust", TRAINER.public)[0] == 0


def test_a_push_that_its_own_readers_would_refuse_is_refused(pushed, tmp_path, capsys):
    log = sorted((pushed / "math" / "log").iterdir())
    code, answer = pulse(
        capsys, "push", tmp_path / "m.safetensors", "--step", 1, "--root", pushed, "--run", "math",
        "--trust", TRAINER.public,
    )  # fmt: skip
    assert (code, answer["error"]) == (10, "Untrusted")
    assert sorted((pushed / "math" / "log").iterdir()) == log


def test_a_checkpoint_with_a_nan_is_neither_pushed_nor_pulled_where_that_is_refused(tmp_path, capsys):
    bad = weights() | {"b": np.array([1, np.nan], np.float32)}
    save_file(bad, tmp_path / "bad.safetensors")
    save_file(weights(), tmp_path / "good.safetensors")
    at = ["--root", tmp_path / "r", "--run", "math"]
    out = ["pull", "--out", tmp_path / "out", *at, "--nonfinite", "refuse"]
    code, answer = pulse(capsys, "push", tmp_path / "bad.safetensors", "--step", 0, *at, "--nonfinite", "refuse")
    assert (code, answer["error"]) == (5, "InvalidModel")
    assert pulse(capsys, "push", tmp_path / "good.safetensors", "--step", 0, *at)[0] == 0
    assert pulse(capsys, *out)[0] == 0
    assert pulse(capsys, "push", tmp_path / "bad.safetensors", "--step", 1, *at)[0] == 0
    code, answer = pulse(capsys, *out)
    assert (code, answer["error"]) == (5, "InvalidModel")
    assert "tensor 'b' has NaN or an infinity at flat index 1" in answer["message"]
    held = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert held["metadata"]["pulse"]["version"] == 0


def test_inspect_says_who_a_record_says_that_it_is_signed_by(pushed, capsys):
    at = ["--root", pushed, "--run", "math"]
    code, record = pulse(capsys, "inspect", keys.record_key(0), *at)
    assert (code, record["type"], record["signed_by"]) == (0, "record", TRAINER.public)
    code, head = pulse(capsys, "inspect", keys.HEAD, *at)
    assert (code, head["type"], "signed_by" in head) == (0, "head", False)
