"""Engine weights: a version staged beside the engine, applied, taken back; what would be written wrongly is refused."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch

from pulse_registry import AccessDenied, BaseMismatch, InvalidArgument, LayoutMismatch, NotFound, Registry
from pulse_registry.integrations.loader.engine_weights import EngineWeights
from pulse_registry.peers import LocalGroup, LocalPeers
from pulse_registry.store import MemoryStore
from tests.support.ranks import alike, outcomes
from tests.support.registries import quick


class Fused(torch.nn.Module):
    """One parameter of two tensors; ``scaled`` as an engine that keeps one of them in another form."""

    def __init__(self, *, cast: bool = False) -> None:
        super().__init__()
        dtype = torch.float32 if cast else torch.bfloat16
        self.both = torch.nn.Parameter(torch.zeros(8, 4, dtype=dtype), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.both.data.narrow(0, 4 * (name == "up"), 4).copy_(weight)


@pytest.fixture
def store() -> MemoryStore:
    return filled()


def filled(**push: Any) -> MemoryStore:
    """Return a run of versions 0 to 2."""
    store = MemoryStore("engine-weights-" + uuid.uuid4().hex)
    model = {name: torch.full((4, 4), 1.0).bfloat16() for name in ("gate", "up")}
    with quick(store, **push) as registry:
        for step in range(3):
            model["up"][1:3, step] = -float(step)
            registry.push(step, model)
    return store


@pytest.fixture
def loaded(store: MemoryStore) -> Iterator[tuple[EngineWeights, Fused]]:
    """An engine that was loaded from version 0."""
    model = at(store, 0)
    weights = EngineWeights(lambda: quick(store), model, 0)
    yield weights, model
    weights.close()


def at(store: MemoryStore, version: int) -> Fused:
    model, cells = Fused(), {name: torch.zeros(4, 4).bfloat16() for name in ("gate", "up")}
    with quick(store) as registry:
        registry.pull(version, into=cells)
    model.load_weights(cells.items())
    return model


def holds(model: Fused, store: MemoryStore, version: int) -> bool:
    return torch.equal(model.both.view(torch.int16), at(store, version).both.view(torch.int16))


def test_what_is_staged_changes_nothing_until_it_is_applied_and_can_be_taken_back(
    loaded: tuple[EngineWeights, Fused], store: MemoryStore
) -> None:
    weights, model = loaded
    place = model.both.data_ptr()
    weights.stage(1)
    weights.stage("latest")  # takes its place
    assert holds(model, store, 0)
    assert weights.apply().version == weights.version == weights.verify() == 2
    assert holds(model, store, 2)
    assert weights.undo() == weights.version == weights.verify() == 0
    assert holds(model, store, 0)
    assert model.both.data_ptr() == place


def test_an_error_while_it_is_staged_is_raised_by_apply_and_the_weights_stay(
    loaded: tuple[EngineWeights, Fused], store: MemoryStore
) -> None:
    weights, model = loaded
    weights.stage(99)
    with pytest.raises(NotFound, match="99"):
        weights.apply()
    assert weights.verify() == 0
    with pytest.raises(InvalidArgument, match="nothing is staged"):
        weights.apply()
    with pytest.raises(InvalidArgument, match="nothing was applied"):
        weights.undo()
    weights.stage(1)
    weights.apply()
    assert holds(model, store, 1)


def test_a_parameter_that_was_replaced_is_not_written_beside(
    loaded: tuple[EngineWeights, Fused], store: MemoryStore
) -> None:
    weights, model = loaded
    weights.stage(1)
    model.both.data = model.both.data.clone()
    with pytest.raises(InvalidArgument, match="both is not where it was"):
        weights.apply()
    assert holds(model, store, 0)


def test_another_version_than_the_engine_was_loaded_from_is_refused(store: MemoryStore) -> None:
    with pytest.raises(BaseMismatch, match=r"not those of version 1: 'up' differ.*packed"):
        EngineWeights(lambda: quick(store), at(store, 0), 1)


def test_what_the_engine_keeps_in_another_form_is_named(store: MemoryStore) -> None:
    packed = at(store, 0)
    packed.both.data[:4] = packed.both.data[:4].flip(1) * 2
    with pytest.raises(BaseMismatch, match="'gate' differ") as caught:
        EngineWeights(lambda: quick(store), packed, 0)
    assert caught.value.tensors == ("gate",)
    with pytest.raises(LayoutMismatch, match=r"'gate' can't be changed in place: .*casts.*, and 1 more"):
        EngineWeights(lambda: quick(store), Fused(cast=True), 0)


def test_closed_it_has_given_back_what_was_staged(store: MemoryStore) -> None:
    weights = EngineWeights(lambda: quick(store), at(store, 0), 0)
    weights.stage(1)
    weights.close()
    weights.close()
    for call in (weights.stage, weights.apply, weights.undo, weights.verify):
        with pytest.raises(InvalidArgument, match="closed"):
            call()


def test_another_version_than_the_one_that_was_staged_is_not_applied(
    loaded: tuple[EngineWeights, Fused], store: MemoryStore
) -> None:
    weights, model = loaded
    assert not weights.ready
    weights.stage(2)
    with pytest.raises(InvalidArgument, match="version 2 is staged, and not 1"):
        weights.apply(1)
    assert holds(model, store, 0)
    weights.stage(1)
    assert weights.apply(1).version == 1


def test_a_version_with_a_tensor_more_is_refused(loaded: tuple[EngineWeights, Fused], store: MemoryStore) -> None:
    weights, model = loaded
    with quick(store) as trainer:
        cells = {name: torch.zeros(4, 4).bfloat16() for name in ("gate", "up")}
        trainer.pull(2, into=cells)
        trainer.push(3, cells | {"more": torch.ones(2).bfloat16()})
    weights.stage(3)
    with pytest.raises(LayoutMismatch, match="version 3 has other tensors than version 0"):
        weights.apply()
    assert holds(model, store, 0)
    weights.stage(2)
    weights.apply()
    assert holds(model, store, 2)


def test_what_was_staged_before_an_undo_has_to_be_staged_again(
    loaded: tuple[EngineWeights, Fused], store: MemoryStore
) -> None:
    weights, model = loaded
    weights.stage(1)
    weights.apply()
    weights.stage(2)
    assert weights.undo() == 0
    assert weights.ready
    with pytest.raises(BaseMismatch, match="Stage it again"):
        weights.apply()
    assert holds(model, store, 0)
    weights.stage(2)
    weights.apply()
    assert holds(model, store, 2)


class Half(torch.nn.Module):
    """The rows of both tensors that a rank of two holds, or none of it at all."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.rows = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.bfloat16), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.rows.data.narrow(0, 2 * (name == "up"), 2).copy_(weight.narrow(0, 2 * self.rank, 2))


def half(store: MemoryStore, version: int, rank: int) -> Half:
    model, whole = Half(rank), at(store, version).both.data
    model.rows.data.copy_(torch.cat([whole[2 * rank : 2 * rank + 2], whole[4 + 2 * rank : 6 + 2 * rank]]))
    return model


def on_both_ranks(
    store: MemoryStore, work: Callable[[EngineWeights, Half], Any], holds: Sequence[int], *, host_copy: bool = False
) -> list[Any]:
    """Return what work gives, or raises, on the two ranks of an engine that holds these versions."""
    talk = LocalGroup(2)

    def life(peers: LocalPeers) -> Any:
        rank = peers.rank
        model = half(store, holds[rank], rank)
        # What "latest" means is the first rank's to say.
        named = holds[0] if rank == 0 else "latest"
        opening = functools.partial(quick, store, peers=peers, host_copy=host_copy)
        weights = EngineWeights(opening, model, named, talk.peers(rank))
        try:
            return work(weights, model)
        finally:
            weights.close()

    return outcomes(life, LocalGroup(2))


def same(model: Half, store: MemoryStore, version: int) -> bool:
    return torch.equal(model.rows.view(torch.int16), half(store, version, model.rank).rows.view(torch.int16))


@pytest.fixture
def gaps() -> MemoryStore:
    """A run whose patches can be followed by ranks that hold parts of groups."""
    return filled(coder="gap")


@pytest.mark.parametrize(("coder", "loaded"), [("gap", 0), ("class", 0), ("class", 1)])
def test_ranks_go_forwards_and_backwards_together(coder: str, loaded: int) -> None:
    """Patches of coder `class` need the cells of whole groups, of which the ranks have halves: a host copy has them."""
    store = filled(coder=coder, keyframe_share=1e9)

    def work(weights: EngineWeights, model: Half) -> list[bool]:
        found = [weights.version == loaded]
        for version in (2, 1, 2):
            weights.stage(version)
            weights.apply(version)
            found += [same(model, store, version), weights.verify() == version]
        found += [weights.undo() == 1, same(model, store, 1), weights.verify() == 1]
        weights.stage(2)
        weights.apply()
        return [*found, same(model, store, 2)]

    assert on_both_ranks(store, work, (loaded, loaded), host_copy=coder == "class") == [[True] * 11] * 2


def test_what_fails_on_one_rank_is_raised_on_all_and_changes_none(gaps: MemoryStore) -> None:
    def work(weights: EngineWeights, model: Half) -> tuple[list[str], bool]:
        said, place = [], model.rows.data
        weights.stage(2)
        if model.rank == 1:
            model.rows.data = place.clone()
        with pytest.raises(InvalidArgument) as moved:
            weights.apply()
        said.append(str(moved.value))
        model.rows.data = place
        if model.rank == 1:
            model.rows.data[0, 0] += 1
        with pytest.raises(BaseMismatch) as other:
            weights.verify()
        said.append(str(other.value))
        if model.rank == 1:
            model.rows.data[0, 0] -= 1
        unchanged = same(model, gaps, 0)
        weights.stage(2)
        weights.apply()
        return said, unchanged and same(model, gaps, 2)

    first, second = on_both_ranks(gaps, work, (0, 0))
    assert first == second
    (moved, other), right = first
    assert moved.startswith("rank 1: parameter rows is not where it was")
    assert other.startswith("rank 1: the slices are not those of version 0")
    assert right


def test_a_rank_that_holds_another_version_lets_none_be_opened(gaps: MemoryStore) -> None:
    errors = on_both_ranks(gaps, lambda weights, model: None, (0, 2))
    assert alike(errors, BaseMismatch).startswith("rank 1: the slices are not those of version 0")


def test_a_run_that_one_rank_cannot_open_is_open_on_none(gaps: MemoryStore) -> None:
    talk = LocalGroup(2)

    def life(peers: LocalPeers) -> Any:
        def opened() -> Registry:
            if peers.rank == 1:
                raise AccessDenied("no key")
            return quick(gaps, peers=peers)

        return EngineWeights(opened, half(gaps, 0, peers.rank), 0, talk.peers(peers.rank))

    assert alike(outcomes(life, LocalGroup(2)), AccessDenied) == "rank 1: no key"


def test_ranks_that_hold_parts_of_groups_are_told_how_to_push() -> None:
    """The coder `class` needs the cells of whole groups; patches of it are refused, and what to do is said."""
    store = filled(coder="class", keyframe_share=1e9)

    def work(weights: EngineWeights, model: Half) -> bool:
        weights.stage(2)
        with pytest.raises(NotFound, match="gap"):
            weights.apply()
        return same(model, store, 0)

    assert on_both_ranks(store, work, (0, 0)) == [True, True]
