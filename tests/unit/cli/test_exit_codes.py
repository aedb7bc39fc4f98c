"""What goes wrong for a new user comes as a typed error with the documented exit code."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pulse_registry
import pulse_registry.cli.session
from pulse_registry import errors
from pulse_registry.cli import main
from pulse_registry.cli.exits import EXIT_CODES, MEANINGS, UNSAFE, exit_code
from pulse_registry.format.safetensors import header_bytes
from pulse_registry.store import Body, FileStore, Store, WrapperStore
from tests.support.checkpoints import bf16_model, bits, held, save, step_of
from tests.support.command_line import Pulse, Run
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]


def tree(kind: type[errors.PulseError]) -> Iterator[type[errors.PulseError]]:
    for below in kind.__subclasses__():
        yield below
        yield from tree(below)


def test_every_error_class_has_its_exit_code() -> None:
    kinds = {kind for kind in tree(errors.PulseError) if kind.__module__ == errors.__name__}
    assert kinds == EXIT_CODES.keys()
    assert {exit_code(kind("x")) for kind in kinds} | {0, 1, UNSAFE} == MEANINGS.keys()
    assert exit_code(errors.PulseError("x")) == exit_code(RuntimeError("x")) == 1


def test_the_documentation_has_the_same_exit_codes() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    said = {
        name: int(code)
        for code, names in re.findall(r"^\| (\d+) \| (.*?) \|", text, re.M)
        for name in names.split(", ")
    }
    documented = {name.strip("`"): code for name, code in said.items()}
    assert documented.items() >= {kind.__name__: code for kind, code in EXIT_CODES.items()}.items()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["log", "--root", "ftp://host/x", "--run", "math"], 2, "no store for the scheme"),
        (["log", "--root", "", "--run", "math"], 2, "empty"),
        (["log", "--root", "nowhere", "--run", "math"], 3, "there is no run 'math' in nowhere"),
        (["log", "--run", "other"], 3, "there is no run 'other'"),
        (["log", "--run", "Bad Name"], 2, "is no run name"),
        (["verify", "--version", "99"], 3, "no version 99"),
        (["verify", "--version", "-1"], 2, "is no version"),
        (["route", "--from", "99"], 3, "no version 99"),
        (["pull", "--out", "out", "--version", "99"], 3, "no version 99"),
        (["pull", "--out", "out", "--version", "new est"], 2, "is no version"),
        (["pull", "--out", "out", "--version", "newest"], 3, "no version that is called 'newest'"),
        (["gc", "--keep-for", "7"], 2, "is no time"),
        (["gc", "--keep-last", "0"], 2, "keep_last is 0"),
        (["tag", "--remove"], 2, "give the tag's name"),
        (["tag", "best one"], 2, "name"),
        (["log", "--root", "127.0.0.1:28081"], 2, "http://127.0.0.1:28081 for a service"),
        (["push", "--step", "1", "nofile.safetensors"], 2, "nofile.safetensors can't be read"),
        (["push", "--step", "1", "--coder", "zip", "x"], 2, "zip"),
        (["inspect", "log/000000000099.json"], 3, "log/000000000099.json"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_a_wrong_call_is_told_so(
    pulse: Pulse,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = pulse(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.err
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "out").exists()


def test_a_float16_file_is_refused_by_a_bf16_run(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    model = {name: tensor.astype(np.float16) for name, tensor in run.states[-1].items()}
    answer = pulse("push", "--step", 9, save(tmp_path / "half.safetensors", model))
    assert answer.code == 5
    assert "'layer.weight' is F16" in answer.err
    assert len(pulse("log", "--json").json) == 5


@pytest.mark.parametrize("cut", [4, 60, -1])
def test_a_cut_file_is_refused(pulse: Pulse, run: Run, tmp_path: Path, cut: int) -> None:
    file = save(tmp_path / "cut.safetensors", bf16_model())
    file.write_bytes(file.read_bytes()[:cut])
    answer = pulse("push", "--step", 9, file)
    assert answer.code == 5
    assert "cut.safetensors" in answer.err


def test_a_tensor_of_a_dtype_that_cannot_be_stored_is_named(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    file = save(tmp_path / "m.safetensors", {"w": np.zeros(4, np.complex64)})
    answer = pulse("push", "--step", 9, file)
    assert answer.code == 5
    assert "tensor 'w' has dtype C64" in answer.err


def test_four_bit_floats_that_do_not_fill_bytes_are_named(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    header = header_bytes({"w": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}})
    (tmp_path / "m.safetensors").write_bytes(header + bytes(3))
    answer = pulse("push", "--step", 9, tmp_path / "m.safetensors")
    assert answer.code == 5
    assert "tensor 'w': of F4 two elements are a cell, and the last dimension of [2, 3] is not even" in answer.err


@pytest.mark.parametrize("damage", ["flip", "cut"])
@pytest.mark.parametrize(
    "pattern", ["log/000000000004.json", "layouts/*", "objects/patch/*-000000000002-*", "objects/keyframe/*/model-*"]
)
def test_a_damaged_object_is_refused_and_the_folder_stays(
    pulse: Pulse, run: Run, tmp_path: Path, pattern: str, damage: str
) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out, "--version", 1).code == 0
    path = next(run.folder.glob(pattern))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) * 2 // 3] ^= 16
    path.write_bytes(data if damage == "flip" else data[:-5])
    assert pulse("verify", "--json").json["error"] == "CorruptObject"
    assert pulse("pull", "--out", tmp_path / "new").code == 6
    assert (
        [name.name for name in (tmp_path / "new").iterdir() if name.suffix == ".safetensors"] == []
        if (tmp_path / "new").exists()
        else True
    )
    # A keyframe is not on the way of a folder that holds a version already.
    updated = pulse("pull", "--out", out)
    assert updated.code == (0 if "keyframe" in pattern else 6), updated
    assert held(out) == bits(run.states[4 if "keyframe" in pattern else 1])
    if "keyframe" not in pattern or damage == "cut":
        assert pulse("inspect", path).code == 6 or "patch" in pattern


class RivalStore(WrapperStore):
    """A store in which another trainer pushes while our patch is on its way."""

    def __init__(self, store: Store, root: Path, run: str) -> None:
        super().__init__(store)
        self._rival = (str(root), run)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        super().put(key, data, if_absent=if_absent)
        if "/objects/" in key and self._rival[0]:
            (root, run), self._rival = self._rival, ("", "")
            with pulse_registry.open(root, run=run) as registry:
                registry.push(7, bf16_model(9))


def test_the_doctor_examines_one_root_at_a_time(pulse: Pulse, tmp_path: Path) -> None:
    answer = pulse("doctor", "--root", f"{tmp_path / 'a'},{tmp_path / 'b'}")
    assert answer.code == 2
    assert "examine one root at a time" in answer.err


def test_the_slower_of_two_trainers_is_fenced(
    pulse: Pulse, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = RivalStore(FileStore(run.root), run.root, run.name)
    monkeypatch.setattr(pulse_registry.cli.session, "connect_roots", lambda *_, **__: rival)
    answer = pulse("push", "--step", 50, "--json", save(tmp_path / "m.safetensors", step_of(run.states[-1], 8)))
    assert (answer.code, answer.json["error"]) == (4, "Fenced")
    assert [entry["step"] for entry in pulse("log", "--json").json] == [0, 10, 20, 30, 40, 7]


FULL = """
import resource, sys
from pulse_registry.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_file_system_that_takes_no_more_is_a_typed_error(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    model = bf16_model(cells=1_000_000)
    file, out = save(tmp_path / "large.safetensors", model), tmp_path / "out"
    command = [sys.executable, "-c", FULL]
    pushed = subprocess.run(
        [*command, "push", "--step", "9", file], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert pushed.returncode == 7, pushed.stderr
    assert len(pulse("log", "--json").json) == 5
    assert pulse("push", "--step", 9, file).code == 0
    pulled = subprocess.run(
        [*command, "pull", "--out", out], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert pulled.returncode == 7, pulled.stderr
    assert {path.name for path in out.iterdir()} <= {".pulse.lock"}
    assert main(["pull", "--out", str(out)]) == 0
    assert held(out) == bits(model)


def test_a_misspelt_variable_is_told_beside_what_the_command_says(
    pulse: Pulse, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_RUNN", "math")
    monkeypatch.delenv("PULSE_RUN")
    answer = pulse("log", "--json")
    assert (answer.code, answer.json["error"]) == (2, "UsageError")
    assert answer.err == "pulse: PULSE_RUNN in the environment is read by nothing: is it PULSE_RUN?\n"


def test_an_unexpected_error_is_one_line_too(pulse: Pulse, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(url: str, token: str | None, **options: object) -> Store:
        raise OSError(errno.EIO, "a broken thing")

    monkeypatch.setattr(pulse_registry.cli.session, "connect_roots", broken)
    answer = pulse("log")
    assert answer.code == 1
    assert answer.err == "pulse: unexpected OSError: [Errno 5] a broken thing\n"
