"""verl finds the checkpoint engine as it finds plug-ins, and makes the calls of its base class, in their order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig

import pulse_registry
from pulse_registry import InvalidModel, StoreUnavailable

Engines = tuple[list[Any], list[Any]]


def engines(root: Path, actors: int = 2, rollouts: int = 2, **options: Any) -> Engines:
    """Return the engines of workers whose settings name a folder."""
    config = CheckpointEngineConfig(
        backend="pulse",
        custom_backend_module="pulse_registry.integrations.verl",
        engine_kwargs={"pulse": {"url": str(root), "run": "math", **options}},
    )
    return made_by(config, actors, rollouts)


def made_by(config: CheckpointEngineConfig, actors: int = 2, rollouts: int = 2) -> Engines:
    """Make the engines of an actor's and a rollout's workers as verl's workers do."""
    import_external_libs(config.custom_backend_module)
    size, given = config.update_weights_bucket_megabytes << 20, config.engine_kwargs[config.backend]
    actor = [
        CheckpointEngineRegistry.new(config.backend, is_master=rank == 0, bucket_size=size, **given)
        for rank in range(actors)
    ]
    return actor, [CheckpointEngineRegistry.new(config.backend, bucket_size=size, **given) for _ in range(rollouts)]


def sync(made: Engines, weights: dict[str, torch.Tensor], step: int | None) -> tuple[list[Any], list[dict[str, Any]]]:
    """Call what verl's manager calls for each update, all workers at once; return metrics, and what was received."""
    actor, rollout = made
    said = [engine.prepare() for engine in (*actor, *rollout)]
    topology = type(actor[0]).build_topology(len(actor), len(rollout), said)
    for group, arguments in zip(made, topology, strict=True):
        for rank, engine in enumerate(group):
            engine.init_process_group(**{name: values[rank] for name, values in arguments.items()})

    async def received(engine: Any) -> dict[str, Any]:
        return {name: tensor.clone() async for name, tensor in engine.receive_weights(global_steps=step)}

    async def all_at_once() -> tuple[list[Any], list[dict[str, Any]]]:
        getting = [asyncio.ensure_future(received(engine)) for engine in rollout]
        sent = [await engine.send_weights(iter(weights.items()), global_steps=step) for engine in reversed(actor)]
        return sent, [await future for future in getting]

    outcome = asyncio.run(all_at_once())
    for engine in (*actor, *rollout):
        engine.finalize()
    return outcome


def policy() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(32, 16).bfloat16() for name in ("model.embed.weight", "model.norm.weight")}


def test_it_is_a_checkpoint_engine_with_the_signatures_of_its_base() -> None:
    import_external_libs("pulse_registry.integrations.verl")
    kind = CheckpointEngineRegistry.get("pulse")
    assert issubclass(kind, CheckpointEngine)
    for name in ("prepare", "finalize", "send_weights", "receive_weights", "build_topology"):
        ours, theirs = (inspect.signature(getattr(one, name)) for one in (kind, CheckpointEngine))
        assert list(ours.parameters) == list(theirs.parameters), name


def test_each_sync_is_a_version_that_all_rollout_workers_receive_bit_for_bit(tmp_path: Path) -> None:
    made, weights = engines(tmp_path), policy()
    weights["model.norm.weight"][0, 0] = float("nan")
    for step, changed in ((10, 1024), (20, 3), (30, 0)):
        if step == 20:
            weights["model.embed.weight"].view(-1)[[1, 5, 9]] *= -2
        sent, received = sync(made, weights, step)
        assert sent[0] == {}
        assert (sent[1]["pulse/changed_cells"], sent[1]["pulse/version"]) == (changed, step / 10 - 1)
        for found in received:
            assert found.keys() == weights.keys()
            assert all(torch.equal(found[n].view(torch.int16), weights[n].view(torch.int16)) for n in weights)
    with pulse_registry.open(str(tmp_path), run="math") as reader:
        assert [version.step for version in reader.versions()] == [10, 20, 30]


def test_a_worker_that_joins_late_receives_the_version_of_its_sync(tmp_path: Path) -> None:
    made, weights = engines(tmp_path), policy()
    sync(made, weights, 1)
    weights["model.embed.weight"][0, 0] += 1
    actor, _ = made
    _, received = sync((actor, engines(tmp_path)[1]), weights, None)
    assert all(torch.equal(received[0][name], weights[name]) for name in weights)


def test_all_ranks_read_what_they_gather_together_to_its_end(tmp_path: Path) -> None:
    read: list[int] = []
    [first, second], _ = engines(tmp_path)

    def gathered(rank: int) -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("a", "a", "b"):
            read.append(rank)
            yield name, torch.zeros(2)

    asyncio.run(second.send_weights(gathered(1)))
    with pytest.raises(InvalidModel, match="'a' was sent twice"):
        asyncio.run(first.send_weights(gathered(0)))
    assert read == [1, 1, 1, 0, 0, 0]


def test_a_worker_says_that_the_actor_did_not_push(tmp_path: Path) -> None:
    actor, rollout = engines(tmp_path, 1, 1, wait_seconds=0.2)
    said = [engine.prepare() for engine in (*actor, *rollout)]
    _, arguments = type(actor[0]).build_topology(1, 1, said)
    rollout[0].init_process_group(after=arguments["after"][0])

    async def receive() -> None:
        async for _ in rollout[0].receive_weights():
            pass

    with pytest.raises(StoreUnavailable, match=r"has not pushed version 0 within 0\.2 s"):
        asyncio.run(receive())
