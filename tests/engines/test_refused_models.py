"""What vLLM keeps in another form than its loader says is found when a run is opened, and refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.support.engine import EngineError
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start
from tests.engines.support.models import MOE, random_weights, write_model
from tests.engines.support.packing import packs_linear_layers


def test_linear_layers_that_are_packed_on_a_cpu_are_refused_with_what_to_do(start: Start, history: History) -> None:
    """The control of PULSE_VLLM_CPU: without it the matmul reads another copy, and a change would not be seen."""
    engine = start(history.folder / "model", **PULSE)
    before = engine.generate(PROMPTS)
    if packs_linear_layers():
        with pytest.raises(EngineError, match=r"can't be changed in place.* start it with PULSE_VLLM_CPU=unpacked"):
            engine.open_run(history.url, history.run, 0)
    else:  # without AVX-512 they read their live weights
        engine.open_run(history.url, history.run, 0)
    assert engine.generate(PROMPTS) == before


def test_experts_are_refused_by_name_where_only_linear_layers_are_unpacked(start: Start, tmp_path: Path) -> None:
    """The control of what the plugin does for experts: it is undone, as on a vLLM whose experts it does not know."""
    run = History(tmp_path / "registry", "experts", tmp_path)
    run.push(random_weights(MOE))
    settings = PULSE | {"worker_extension_cls": "tests.engines.support.packed.Probe"}
    engine = start(write_model(MOE, run.states[0], tmp_path / "model"), UNPACKED, **settings)
    before = engine.generate(PROMPTS)
    with pytest.raises(EngineError, match=r"BaseMismatch: .*experts\.\d\.(gate|up|down)_proj.*packed") as caught:
        engine.open_run(run.url, run.run, 0)
    assert "self_attn" not in str(caught.value)
    assert engine.generate(PROMPTS) == before


def test_a_mixture_of_experts_is_refused_with_what_to_do(start: Start, tmp_path: Path) -> None:
    run = History(tmp_path / "registry", "experts", tmp_path)
    run.push(random_weights(MOE))
    engine = start(write_model(MOE, run.states[0], tmp_path / "model"), **PULSE)
    why = "can't be changed in place" if packs_linear_layers() else r"experts.*keeps these tensors in another form"
    with pytest.raises(EngineError, match=rf"{why}.* start it with PULSE_VLLM_CPU=unpacked"):
        engine.open_run(run.url, run.run, 0)
