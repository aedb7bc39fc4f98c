"""vLLM's worker extension over a model of its own: what each call answers, and on which rank it raises.

vLLM is not installed here: of it there is a module that tells the group of ranks. Real engines are in tests/engines.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import pulse_registry
from pulse_registry import InvalidArgument, NotFound
from pulse_registry.integrations.vllm import WorkerExtension, register
from pulse_registry.integrations.vllm.opening import answer


class Whole(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.bfloat16), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.fused.data.narrow(0, 2 * (name == "up"), 2).copy_(weight)


class Worker(WorkerExtension):
    """What vLLM makes of its worker."""

    def __init__(self) -> None:
        self.model = Whole()

    def get_model(self) -> torch.nn.Module:
        return self.model


def ranks(monkeypatch: pytest.MonkeyPatch, rank: int, size: int, stages: int = 1, world: int | None = None) -> None:
    """Make this process that rank of an engine."""
    told = ModuleType("vllm.distributed.parallel_state")
    groups = {
        "get_tp_group": size,
        "get_pp_group": stages,
        "get_world_group": size * stages if world is None else world,
    }
    for name, held in groups.items():
        group = SimpleNamespace(rank_in_group=rank, world_size=held, cpu_group=None)
        setattr(told, name, lambda group=group: group)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", ModuleType("vllm.distributed"))
    monkeypatch.setitem(sys.modules, told.__name__, told)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worker]:
    """A worker of one rank that has loaded version 0 of a run of versions 0 to 2 in `tmp_path`."""
    ranks(monkeypatch, 0, 1)
    weights = {name: torch.ones(2, 4).bfloat16() for name in ("gate", "up")}
    worker = Worker()
    worker.model.load_weights(weights.items())
    with pulse_registry.open(str(tmp_path), run="run") as registry:
        for step in range(3):
            weights["up"][0, step] = -float(step)
            registry.push(step, weights)
    worker.model.fused.data[2, 0] = -0.0
    yield worker
    held: Any = getattr(worker, "pulse_weights", None)
    if held is not None:
        held.close()


def test_it_opens_stages_applies_and_takes_back(worker: Worker, tmp_path: Path) -> None:
    assert worker.pulse_open(str(tmp_path), "run", 0) == 0
    assert worker.pulse_ready() is False
    assert worker.pulse_stage(2) is None
    applied = worker.pulse_apply(2)
    assert applied is not None
    assert json.loads(json.dumps(applied)) == applied
    assert (applied["version"], applied["changed"]) == (2, 2)
    assert applied["phases"].keys() >= {"fetch", "apply"}
    assert worker.model.fused[2].tolist() == [-0.0, -1.0, -2.0, 1.0]
    assert worker.pulse_version() == worker.pulse_verify() == 2
    assert worker.pulse_undo() == worker.pulse_version() == 0
    assert worker.model.fused[2].tolist() == [-0.0, 1.0, 1.0, 1.0]


def test_a_version_that_can_not_be_staged_is_told_before_anybody_pauses(worker: Worker, tmp_path: Path) -> None:
    worker.pulse_open(str(tmp_path), "run", 0)
    worker.pulse_stage(99)

    def ask() -> None:
        while not worker.pulse_ready():
            pass

    for _ in range(2):  # it is told again
        with pytest.raises(NotFound, match="no version 99"):
            ask()
    worker.pulse_stage(2)
    ask()
    applied = worker.pulse_apply(2)
    assert applied is not None
    assert applied["version"] == worker.pulse_verify() == 2


def test_opened_again_it_has_closed_what_was_open(worker: Worker, tmp_path: Path) -> None:
    worker.pulse_open(str(tmp_path), "run", 0)
    held: Any = worker
    first = held.pulse_weights
    assert worker.pulse_open(str(tmp_path), "run", 0) == 0
    with pytest.raises(InvalidArgument, match="closed"):
        first.stage(1)


@pytest.mark.parametrize("call", ["pulse_stage", "pulse_ready", "pulse_apply", "pulse_undo", "pulse_version"])
def test_a_call_before_a_run_is_open_says_what_comes_first(worker: Worker, call: str) -> None:
    with pytest.raises(InvalidArgument, match="call init_weight_transfer_engine or pulse_open first"):
        getattr(worker, call)()


def test_a_run_that_is_not_there_is_refused(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="other"):
        worker.pulse_open(str(tmp_path), "other", 0)
    with pytest.raises(InvalidArgument, match="no run is open"):
        worker.pulse_version()


def test_a_model_that_vllm_has_packed_on_a_cpu_is_refused_with_what_to_do(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.model.fused.data[0] *= 2
    with pytest.raises(pulse_registry.BaseMismatch, match=r"'gate' differ.* start it with PULSE_VLLM_CPU=unpacked"):
        worker.pulse_open(str(tmp_path), "run", 0)
    monkeypatch.setenv("PULSE_VLLM_CPU", "unpacked")
    with pytest.raises(pulse_registry.BaseMismatch) as caught:
        worker.pulse_open(str(tmp_path), "run", 0)
    assert "PULSE_VLLM_CPU" not in str(caught.value)


@pytest.mark.parametrize(("rank", "size", "stages"), [(0, 2, 1), (1, 2, 1), (2, 2, 2), (3, 2, 2)])
def test_an_error_of_all_ranks_is_raised_on_the_last_alone(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, stages: int
) -> None:
    def fail() -> int:
        raise NotFound("no version 9")

    ranks(monkeypatch, rank, size, stages)
    assert answer(lambda: 7) == 7
    if rank == size * stages - 1:
        with pytest.raises(NotFound, match="no version 9"):
            answer(fail)
    else:
        assert answer(fail) is None


def test_pipeline_stages_beside_data_parallel_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, 0, 2, 2, world=8)
    with pytest.raises(InvalidArgument, match="pipeline stages with data parallel ranks"):
        answer(lambda: 7)


@pytest.mark.slow
def test_what_vllm_imports_before_its_workers_are_ready_loads_no_numba() -> None:
    """vLLM's CPU worker binds torch's threads anew when it begins, and fails where numba's library is loaded before."""
    code = "import sys, pulse_registry.integrations.vllm; sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_entry_point_names_what_registers_the_backend() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["pulse"].partition(":")
    assert getattr(importlib.import_module(module), name) is register
