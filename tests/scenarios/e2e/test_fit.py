"""Models that differ from the version in dtype or in ties: what is taken, what is said, and what is noticed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import pulse_registry
from pulse_registry import BaseMismatch, InvalidModel, LayoutMismatch, Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with pulse_registry.open(
        f"memory://{uuid.uuid4().hex}", run="run", push=pulse_registry.PushOptions(keyframe_share=1e9)
    ) as registry:
        yield registry


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().reshape(-1).view(torch.int32).tolist()


def widened(tensor: torch.Tensor) -> list[int]:
    """Return the bits of the same numbers in F32, by arithmetic on each cell alone."""
    cells = [cell & 0xFFFF for cell in tensor.reshape(-1).view(torch.int16).tolist()]
    wide = [cell << 16 if tensor.dtype == torch.bfloat16 else _widened_f16(cell) for cell in cells]
    return [bits - (bits >> 31 << 32) for bits in wide]


def _widened_f16(cell: int) -> int:
    """Widen by the definition of IEEE 754: sign, exponent of 5 bits with bias 15, fraction of 10 bits."""
    sign, exponent, fraction = cell >> 15, cell >> 10 & 31, cell & 1023
    if exponent == 31:  # infinite, or NaN with its payload
        return sign << 31 | 0xFF << 23 | fraction << 13
    if exponent:
        return sign << 31 | exponent - 15 + 127 << 23 | fraction << 13
    if not fraction:
        return sign << 31
    top = fraction.bit_length() - 1  # subnormal in F16, and normal in F32
    return sign << 31 | top - 24 + 127 << 23 | (fraction - (1 << top)) << 23 - top


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_pattern_of_16_bits_is_widened_bit_for_bit_and_taken_back(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    turned = every.flip(0)
    registry = pulse_registry.open(
        f"memory://{uuid.uuid4().hex}", run="run", push=pulse_registry.PushOptions(dtype="keep", keyframe_share=1e9)
    )
    registry.push(0, {"w": every})
    registry.push(1, {"w": turned})
    into = {"w": torch.full((2**16,), 1.2345)}
    registry.pull(0, into=into, cast=True)
    assert bits(into["w"]) == widened(every)
    with registry.stage(1, into=into, cast=True) as staged:
        assert [leg.kind for leg in staged.route.legs] == ["patch"], "what it holds is remembered"
        staged.apply()
        assert bits(into["w"]) == widened(turned)
        staged.undo()
    assert bits(into["w"]) == widened(every)
    assert registry.verify(0, model=into, cast=True).version == 0
    into["w"].view(torch.int32)[777] ^= 1
    with pytest.raises(BaseMismatch, match="not those of version 0"):
        registry.verify(0, model=into, cast=True)
    registry.close()


def test_an_fp32_model_is_told_how_it_takes_a_bf16_version(registry: Registry) -> None:
    registry.push(0, torch.nn.Linear(3, 2).bfloat16())
    model = torch.nn.Linear(3, 2)
    before = bits(model.weight)
    for call in (registry.pull, registry.stage, lambda into: registry.verify(model=into)):
        with pytest.raises(
            LayoutMismatch, match=r"F32 \[2\] in the model and BF16 \[2\] in the version. Pass cast=True"
        ):
            call(into=model)
    assert bits(model.weight) == before


@pytest.mark.parametrize(("stored", "own"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("float32", "float64")])
def test_a_cast_that_is_not_exact_or_not_done_names_the_tensor_both_dtypes_and_what_to_do(
    stored: str, own: str
) -> None:
    with pulse_registry.open(
        f"memory://{uuid.uuid4().hex}", run="run", push=pulse_registry.PushOptions(dtype="keep", keyframe_share=1e9)
    ) as registry:
        registry.push(0, {"layer.w": torch.zeros(3, dtype=getattr(torch, stored))})
        into = {"layer.w": torch.ones(3, dtype=getattr(torch, own))}
        with pytest.raises(
            LayoutMismatch, match=r"'layer.w' is \w+ \[3\] in the model and \w+ .* load\(\) the version"
        ):
            registry.pull(0, into=into, cast=True)
        assert into["layer.w"].tolist() == [1.0] * 3


def test_what_an_optimizer_changed_below_bf16_is_noticed_and_replaced_by_a_fresh_pull(registry: Registry) -> None:
    source = torch.ones(8, dtype=torch.bfloat16)
    registry.push(0, {"w": source})
    source[3] = 2
    registry.push(1, {"w": source})
    into = {"w": torch.empty(8)}
    registry.pull(0, into=into, cast=True)
    into["w"][3] += 1e-5
    assert into["w"].bfloat16().tolist() == [1.0] * 8, "in BF16 nothing is to be seen"
    with pytest.raises(BaseMismatch, match="not those of version 0"):
        registry.verify(0, model=into, cast=True)
    with pytest.raises(BaseMismatch, match=r"'w'.*replace=True"):
        registry.pull(1, into=into, cast=True)
    assert into["w"][3] == 1 + np.float32(1e-5)
    registry.pull(1, into=into, cast=True, replace=True)
    assert registry.verify(1, model=into, cast=True).version == 1


def test_a_restarted_trainer_pulls_into_its_masters_and_pushes_what_it_changes(registry: Registry) -> None:
    registry.push(0, torch.nn.Linear(16, 16))
    masters = torch.nn.Linear(16, 16)
    registry.pull(into=masters, cast=True)
    assert registry.push(1, masters).changed == 0
    with torch.no_grad():
        masters.weight[1, 2] += 1
    assert registry.push(2, masters).changed == 1


def test_a_worker_prefetches_into_a_wider_model(registry: Registry) -> None:
    source = torch.arange(4.0).bfloat16()
    registry.push(0, {"w": source})
    into = {"w": torch.empty(4)}
    with registry.prefetch(into=into, cast=True) as prefetch:
        staged = prefetch.take(timeout=60)
        assert staged is not None
        staged.apply()
    assert bits(into["w"]) == widened(source)


# -- ties --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tied(registry: Registry) -> torch.Tensor:
    """Push two versions in which ``head`` is tied to ``embedding``; return that tensor."""
    shared = torch.arange(6.0).bfloat16()
    registry.push(0, {"embedding": shared, "head": shared})
    shared[2] = -1
    registry.push(1, {"embedding": shared, "head": shared})
    return shared


def test_replicas_of_a_tied_tensor_are_all_written_and_all_checked(registry: Registry, tied: torch.Tensor) -> None:
    into = {name: torch.zeros(6).bfloat16() for name in ("embedding", "head")}
    registry.pull(0, into=into)
    into["head"][2] += 1
    with pytest.raises(BaseMismatch, match="not those of version 0"):
        registry.verify(0, model=into)
    with pytest.raises(BaseMismatch, match="'embedding'"):
        registry.pull(1, into=into)
    registry.pull(1, into=into, replace=True)
    assert into["head"].tolist() == into["embedding"].tolist() == tied.tolist()
    assert registry.verify(1, model=into).version == 1


def test_a_replica_that_can_not_be_written_is_named(registry: Registry, tied: torch.Tensor) -> None:
    with pytest.raises(InvalidModel, match="'head' is expanded"):
        registry.pull(into={"embedding": torch.zeros(6).bfloat16(), "head": torch.zeros(1).bfloat16().expand(6)})


def test_replicas_that_share_some_memory_are_refused(registry: Registry, tied: torch.Tensor) -> None:
    memory = torch.zeros(8).bfloat16()
    with pytest.raises(LayoutMismatch, match=r"'embedding' and 'head'.*same memory"):
        registry.pull(into={"embedding": memory[:6], "head": memory[2:]})
    assert not memory.any()


def test_tensors_of_different_dtypes_in_the_version_are_not_one_in_a_model(registry: Registry) -> None:
    with pulse_registry.open(
        f"memory://{uuid.uuid4().hex}", run="run", push=pulse_registry.PushOptions(dtype="keep", keyframe_share=1e9)
    ) as kept:
        kept.push(0, {"a": torch.zeros(3).bfloat16(), "b": torch.zeros(3)})
        memory = torch.ones(3)
        with pytest.raises(LayoutMismatch, match="'b' and 'a' are one in the model, and F32 and BF16 in the version"):
            kept.pull(0, into={"a": memory, "b": memory}, cast=True)
        assert memory.tolist() == [1.0] * 3


def test_tensors_that_are_one_in_the_model_follow_patches_as_long_as_these_change_both_alike(
    registry: Registry,
) -> None:
    apart = {name: torch.arange(6.0).bfloat16() for name in ("a", "b")}
    registry.push(0, apart)
    apart["a"][2] = -1
    registry.push(1, apart)
    apart["b"][2] = -2
    registry.push(2, apart)
    apart["b"][2] = -1
    registry.push(3, apart)
    memory = torch.zeros(6).bfloat16()
    into = {"a": memory, "b": memory}
    registry.pull(0, into=into)
    for version in (1, 2):
        with pytest.raises(LayoutMismatch, match=f"'a' and 'b' are one in the model, and differ in version {version}"):
            registry.pull(version, into=into)
        assert memory.tolist() == [0, 1, 2, 3, 4, 5]
    with registry.stage(3, into=into) as staged:
        assert {leg.kind for leg in staged.route.legs} == {"patch"}
        staged.apply()
        assert memory.tolist() == [0, 1, -1, 3, 4, 5]
        staged.undo()
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_keyframe_on_the_way_replaces_replicas_and_wider_tensors_whole() -> None:
    rng = np.random.default_rng(5)
    shared = torch.from_numpy(rng.integers(-(2**15), 2**15, 4000, dtype=np.int16)).view(torch.bfloat16)
    with pulse_registry.open(
        f"memory://{uuid.uuid4().hex}", run="run", push=pulse_registry.PushOptions(keyframe_every=5)
    ) as registry:
        for step in range(6):
            registry.push(step, {"embedding": shared, "head": shared})
            # Every step changes the same cells to anything: the chain then costs more than the keyframe.
            shared[:900] = torch.from_numpy(rng.integers(-(2**15), 2**15, 900, dtype=np.int16)).view(torch.bfloat16)
        registry.close()
        url = registry.url
    with pulse_registry.open(url, run="run") as registry:
        into = {"embedding": torch.empty(4000), "head": torch.empty(4000)}
        registry.pull(0, into=into, cast=True)
        into["head"][3000] += 1  # where no version changes anything
        into["embedding"][3001] *= 1.001
        with registry.stage(5, into=into, cast=True) as staged:
            assert [leg.kind for leg in staged.route.legs][:1] == ["keyframe"]
            staged.apply()
        assert registry.verify(5, model=into, cast=True).version == 5
