"""Torch models over a file store: late joiners, stragglers and ways back, and every kind of tensor that a model has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import pulse_registry
from pulse_registry import InvalidModel, LayoutMismatch, Registry


class Policy(nn.Module):
    """Tied embeddings, parameters that are not contiguous, buffers, integers, no dimension, and no cell."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.embedding = nn.Parameter(noise(40, 16).bfloat16())
        self.head = self.embedding
        self.turned = nn.Parameter(noise(24, 16).bfloat16().t())
        self.strided = nn.Parameter(noise(30, 7)[::2, ::3].bfloat16())
        self.master = nn.Parameter(noise(33, 5))
        self.scale = nn.Parameter(noise().bfloat16())
        self.none = nn.Parameter(torch.empty(0, 4, dtype=torch.bfloat16))
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("mask", torch.arange(20) % 3 == seed % 3)
        self.register_buffer("codes", torch.randint(-100, 100, (3, 3, 3), dtype=torch.int8, generator=generator))
        # Slices of one memory: side by side, and one through the other.
        fused = noise(6, 8).bfloat16()
        self.query, self.key = nn.Parameter(fused[:3]), nn.Parameter(fused[3:, :4])

    def train_on(self, step: int) -> None:
        """Change a few cells of everything."""
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for tensor in self.state_dict().values():
                if tensor.is_floating_point() and tensor.numel():
                    tensor.mul_(torch.where(torch.rand(tensor.shape, generator=generator) < 0.1, 1.01, 1.0))
            self.steps += 1
            self.codes[0, 0, step % 3] += 1
            self.mask[step % 20] ^= True


def cells(module: nn.Module) -> dict[str, list[int]]:
    """Return the published bits of every tensor: masters as BF16."""
    out = {}
    for name, tensor in module.state_dict().items():
        value = tensor.bfloat16() if tensor.dtype == torch.float32 else tensor
        value = value.contiguous()
        out[name] = (
            value.view(torch.int16).flatten().tolist() if value.is_floating_point() else value.flatten().tolist()
        )
    return out


def worker() -> Policy:
    """Return a module of BF16 that holds nothing of the policy."""
    model = Policy(seed=99)
    model.master = nn.Parameter(model.master.detach().bfloat16())
    return model


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with pulse_registry.open(str(tmp_path), run="policy", push=pulse_registry.PushOptions(keyframe_every=6)) as opened:
        yield opened


@pytest.mark.parametrize("coder", ["gap", "class", "auto"])
def test_workers_join_late_fall_behind_and_go_back_bit_for_bit(tmp_path: Path, coder) -> None:
    trainer_model = Policy(seed=0)
    states = []
    follower, straggler = worker(), worker()
    addresses = {name: tensor.data_ptr() for name, tensor in follower.state_dict().items()}
    with (
        pulse_registry.open(
            str(tmp_path), run="policy", push=pulse_registry.PushOptions(coder=coder, keyframe_every=6)
        ) as trainer,
        pulse_registry.open(str(tmp_path), run="policy") as one,
        pulse_registry.open(tmp_path.as_uri(), run="policy") as other,
    ):
        for step in range(12):
            trainer_model.train_on(step)
            result = trainer.push(100 + step, trainer_model)
            assert (result.version, result.kind) == (step, "patch" if step else "keyframe")
            states.append(cells(trainer_model))
            followed = one.pull("latest", into=follower)
            assert cells(follower) == states[-1]
            assert step == 0 or followed.objects == 1, "what the weights hold is remembered with them"
            if step in (1, 7):
                other.pull("latest", into=straggler)
        late = worker()
        one.pull("latest", into=late)
        assert cells(late) == states[-1]
        other.pull("latest", into=straggler)
        assert cells(straggler) == states[-1]
        for version in (11, 10, 9, 4, 0, 6, 5, 11, 2):
            assert other.pull(version, into=straggler).version == version
            assert cells(straggler) == states[version], version
            assert one.verify(version, model=straggler).step == 100 + version
        assert {name: tensor.data_ptr() for name, tensor in follower.state_dict().items()} == addresses
        pulled = one.load(3)
        assert {name: list(tensor.shape) for name, tensor in pulled.items()} == {
            name: list(tensor.shape) for name, tensor in worker().state_dict().items()
        }
        assert pulled["head"] is pulled["embedding"], "tied tensors stay tied"
        late.load_state_dict(pulled)
        assert cells(late) == states[3]


def test_a_worker_can_hand_in_a_module_that_is_not_contiguous_anywhere(registry: Registry) -> None:
    source = {"w": torch.randn(6, 8).bfloat16(), "v": torch.arange(12).reshape(3, 4)}
    registry.push(0, source)
    source["w"][2, 3] = -1.0
    registry.push(1, source)
    memory = torch.zeros(8, 12, dtype=torch.bfloat16)
    into = {"w": memory.t()[::2], "v": torch.zeros(4, 3, dtype=torch.int64).t()}
    for version in (0, 1):
        registry.pull(version, into=into)
    assert torch.equal(into["w"], source["w"])
    assert torch.equal(into["v"], source["v"])
    assert not memory[:, 1::2].any(), "the cells between are nobody's"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 4).bfloat16().expand(3, 4),
        torch.zeros(4).bfloat16()[:1].expand(3, 4),
        torch.as_strided(torch.zeros(12).bfloat16(), (3, 4), (2, 1)),
        torch.as_strided(torch.zeros(12).bfloat16(), (3, 4), (1, 1)),
    ],
    ids=["expanded", "expanded twice", "overlapping rows", "sliding windows"],
)
def test_a_tensor_whose_cells_share_memory_is_refused_by_name(registry: Registry, tensor: torch.Tensor) -> None:
    registry.push(0, {"fine": torch.ones(2).bfloat16(), "layers.3.shared": torch.randn(3, 4).bfloat16()})
    into = {"fine": torch.zeros(2).bfloat16(), "layers.3.shared": tensor}
    with pytest.raises(InvalidModel, match=r"'layers\.3\.shared'"):
        registry.pull("latest", into=into)
    assert not into["fine"].any()
    assert not tensor.any()
    registry.push(1, into)  # to read it is no harm
    assert registry.version("latest").step == 1


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(3, device="meta"), "on the device meta"),
        (torch.zeros(3).to_sparse(), "memory of its own"),
        (torch.zeros(3, dtype=torch.complex64), "complex64"),
        (torch.zeros(3, dtype=torch.float16), "F16"),
        (torch.zeros(3, dtype=torch.float64), "F64"),
        ([1.0, 2.0], "list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_that_cannot_be_published_is_refused_by_name_with_the_reason(registry, tensor, reason: str) -> None:
    with pytest.raises(InvalidModel, match=rf"'odd'.*{reason}"):
        registry.push(0, {"fine": torch.ones(2).bfloat16(), "odd": tensor})
    assert registry.versions() == []


class Cloning(nn.Linear):
    """Gives a state dict of copies."""

    def state_dict(self, *args, **kwargs):
        return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}


def test_a_module_whose_state_dict_is_of_copies_is_published_and_read_but_never_taken_for_changed(registry) -> None:
    trainer, worker = (Cloning(4, 3, bias=False, dtype=torch.bfloat16) for _ in range(2))
    registry.push(0, trainer)
    before = worker.weight.clone()
    for change in (registry.pull, registry.stage, lambda version, into: registry.prefetch(into=into)):
        with pytest.raises(InvalidModel, match="'weight' is a copy"):
            change(0, into=worker)
    assert torch.equal(worker.weight, before)
    registry.pull(0, into=dict(worker.named_parameters()))
    assert torch.equal(worker.weight, trainer.weight)
    assert registry.verify(0, model=worker).step == 0


def test_tensors_that_are_tied_in_one_place_only_are_taken_if_their_cells_agree(registry: Registry) -> None:
    shared = torch.ones(4).bfloat16()
    registry.push(0, {"a": shared, "b": shared})
    apart = {"a": torch.zeros(4).bfloat16(), "b": torch.zeros(4).bfloat16()}
    registry.pull(0, into=apart)
    assert apart["a"].tolist() == apart["b"].tolist() == [1.0] * 4
    registry.push(1, {"a": shared, "b": torch.zeros(4).bfloat16()})
    with pytest.raises(LayoutMismatch, match=r"'a' and 'b' are one in the model, and differ in version 1"):
        registry.pull(1, into={"a": shared, "b": shared})
    assert shared.tolist() == [1.0] * 4
    registry.push(2, {"a": shared + 1, "b": shared + 1})
    assert registry.pull(2, into={"a": shared, "b": shared}).version == 2
    assert shared.tolist() == [2.0] * 4


def test_pushes_that_do_not_wait_keep_the_states_that_they_were_called_with(registry: Registry) -> None:
    model = Policy(seed=1)
    futures, states = [], []
    for step in range(20):
        model.train_on(step)
        states.append(cells(model))
        futures.append(registry.push(step, model, wait=False, metadata={"step": step}))
    results = [future.result() for future in futures]
    assert [(r.version, r.step) for r in results] == [(n, n) for n in range(20)]
    into = worker()
    for version, state in enumerate(states):
        registry.pull(version, into=into)
        assert cells(into) == state
        assert registry.version(version).metadata == {"step": version}


def test_several_runs_are_pushed_and_pulled_at_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def live(number: int) -> None:
        try:
            with pulse_registry.open(str(tmp_path), run=f"run-{number}") as mine:
                model, into = Policy(seed=number), worker()
                for step in range(6):
                    model.train_on(10 * number + step)
                    mine.push(step, model)
                    with pulse_registry.open(str(tmp_path), run=f"run-{number}") as reader:
                        reader.pull("latest", into=into, replace=True)
                    assert cells(into) == cells(model)
        except BaseException as error:  # noqa: BLE001 - told to the test, which raises it
            failures.append(error)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    for number in range(4):
        with pulse_registry.open(str(tmp_path), run=f"run-{number}", create=False) as mine:
            assert [v.step for v in mine.versions()] == list(range(6))


def test_one_registry_serves_many_workers_at_once(registry: Registry) -> None:
    model = Policy(seed=5)
    states = []
    for step in range(8):
        model.train_on(step)
        registry.push(step, model)
        states.append(cells(model))
    failures: list[BaseException] = []

    def serve(number: int) -> None:
        try:
            into = worker()
            for turn in range(12):
                version = (number * 5 + turn * 3) % 8
                registry.pull(version, into=into)
                assert cells(into) == states[version]
        except BaseException as error:  # noqa: BLE001 - told to the test, which raises it
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
