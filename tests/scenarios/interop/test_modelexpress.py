"""ModelExpress reads what we write, and we read what it writes.

In the suite by what its own functions wrote once (``tests/vectors/modelexpress``: states of every dtype, and the delta
between them); in the sweep with the package itself, in an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from safetensors import safe_open

from pulse_registry.interop import export_chain, export_delta, export_full, import_folder
from pulse_registry.push.checkpoint_source import read_checkpoint
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_registry.weights.model import read_model
from tests.scenarios.interop import modelexpress_peer
from tests.support.checkpoints import bits, held, odd_model, save, step_of
from tests.support.records import DictStore
from tests.support.registries import quick, restored
from tests.support.waiting import HANG_S
from tests.unit.interop.reference import INDEX, state_of

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "modelexpress"
PACKAGE = "modelexpress==0.7.0"
NEEDED = ("numpy", "safetensors", "zstandard")
"""Of all that the package requires: its functions for the format need no more."""


def test_what_modelexpress_wrote_becomes_the_versions_that_it_had(tmp_path: Path) -> None:
    for name in ("weight_v000000", "weight_v000001"):
        shutil.copytree(VECTORS / name, tmp_path / name)
    views, store = read_model(read_checkpoint(VECTORS / "target")), DictStore()
    target = {name: view.cells.view(numpy_dtype(view.dtype)) for name, view in views.items()}
    with quick(store) as registry:
        assert [one.name for one in import_folder(registry, tmp_path)] == ["000000", "000001"]
    assert restored(store, {name: array.copy() for name, array in target.items()}) == state_of(target)


def test_what_we_write_of_the_same_states_says_the_same(tmp_path: Path) -> None:
    with quick(DictStore()) as registry:
        for step, name in enumerate(("weight_v000000", "target")):
            registry.push(step, read_checkpoint(VECTORS / name))
        export_delta(registry, tmp_path / "ours", 0, 1)
    ours, theirs = tmp_path / "ours", VECTORS / "weight_v000001"
    mine, other = (json.loads((folder / INDEX).read_bytes()) for folder in (ours, theirs))
    assert mine["metadata"] == other["metadata"]
    assert mine["weight_map"].keys() == other["weight_map"].keys()
    decompress = zstandard.ZstdDecompressor().decompress
    with (
        safe_open(next(ours.glob("*.safetensors")), framework="np") as a,
        safe_open(next(theirs.glob("*.safetensors")), framework="np") as b,
    ):
        assert a.metadata() == b.metadata()
        for name in mine["weight_map"]:
            assert decompress(a.get_tensor(name).tobytes()) == decompress(b.get_tensor(name).tobytes())


Peer = Callable[..., None]


@pytest.fixture(scope="module")
def peer() -> Peer:
    """Calls ModelExpress; its environment is made once and kept in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = Path(cache) / "pulse-registry" / "peers" / PACKAGE.replace("==", "-")
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        venv.create(home, clear=True, with_pip=True)
        for arguments in (["--no-deps", PACKAGE], list(NEEDED)):
            command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                pytest.skip(f"pip could not install {arguments[-1]}: {done.stderr.strip().splitlines()[-1:]}")
        ready.touch()

    def call(*arguments: object) -> None:
        command = [str(python), "-I", str(modelexpress_peer.__file__), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, done.stderr

    return call


@pytest.mark.sweep
def test_modelexpress_follows_a_chain_of_ours(peer: Peer, tmp_path: Path) -> None:
    states = [odd_model()]
    with quick(DictStore()) as registry:
        for step in range(1, 6):
            registry.push(step, states[-1])
            states.append(step_of(states[-1], step, share=(0.0, 0.001, 0.1, 1.0)[step % 4]))
        made = list(export_chain(registry, tmp_path / "chain"))
        export_delta(registry, tmp_path / "far", 0, 4)
        export_delta(registry, tmp_path / "back", 4, 0)
    local = tmp_path / "local"
    shutil.copytree(made[0].folder, local)
    for number, one in enumerate(made[1:], 1):
        peer("read", one.folder, local, f"{number:06d}", f"{number - 1:06d}")
        assert held(local) == bits(states[number])
    peer("read", tmp_path / "back", local, "000000", "000004")
    assert held(local) == bits(states[0])
    peer("read", tmp_path / "far", local, "000004", "000000")
    assert held(local) == bits(states[4])


@pytest.mark.sweep
def test_modelexpress_takes_a_whole_checkpoint_of_ours_and_checks_it(peer: Peer, tmp_path: Path) -> None:
    with quick(DictStore()) as registry:
        registry.push(0, odd_model())
        export_full(registry, tmp_path / "ours")
    peer("read-full", tmp_path / "ours", tmp_path / "theirs")
    shutil.copy(tmp_path / "ours" / INDEX, tmp_path / "theirs" / INDEX)
    assert held(tmp_path / "theirs") == bits(odd_model())


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_we_follow_a_chain_of_modelexpress(peer: Peer, share: float, tmp_path: Path) -> None:
    states = [odd_model()]
    for seed in (1, 2):
        states.append(step_of(states[-1], seed, share=share))
    for number, state in enumerate(states):
        save(tmp_path / f"state-{number}" / "model.safetensors", state)
    shutil.copytree(tmp_path / "state-0", tmp_path / "chain" / "weight_v000000")
    for number in (1, 2):
        before, after, out = tmp_path / f"state-{number - 1}", tmp_path / f"state-{number}", f"weight_v{number:06d}"
        peer("write", before, after, tmp_path / "chain" / out, f"{number:06d}", f"{number - 1:06d}")
    store = DictStore()
    with quick(store) as registry:
        assert len(list(import_folder(registry, tmp_path / "chain"))) == 3
    for number, state in enumerate(states):
        assert restored(store, states[0], number) == state_of(state)
