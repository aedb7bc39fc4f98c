"""A process that dies in the middle of a pull: the next one goes on with what was verified, and ends bit for bit."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.push import keyframe as push_keyframe
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore
from pulse_registry.testing import CountingStore
from tests.scenarios.faults import killed_pull
from tests.support.registries import Model, bits, quick

ROOT = Path(__file__).resolve().parents[3]
PIECE = 64 << 10
PIECES = 13


@pytest.fixture(scope="module")
def model() -> Model:
    rng = np.random.default_rng(5)
    return {"w": rng.integers(0, 2**16, (12 * PIECE + 100) // 2, dtype=np.uint16)}


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(push_keyframe, "KeyframeForm", functools.partial(KeyframeForm, piece_bytes=PIECE))
        with quick(FileStore(root)) as registry:
            registry.push(0, model)
    return root


def die(run: Path, spool: Path, nth: int) -> None:
    command = [sys.executable, "-m", killed_pull.__name__, str(run), str(spool), str(nth)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL


def pieces_read(store: CountingStore) -> int:
    return sum(key.endswith(".safetensors") for verb, key in store.ledger if verb == "get")


@pytest.mark.slow
@pytest.mark.parametrize("nth", [2, PIECES])
def test_a_pull_after_one_that_was_killed_fetches_no_piece_again_that_was_verified(
    run: Path, model: Model, tmp_path: Path, nth: int
) -> None:
    die(run, tmp_path, nth)
    (part,) = tmp_path.iterdir()
    on_disk, whole = part.read_bytes(), next(run.rglob("model-*.safetensors")).read_bytes()
    there = sum(on_disk[at : at + PIECE] == whole[at : at + PIECE] for at in range(0, len(whole), PIECE))
    store = CountingStore(FileStore(run))
    with Registry(
        store, "run", Options(pull=PullOptions(spool=tmp_path), compute=ComputeOptions(backend="reference"))
    ) as registry:
        tensors = registry.load()
    assert bits(tensors) == bits(model)
    assert pieces_read(store) == PIECES - there
    assert there >= nth - 8, "only what was on its way, at most one piece a thread, is lost"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_checkpoint_folder_is_made_of_what_a_killed_pull_had_fetched_and_holds_nothing_else_then(
    run: Path, model: Model, tmp_path: Path
) -> None:
    die(run, tmp_path, PIECES)
    (tmp_path / f".pulse-{'e' * 64}.part").write_bytes(b"of a keyframe that nobody wants any more")
    store = CountingStore(FileStore(run))
    with Registry(
        store, "run", Options(pull=PullOptions(spool=tmp_path), compute=ComputeOptions(backend="reference"))
    ) as registry:
        assert pull_checkpoint(registry, into=tmp_path).verified
    assert pieces_read(store) < PIECES
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    (shard,) = tmp_path.glob("model-*.safetensors")
    assert shard.read_bytes().endswith(model["w"].tobytes())
