"""A reader gives torch.distributed.checkpoint a version, bit for bit, where the planner wants it, or says why not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pulse_registry import InvalidArgument, LayoutMismatch, Registry
from pulse_registry.store import MemoryStore
from tests.support.registries import quick

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


@pytest.fixture(scope="module")
def dcp() -> Any:
    """torch.distributed.checkpoint, with our reader: it takes seconds to import."""
    found = importlib.import_module("torch.distributed.checkpoint")
    found.Reader = importlib.import_module("pulse_registry.integrations.dcp").Reader
    return found


class Policy(torch.nn.Module):
    """Tied, frozen, buffered, empty and without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4, dtype=torch.bfloat16)
        self.frozen = torch.nn.Linear(4, 3, dtype=torch.bfloat16).requires_grad_(False)
        self.head = torch.nn.Linear(4, 6, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.none = torch.nn.Parameter(torch.empty(0, 3))
        self.register_buffer("steps", torch.tensor(3))


@pytest.fixture
def policy() -> Policy:
    return Policy()


@pytest.fixture
def registry(request: pytest.FixtureRequest, policy: Policy) -> Iterator[Registry]:
    """A run of two versions, the newest of which the policy is."""
    with quick(MemoryStore(request.node.name), coder="gap", keyframe_share=1e9) as opened:
        opened.push(0, policy)
        with torch.no_grad():
            policy.embed.weight[2:4] *= -3
            policy.steps += 1
        opened.push(1, policy)
        yield opened


def fresh(policy: Policy, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Return a state dict of the policy's names that holds nothing of it; each name has memory of its own."""
    return {name: torch.full_like(one, 7, dtype=dtype) for name, one in policy.state_dict().items()}


def bits(state: dict[str, Any]) -> dict[str, bytes]:
    return {
        name: one.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name, one in state.items()
    }


def failure(dcp: Any, state: dict[str, Any], reader: Any, **given: Any) -> BaseException:
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.load(state, storage_reader=reader, **given)
    [(rank, (error, _))] = caught.value.failures.items()
    assert rank == 0
    return error


def test_a_state_dict_is_brought_to_each_version_whatever_it_holds(
    dcp: Any, registry: Registry, policy: Policy
) -> None:
    newest, state = bits(policy.state_dict()), fresh(policy)
    for version, same in (("latest", True), (0, False), (1, True)):
        dcp.load(state, storage_reader=dcp.Reader(registry, version))
        assert (bits(state) == newest) == same
        assert bits(state) == bits(registry.load(version))


def test_what_is_unchanged_since_a_version_takes_patches_and_what_was_trained_on_is_replaced(
    dcp: Any, registry: Registry, policy: Policy
) -> None:
    state, reader = fresh(policy), dcp.Reader(registry)
    dcp.load(state, storage_reader=reader, checkpoint_id="0")
    whole = reader.result
    dcp.load(state, storage_reader=reader, checkpoint_id="1")
    assert (reader.result.version, reader.result.objects) == (1, 1)
    assert reader.result.changed < whole.changed
    state["frozen.weight"][1, 1] += 1  # which no patch touches
    dcp.load(state, storage_reader=reader)
    assert bits(state) == bits(policy.state_dict())


def test_some_of_the_tensors_are_loaded_through_their_tied_names_and_gaps_between_cells_are_left_alone(
    dcp: Any, registry: Registry, policy: Policy
) -> None:
    wide = torch.zeros(6, 8, dtype=torch.bfloat16)
    reader = dcp.Reader(registry)
    dcp.load({"head.weight": wide[:, ::2]}, storage_reader=reader)
    assert torch.equal(wide[:, ::2], policy.embed.weight)
    assert not wide[:, 1::2].any()
    assert reader.result.checked == "slices"


def test_fp32_masters_take_a_version_of_bf16_number_by_number(dcp: Any, registry: Registry, policy: Policy) -> None:
    names = ["embed.weight", "frozen.weight", "head.weight"]
    state = {name: one for name, one in fresh(policy, torch.float32).items() if name in names}
    dcp.load(state, storage_reader=dcp.Reader(registry))
    assert all(torch.equal(one, policy.state_dict()[name].float()) for name, one in state.items())


def test_a_nested_state_dict_is_named_by_a_prefix(dcp: Any, registry: Registry, policy: Policy) -> None:
    state = {"model": fresh(policy)}
    dcp.load(state, storage_reader=dcp.Reader(registry, prefix="model."))
    assert bits(state["model"]) == bits(policy.state_dict())


def test_planners_that_stage_elsewhere_or_bring_no_tensors_or_allow_for_less_are_honoured(
    dcp: Any, registry: Registry, policy: Policy
) -> None:
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    default = importlib.import_module("torch.distributed.checkpoint.default_planner")

    class Staging(default.DefaultLoadPlanner):  # type: ignore[misc, name-defined]
        def resolve_tensor(self, item: Any) -> torch.Tensor:
            return torch.empty_like(super().resolve_tensor(item))

        def commit_tensor(self, item: Any, tensor: torch.Tensor) -> None:
            super().resolve_tensor(item).copy_(tensor)

    state = fresh(policy)
    dcp.load(state, storage_reader=dcp.Reader(registry), planner=Staging())
    assert bits(state) == bits(policy.state_dict())
    assert _load_state_dict_from_keys({"steps"}, storage_reader=dcp.Reader(registry)) == {"steps": torch.tensor(4)}
    some = {"steps": torch.tensor(0), "rate": 3}
    dcp.load(some, storage_reader=dcp.Reader(registry), planner=default.DefaultLoadPlanner(allow_partial_load=True))
    assert some == {"steps": torch.tensor(4), "rate": 3}


def test_nothing_to_read_is_nothing_fetched(dcp: Any, registry: Registry) -> None:
    reader = dcp.Reader(registry)
    dcp.load({"none": torch.empty(0, 3)}, storage_reader=reader)
    assert reader.result is None


def test_what_the_version_lacks_is_named(dcp: Any, registry: Registry, policy: Policy) -> None:
    state = fresh(policy) | {"optim": {"state": {"embed.weight": {"exp_avg": torch.ones(6, 4)}}}}
    before = bits(fresh(policy))
    said = failure(dcp, state, dcp.Reader(registry))
    assert "optim.state.embed.weight.exp_avg" in str(said)
    assert "embed.weight" in str(failure(dcp, {"embed.weight": torch.zeros(3, 3)}, dcp.Reader(registry)))
    assert "no version 9" in str(failure(dcp, fresh(policy), dcp.Reader(registry, 9)))
    wrong = failure(dcp, fresh(policy, torch.float64), dcp.Reader(registry))
    assert isinstance(wrong, LayoutMismatch)
    assert "F64" in str(wrong)
    assert bits({name: state[name] for name in before}) == before


def test_a_plan_for_what_is_no_weight_is_refused_in_a_sentence(dcp: Any, registry: Registry) -> None:
    planner = importlib.import_module("torch.distributed.checkpoint.planner")
    metadata = importlib.import_module("torch.distributed.checkpoint.metadata")

    def plan(kind: Any, name: str) -> Any:
        index, size = metadata.MetadataIndex(name, [0]), torch.Size([1])
        return planner.LoadPlan([planner.ReadItem(kind, index, size, index, size, size)])

    reader = dcp.Reader(registry)
    for kind, name in ((planner.LoadItemType.BYTE_IO, "embed.weight"), (planner.LoadItemType.TENSOR, "optim.step")):
        with pytest.raises(
            LayoutMismatch, match=rf"'{name}' of the state dict is no tensor of version 1 .*holds weights"
        ):
            reader.prepare_local_plan(plan(kind, name))


def test_all_ranks_take_the_coordinators_version_unless_its_tensors_are_others(
    dcp: Any, registry: Registry, policy: Policy
) -> None:
    planner = importlib.import_module("torch.distributed.checkpoint.planner")
    old, late = dcp.Reader(registry), dcp.Reader(registry)
    plans = [late.prepare_local_plan(planner.LoadPlan([]))]
    registry.push(2, policy)
    plans.append(dcp.Reader(registry).prepare_local_plan(planner.LoadPlan([])))
    assert [plan.storage_data.version for plan in plans] == [1, 2]
    assert [plan.storage_data.version for plan in late.prepare_global_plan(plans)] == [1, 1]
    registry.push(3, {"other": torch.zeros(2, dtype=torch.bfloat16)})
    with pytest.raises(
        LayoutMismatch, match=r"rank 0 found version 1 .* not those of version 3: load a version by its"
    ):
        old.prepare_global_plan(plans)


def test_a_checkpoint_id_names_a_version_and_is_no_path(dcp: Any, registry: Registry) -> None:
    reader = dcp.Reader(registry)
    registry.tag("best", 0)
    for name in ("best", "0"):
        reader.reset(name)
        assert reader.prepare_local_plan(dcp.planner.LoadPlan([])).storage_data.version == 0
    for name in ("", "outputs/step-7"):
        with pytest.raises(InvalidArgument, match="names no version"):
            reader.reset(name)
