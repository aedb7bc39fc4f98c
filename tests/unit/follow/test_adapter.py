"""An adapter of vLLM or SGLang: each version is loaded from a folder of its own, and what fails leaves the old one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.follow import AdapterEngine, Changed, Failed, Follower, Pace
from pulse_registry.follow.adapter import Server
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.registry import Registry
from tests.support.checkpoints import Tensors, bf16_model, bits, shard_bits, step_of
from tests.support.clock import Clock
from tests.support.engines import AdapterStub, engine_at
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.support.scripted_http import PATIENT

CONFIG = json.dumps({"peft_type": "LORA", "r": 4}).encode()
SERVERS: list[tuple[Server, str]] = [("vllm", "/v1"), ("sglang", "")]


def states() -> list[Tensors]:
    states = [bf16_model(cells=3000)]
    for step in range(3):
        states.append(step_of(states[-1], step))
    return states


@pytest.fixture(scope="module")
def registry() -> Registry:
    store = DictStore()
    with quick(store) as trainer:
        for step, state in enumerate(states()):
            trainer.push(step, state, files={"adapter_config.json": CONFIG} if step == 0 else None)
    return quick(store)


def brought(registry: Registry, engine: AdapterEngine, version: int) -> list[Changed | Failed]:
    told: list[Changed | Failed] = []
    clock = Clock()

    def wait(after: int, seconds: float) -> None:
        follower.stop()

    follower = Follower(registry, engine, Pace(version), told.append, clock=clock, sleep=clock.sleep, wait=wait)
    follower.run()
    return told


@pytest.mark.parametrize(("server", "prefix"), SERVERS)
def test_each_version_is_loaded_from_a_folder_of_its_own(
    registry: Registry, tmp_path: Path, server: Server, prefix: str
) -> None:
    stub = AdapterStub(prefix)
    seen: list[bool] = []
    stub.serves = lambda path: seen.append(holds(Path(path), registry.run))
    with engine_at(stub) as at:
        engine = AdapterEngine(EngineApi(at.url, timeouts=PATIENT), registry, tmp_path, "policy", server)
        assert engine.version() is None
        for version in (0, 3, 1):
            (told,) = brought(registry, engine, version)
            assert (told.document().get("version"), told.document().get("pause_s")) == (version, None)
        assert brought(registry, engine, 1) == []
        again = AdapterEngine(EngineApi(at.url, timeouts=PATIENT), registry, tmp_path, "policy", server)
        assert again.version() == 1  # which the server tells
    paths = [str(tmp_path / f"{registry.run}-{version}") for version in (0, 3, 1)]
    assert stub.calls == [paths[0], "unloaded", paths[1], "unloaded", paths[2]]
    assert seen == [True] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".pulled", f"{registry.run}-1", f"{registry.run}-3"]


def holds(path: Path, run: str) -> bool:
    """Whether a folder is an adapter's, of the version that its name has, and nothing else."""
    assert sorted(file.name for file in path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (path / "adapter_config.json").read_bytes() == CONFIG
    version = int(path.name.removeprefix(f"{run}-"))
    return shard_bits(path / "adapter_model.safetensors") == bits(states()[version])


@pytest.mark.parametrize(("server", "prefix"), SERVERS)
@pytest.mark.parametrize("step", ["/load_lora_adapter", "/unload_lora_adapter"])
@pytest.mark.parametrize("before", ["ours", "theirs"])
def test_whatever_fails_the_old_adapter_is_served(
    registry: Registry, tmp_path: Path, server: Server, prefix: str, step: str, before: str
) -> None:
    first = str(tmp_path / f"{registry.run}-1") if before == "ours" else "/adapters/first"
    stub = AdapterStub(prefix, {"policy": first, "other": "/adapters/other"})
    served: list[str] = []
    with engine_at(stub) as at:
        engine = AdapterEngine(EngineApi(at.url, timeouts=PATIENT), registry, tmp_path, "policy", server)
        stub.fails = [step]
        clock, told = Clock(), list[Changed | Failed]()

        def sleep(seconds: float) -> None:
            served.append(stub.loaded["policy"])

        def wait(after: int, seconds: float) -> None:
            follower.stop()

        follower = Follower(registry, engine, Pace(2), told.append, clock=clock, sleep=sleep, wait=wait)
        follower.run()
    assert served == [first]
    assert ["it is so" in one.line() for one in told] == [True, False]
    assert stub.loaded == {"policy": str(tmp_path / f"{registry.run}-2"), "other": "/adapters/other"}


def test_a_run_of_whole_models_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    store, stub = DictStore(), AdapterStub("/v1")
    with quick(store) as trainer:
        trainer.push(0, states()[0])
        with engine_at(stub) as at:
            engine = AdapterEngine(EngineApi(at.url, timeouts=PATIENT), trainer, tmp_path, "policy", "vllm")
            with pytest.raises(InvalidArgument, match=r"carries no adapter_config\.json"):
                engine.stage(0)
    assert stub.calls == []
