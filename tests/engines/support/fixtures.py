"""A run of a small Llama, engines that follow it, and fresh ones that were loaded from a version's checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from pulse_registry import PushOptions
from tests.engines.support.engine import Answer, Engine
from tests.engines.support.models import LLAMA, Weights, changed, random_weights, with_nan, write_files, write_model
from tests.engines.support.probe import prints

PULSE = {"weight_transfer_config": {"backend": "pulse"}, "worker_extension_cls": "tests.engines.support.probe.Probe"}
UNPACKED = {"PULSE_VLLM_CPU": "unpacked"}
# The last one is longer than a block of the cache of vLLM's CPU build, 128 tokens, so that its prefix is kept.
PROMPTS = [[1, 5, 9, 33, 100], [1, 7, 300], [1, *range(20, 190)]]
Start = Callable[..., Engine]


@dataclass
class History:
    """A run in a folder.

    Attributes:
        url: the registry's root.
        run: the run's name.
        states: the weights of each version.
        config: the model's.
        folder: what else there is of it.
    """

    url: Path
    run: str
    folder: Path
    states: list[Weights] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=lambda: LLAMA)

    def push(self, weights: Weights, **options: Any) -> None:
        with pulse_registry.open(
            str(self.url), run=self.run, push=PushOptions(**({"dtype": "keep", "coder": "gap"} | options))
        ) as registry:
            registry.push(len(self.states), weights)
        self.states.append(weights)

    def checkpoint(self, version: int) -> Path:
        """Return a folder with a version's checkpoint, as `pulse pull` leaves it, and the model's small files."""
        folder = write_files(self.config, self.folder / f"checkpoint-{version}")
        command = [str(Path(sys.executable).with_name("pulse")), "pull", "--root", str(self.url), "--run", self.run]
        subprocess.run([*command, "--version", str(version), "--out", str(folder)], check=True)
        return folder


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is remembered of signed runs out of the user's folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PULSE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Versions 0 to 5: 1 and 2 change two cells of a hundred, 3 has NaNs, 4 replaces all cells, 5 changes a few."""
    folder = tmp_path_factory.mktemp("llama")
    made = History(folder / "registry", "policy", folder)
    made.push(random_weights(LLAMA))
    made.push(changed(made.states[-1], 1, 0.02))
    made.push(changed(made.states[-1], 2, 0.02))
    made.push(with_nan(made.states[-1]))
    made.push(random_weights(LLAMA, seed=4))
    made.push(changed(made.states[-1], 5, 0.02))
    write_model(LLAMA, made.states[0], folder / "model")
    return made


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start engines, which end with the module."""
    running: list[Engine] = []

    def begin(model: Path, environment: dict[str, str] | None = None, **settings: Any) -> Engine:
        engine = Engine(model, tmp_path_factory.mktemp("engine") / "log", environment, **settings)
        running.append(engine)
        return engine

    yield begin
    for engine in running:
        engine.close()


def fresh_answers(
    start: Start, history: History, version: int, *, prompts: Sequence[Sequence[int]] = PROMPTS, **settings: Any
) -> list[Answer]:
    """Return what a new engine says that was loaded from a version's checkpoint; it knows no run.

    It reads its live weights, too: linear layers that are packed round the last bit of some sums in another way.
    """
    engine = start(history.checkpoint(version), UNPACKED, **settings)
    try:
        return engine.generate(prompts)
    finally:
        engine.close()


def cells_of(parameters: Weights) -> dict[str, str]:
    """Return the hashes that `Probe.probe_cells` would give of an engine that holds these parameters."""
    return prints(parameters)
