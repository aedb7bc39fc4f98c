"""A writer publishes what torch.distributed.checkpoint saves, as a push of the model would, or says why not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pulse_registry import InvalidArgument, InvalidModel, Registry
from pulse_registry.store import MemoryStore
from tests.support.registries import quick

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def dcp() -> Any:
    """torch.distributed.checkpoint, with our writer: it takes seconds to import."""
    found = importlib.import_module("torch.distributed.checkpoint")
    found.Writer = importlib.import_module("pulse_registry.integrations.dcp").Writer
    return found


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    with quick(MemoryStore(request.node.name), keyframe_share=1e9) as opened:
        yield opened


def model() -> torch.nn.Module:
    """Return two layers that are tied, and a frozen one."""
    made = torch.nn.Sequential(*(torch.nn.Linear(4, 4, dtype=torch.bfloat16) for _ in range(3)))
    made[1].weight = made[0].weight
    made[2].requires_grad_(False)
    return made


def trained(trainee: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW([one for one in trainee.parameters() if one.requires_grad])
    trainee(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    return optimizer


def same(registry: Registry, version: int, trainee: torch.nn.Module) -> bool:
    stored, state = registry.load(version), trainee.state_dict()
    return stored.keys() == state.keys() and all(torch.equal(one, state[name]) for name, one in stored.items())


def failure(dcp: Any, state: dict[str, Any], writer: Any) -> BaseException:
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.save(state, storage_writer=writer)
    [(_, (error, _))] = caught.value.failures.items()
    return error


def test_saves_of_one_process_are_what_pushes_of_the_model_are(dcp: Any, registry: Registry) -> None:
    trainee, twin = model(), MemoryStore("twin")
    with quick(twin, keyframe_share=1e9) as other:
        for step in (10, 20, 30):
            trained(trainee)
            writer = dcp.Writer(registry, step, metadata={"loss": 0.5})
            if step == 20:
                dcp.async_save(trainee.state_dict(), storage_writer=writer).result()
            else:
                dcp.save(trainee.state_dict(), storage_writer=writer)
            pushed = other.push(step, trainee)
            got = writer.result
            assert (got.version, got.step, got.kind, got.changed) == (pushed.version, step, pushed.kind, pushed.changed)
            assert (got.digest, got.nbytes) == (pushed.digest, pushed.nbytes)
            assert same(registry, got.version, trainee)
        assert registry.layout() == other.layout()
    assert registry.version().metadata == {"loss": 0.5}


def test_a_checkpoint_id_is_the_step(dcp: Any, registry: Registry) -> None:
    trainee = model()
    writer = dcp.Writer(registry, 1)
    dcp.save(trainee.state_dict(), storage_writer=writer, checkpoint_id="12")
    assert registry.version().step == 12
    with pytest.raises(InvalidArgument, match="'outputs/step-3' is no step"):
        writer.reset("outputs/step-3")
    assert [dcp.Writer.validate_checkpoint_id(name) for name in ("12", "", "a", "-1")] == [True, False, False, False]


def test_the_state_of_an_optimizer_is_refused_in_a_sentence_or_left_out(dcp: Any, registry: Registry) -> None:
    trainee = model()
    checkpoint = {"model": trainee.state_dict(), "optim": trained(trainee).state_dict(), "step": 3}
    said = failure(dcp, checkpoint, dcp.Writer(registry, 1))
    assert isinstance(said, InvalidModel)
    assert "of the state dict is no tensor: a registry holds weights, and no state of an optimizer" in str(said)
    assert registry.state().latest is None
    dcp.save(checkpoint, storage_writer=dcp.Writer(registry, 1, "model."))
    assert same(registry, 0, trainee)


def test_extra_state_and_a_prefix_of_nothing_are_refused(dcp: Any, registry: Registry) -> None:
    trainee = model()
    said = failure(dcp, trainee.state_dict() | {"0._extra_state": b"scales"}, dcp.Writer(registry, 1))
    assert isinstance(said, InvalidModel)
    assert "'0._extra_state' of the state dict is no tensor" in str(said)
    said = failure(dcp, trainee.state_dict(), dcp.Writer(registry, 1, prefix="model."))
    assert isinstance(said, InvalidModel)
    assert "no item of the state dict is named 'model.'" in str(said)
    assert registry.state().latest is None


def test_plans_of_ranks_that_the_registry_was_not_opened_with_are_refused(dcp: Any, registry: Registry) -> None:
    planner = importlib.import_module("torch.distributed.checkpoint.planner")
    with pytest.raises(
        InvalidArgument, match="2 ranks save, and the registry was opened for 1: open it with process_group"
    ):
        dcp.Writer(registry, 1).prepare_global_plan([planner.SavePlan([])] * 2)


def test_plans_that_torch_remembers_are_pushed_again(dcp: Any, registry: Registry) -> None:
    default = importlib.import_module("torch.distributed.checkpoint.default_planner")
    try:
        default.DefaultSavePlanner(enable_plan_caching=True)
    except TypeError:
        pytest.skip("this torch remembers no plans")
    trainee = model()
    checkpoint = {"model": trainee.state_dict(), "step": 3}
    for step in (1, 2):
        trained(trainee)
        planner = default.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(checkpoint, storage_writer=dcp.Writer(registry, step, "model."), planner=planner)
        assert same(registry, step - 1, trainee)
