"""Wrappers around a policy, at any depth, leave its layout as it is; what it names like them itself stays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn

from pulse_registry import InvalidModel, Registry
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_registry.weights.model import layout_of, read_model
from pulse_registry.weights.module import module_tensors

Wrapper = Callable[[nn.Module], nn.Module]


def compiled(module: nn.Module) -> nn.Module:
    found = torch.compile(module)
    return found if isinstance(found, nn.Module) else module  # of some that are compiled already it makes a function


def checkpointed(module: nn.Module) -> nn.Module:
    return wrappers().checkpoint_wrapper(module)  # type: ignore[no-any-return]


def offloaded(module: nn.Module) -> nn.Module:
    return wrappers().offload_wrapper(module)  # type: ignore[no-any-return]


def wrappers() -> Any:
    """Import what takes seconds where it is used: every test process collects every file."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    return checkpoint_wrapper


WRAPPERS: dict[str, Wrapper] = {
    "compile": compiled,
    "DataParallel": nn.DataParallel,
    "DDP": lambda module: nn.parallel.DistributedDataParallel(module),
    "checkpoint": checkpointed,
    "offload": offloaded,
}


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    """A group of this process alone: DDP wants one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch loads to compile uses what torch has deprecated
        torch.compile(nn.Identity())
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def policy() -> nn.Module:
    """Return a policy that names its own parts as wrappers do."""
    block = nn.ModuleDict({"module": nn.Linear(2, 3), "_orig_mod": nn.Linear(3, 2, bias=False)})
    return nn.Sequential(nn.Embedding(4, 2), nn.ModuleDict({"_checkpoint_wrapped_module": block}), nn.LayerNorm(2))


NAMES = [
    "0.weight",
    "1._checkpoint_wrapped_module._orig_mod.weight",
    "1._checkpoint_wrapped_module.module.bias",
    "1._checkpoint_wrapped_module.module.weight",
    "2.bias",
    "2.weight",
]


def wrapped(module: nn.Module, places: Sequence[tuple[int, str]]) -> nn.Module:
    """Wrap submodules, the innermost first, so that each place is still where it was; place 0 is the module."""
    paths = [name for name, _ in module.named_modules()]
    for place, how in sorted(places, key=lambda item: item[0], reverse=True):
        path = paths[place % len(paths)]
        inside = WRAPPERS[how](module.get_submodule(path))
        if not path:
            module = inside
        else:
            parent, _, name = path.rpartition(".")
            module.get_submodule(parent)._modules[name] = inside
    return module


@pytest.mark.parametrize("how", WRAPPERS)
def test_a_wrapped_policy_has_the_layout_and_the_memory_of_the_plain_one(how: str) -> None:
    plain = policy()
    views = read_model(WRAPPERS[how](plain))
    assert sorted(views) == NAMES
    assert layout_of(views, "keep").id == layout_of(read_model(plain), "keep").id
    assert {name: view.identity for name, view in views.items()} == {
        name: view.identity for name, view in read_model(plain).items()
    }


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(sorted(WRAPPERS))), max_size=5))
def test_wrappers_at_any_depth_and_around_each_other_leave_the_names_as_they_are(places: list[tuple[int, str]]) -> None:
    assert sorted(module_tensors(wrapped(policy(), sorted(places)))) == NAMES


def test_what_is_within_fully_sharded_parts_is_named_as_without_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one process nothing is sharded
        parts = nn.Sequential(torch.compile(nn.Linear(2, 2)))
        from torch.distributed.fsdp import FullyShardedDataParallel

        sharded = FullyShardedDataParallel(parts, device_id=torch.device("cpu"))
        assert list(module_tensors(sharded)) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("name", ["module", "_orig_mod", "_checkpoint_wrapped_module"])
def test_a_policys_own_part_that_is_named_like_a_wrappers_keeps_its_name(name: str) -> None:
    own = nn.ModuleDict({name: nn.Linear(2, 2, bias=False)})
    assert list(module_tensors(own)) == [f"{name}.weight"]
    for wrap in (nn.DataParallel, torch.compile):
        assert list(module_tensors(wrap(own))) == [f"{name}.weight"]


def test_the_names_of_a_mapping_are_taken_as_they_are() -> None:
    assert list(read_model(dict(torch.compile(nn.Linear(2, 2, bias=False)).state_dict()))) == ["_orig_mod.weight"]


def test_two_names_that_become_one_are_refused_by_both() -> None:
    class Scaled(nn.DataParallel[Any]):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            self.weight = nn.Parameter(torch.ones(2))

    with pytest.raises(InvalidModel, match=r"'weight' and 'module\.weight' are both 'weight'"):
        read_model(Scaled(nn.Linear(2, 2)))


def test_a_compiled_trainer_and_a_plain_worker_fit_and_so_do_a_plain_trainer_and_a_compiled_worker(
    request: pytest.FixtureRequest,
) -> None:
    with Registry(
        MemoryStore(request.node.name), "run", Options(compute=ComputeOptions(backend="reference"))
    ) as registry:
        trainer, worker = policy().bfloat16(), policy().bfloat16()
        registry.push(0, torch.compile(trainer))
        registry.pull(0, into=worker)
        with torch.no_grad():
            trainer[0].weight[1, 1] += 1
        assert registry.push(1, nn.DataParallel(trainer)).changed == 1, "the layout is the one before"
        result = registry.pull(1, into=torch.compile(worker))
        assert result.objects == 1, "what the plain one holds, the compiled one holds"
        for name, tensor in trainer.state_dict().items():
            assert torch.equal(tensor, worker.state_dict()[name])
        assert registry.verify(1, model=torch.compile(worker)).version == 1
