"""Where a model is worked on: by name, and by where its tensors are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pulse_kernels import CELL_TYPES, CellType
from pulse_registry.errors import InvalidArgument
from pulse_registry.events import Event, EventKind
from pulse_registry.gpu import trial
from pulse_registry.gpu import warm_up as warm_up_module
from pulse_registry.gpu.trial import look_at_cache
from pulse_registry.gpu.warm_up import warm_up
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.placement import OLDEST_TRITON, placement
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.store import MemoryStore
from pulse_registry.weights.model import View, read_model

FLOOR = re.compile(r"^triton>=(\d+)\.(\d+)", re.MULTILINE)


def views(*devices: str | None) -> dict[str, Any]:
    """Return as much of views of tensors on devices as a placement looks at; None is a NumPy array."""
    tensors = [None if name is None else SimpleNamespace(device=torch.device(name)) for name in devices]
    return {str(number): SimpleNamespace(tensor=tensor) for number, tensor in enumerate(tensors)}


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Return what says why the kernels do not run; they do, at first."""

    def say(why: str | None) -> None:
        monkeypatch.setattr(trial, "fault_on", lambda device: why)

    say(None)
    return say


@pytest.mark.usefixtures("fault")
def test_a_model_on_one_gpu_is_worked_on_there() -> None:
    for name in ("auto", "gpu"):
        assert placement(name)(views("cuda:1", "cuda:1")) == torch.device("cuda:1")  # type: ignore[arg-type]


def test_a_model_on_a_gpu_is_worked_on_in_host_memory_where_that_is_asked_for() -> None:
    assert placement("cpu")(views("cuda:0")) is None


@pytest.mark.parametrize("devices", [("cpu",), (None,), ("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cuda:0", None)])
def test_any_other_model_is_worked_on_in_host_memory_and_refused_where_a_gpu_was_asked_for(devices: Any) -> None:
    assert placement("auto")(views(*devices)) is None
    with pytest.raises(InvalidArgument, match="device='gpu'"):
        placement("gpu")(views(*devices))


def test_without_triton_a_gpu_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert placement("auto")(views("cuda:0")) is None
    with pytest.raises(InvalidArgument, match=r"pulse-registry\[gpu\]"):
        placement("gpu")(views("cuda:0"))


def test_a_gpu_on_which_the_kernels_do_not_compile_is_not_used(fault: Callable[[str | None], None]) -> None:
    fault("its kernels do not run on cuda:0: CompilationError: no such operation")
    told: list[str] = []
    auto = placement("auto", told.append)
    for _ in range(2):
        assert auto(views("cuda:0")) is None  # type: ignore[arg-type]
    assert len(told) == 1, "it is told once"
    assert "is worked on in host memory: its kernels do not run on cuda:0: CompilationError" in told[0]
    with pytest.raises(InvalidArgument, match="device='gpu', but its kernels do not run on cuda:0"):
        placement("gpu")(views("cuda:0"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("fault")
@pytest.mark.parametrize(
    ("version", "fits"), [("3.2.0", False), ("2.3.1+git99", False), ("3.6.0", True), ("10.0", True)]
)
def test_a_triton_that_is_too_old_is_not_used(monkeypatch: pytest.MonkeyPatch, version: str, fits: bool) -> None:
    monkeypatch.setattr("triton.__version__", version)
    told: list[str] = []
    assert (placement("auto", told.append)(views("cuda:0")) is not None) == fits  # type: ignore[arg-type]
    if not fits:
        assert f"triton {version} is too old" in told[0]
        with pytest.raises(InvalidArgument, match=f"triton {re.escape(version)} is too old"):
            placement("gpu")(views("cuda:0"))  # type: ignore[arg-type]


def test_a_registry_tells_that_the_gpu_is_not_used(fault: Callable[[str | None], None]) -> None:
    fault("no compiler")
    told: list[Event] = []
    options = Options(on_event=told.append, compute=ComputeOptions(device="auto"))
    runtime = Runtime(MemoryStore("told"), "run", options, Dependencies())
    assert runtime.placement(views("cuda:0")) is None  # type: ignore[arg-type]
    runtime.end()
    assert [(event.kind, event.run) for event in told] == [(EventKind.GPU_NOT_USED, "run")]


def test_the_oldest_triton_that_is_used_is_the_oldest_that_is_installed_and_compiled_with() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    floors = {tuple(map(int, found)) for extra in extras.values() for found in FLOOR.findall("\n".join(extra))}
    assert {floor[:2] for floor in floors} == {OLDEST_TRITON}


def test_the_trial_of_the_kernels_passes_where_they_run(device: str) -> None:
    trial.FAULTS.clear()
    assert trial.fault_on(torch.device(device)) is None


@pytest.mark.sweep
def test_the_trial_passes_with_whole_tiles(device: str) -> None:
    trial.follow_step(torch.device(device), CELL_TYPES["BF16"], rounded=True, whole=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtypes", [{"U8", "F32"}, {"F64"}])
def test_the_kernels_for_a_model_of_any_dtypes_are_made_ready(
    device: str, dtypes: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[tuple[str, bool]] = []

    def noted(device: torch.device, cell_type: CellType, *, rounded: bool) -> None:
        trial.follow_step(device, cell_type, rounded=rounded)
        followed.append((cell_type.name, rounded))

    monkeypatch.setattr(warm_up_module, "follow_step", noted)
    warm_up(dtypes, torch.device(device))
    rounded = [("BF16", True)] if "F32" in dtypes else []
    assert sorted(followed) == sorted([*rounded, *((dtype, False) for dtype in dtypes)])


def test_the_trial_tells_of_kernels_that_do_not_compile_and_of_wrong_results(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("gather")

    monkeypatch.setattr(trial, "CODERS", ())
    for replaced, message in [(fails, "KeyError: 'gather'"), (lambda *_: None, "other results than the reference")]:
        trial.FAULTS.clear()
        monkeypatch.setattr(trial, "scatter", replaced)
        assert message in str(trial.fault_on(torch.device(device)))
    trial.FAULTS.clear()


def test_a_device_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="auto, cpu, gpu"):
        Registry(MemoryStore("placement"), "run", Options(compute=ComputeOptions(device="tpu")))  # type: ignore[arg-type]


def test_a_model_in_host_memory_is_refused_by_a_registry_that_is_to_work_on_a_gpu() -> None:
    with Registry(MemoryStore("gpu"), "run", Options(compute=ComputeOptions(device="gpu"))) as registry:
        with pytest.raises(InvalidArgument, match="host memory"):
            registry.push(0, {"w": np.zeros(3, np.uint16)})
        assert registry.versions() == []


def test_the_cells_of_a_tensor_on_a_device_are_not_copied_before_they_are_asked_for() -> None:
    view = read_model({"w": torch.arange(3, dtype=torch.int16)})["w"]
    later = View("w", "I16", (3,), True, view.owner, ("where",), view.tensor, lambda: pytest.fail("it was copied"))
    assert (later.size, later.identity) == (3, ("where",))


def test_the_folder_of_compiled_kernels_is_made_for_its_user_and_told_of_where_others_may_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "home" / ".triton" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    look_at_cache()
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    assert caplog.messages == []
    folder.chmod(0o777)
    look_at_cache()
    (message,) = caplog.messages
    assert message.startswith(f"{folder} may be written by others (mode 0777): ")
    assert "TRITON_CACHE_DIR" in message
