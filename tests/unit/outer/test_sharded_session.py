"""A member whose model is sharded does, byte for byte, what one with the whole model does, and holds the same bits."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.errors import InvalidArgument, InvalidModel, LayoutMismatch
from pulse_registry.options import Options, PushOptions
from pulse_registry.outer.log import OuterLog
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore, PrefixStore
from tests.support.groups import small_groups
from tests.support.ranks import alike, outcomes
from tests.support.registries import RUN, registry_with
from tests.support.slices import cut_any, held, parts, put, wanted
from tests.support.waiting import NEVER_S

ROUNDS = 3
SETTINGS: dict[str, Any] = {"inner_steps": 1, "quorum": 2}


def made() -> dict[str, Any]:
    """Return float32 tensors of several small groups."""
    rng = np.random.default_rng(5)
    model = {
        name: np.array(rng.standard_normal(shape) * 0.02, np.float32)
        for name, shape in {"a": (6, 11), "b": (40,), "c": (), "d": (3, 5, 4), "e": (70,), "f": (0, 3)}.items()
    }
    return model | {"tied": model["a"]}


def learn(model: dict[str, Any], member: str, round_: int) -> None:
    """Make the inner steps of a member's round, in a whole model or in what a rank holds of it."""
    rng = np.random.default_rng([ord(member), round_])
    for name, tensor in made().items():
        moved = np.array(rng.standard_normal(tensor.shape) * 1e-4 + 3e-5, np.float32)
        for part, at in parts(model[name]) if name in model and name != "tied" else ():
            if at is None:
                part -= moved
            elif isinstance(at, int):
                part -= moved.reshape(-1)[at : at + part.size]
            else:
                part -= moved[tuple(slice(o, o + s) for o, s in zip(at, part.shape, strict=True))]


def opened(store: MemoryStore, peers: LocalPeers | None = None, pushing: LocalPeers | None = None) -> Registry:
    push_peers = None if pushing is None else lambda: pushing
    options = Options(push=PushOptions(dtype="bf16"), peers=peers, push_peers=push_peers)
    return registry_with(store, options, sleep=lambda seconds: time.sleep(min(seconds, 0.01)))


def train(registry: Registry, model: dict[str, Any], member: str, **options: Any) -> None:
    with registry.outer(model, member=member, **{**SETTINGS, **options}) as outer:
        for round_ in range(ROUNDS):
            learn(model, member, round_)
            assert outer.step() is not None


def whole(store: MemoryStore, member: str, **options: Any) -> dict[str, Any]:
    """Live as a member with the whole model; return it."""
    model = made()
    with opened(store) as registry:
        train(registry, model, member, **options)
    return model


def sharded(store: MemoryStore, member: str, ranks: int, seed: int, **options: Any) -> list[dict[str, Any]]:
    """Live as a member of many ranks; return what each holds."""
    dealt = cut_any(made(), ranks, seed)
    for rank in dealt:
        put(rank, made())
    pushes = LocalGroup(ranks, timeout_s=NEVER_S)

    def life(peers: LocalPeers) -> None:
        with opened(store, peers, pushes.peers(peers.rank)) as registry:
            train(registry, dealt[peers.rank], member, **options)

    for future in run_ranks(life, LocalGroup(ranks, timeout_s=NEVER_S)):
        future.result()
    return dealt


def together(store: MemoryStore, *lives: Any) -> list[Any]:
    with ThreadPoolExecutor(len(lives)) as threads:
        return [future.result(NEVER_S) for future in [threads.submit(life, store) for life in lives]]


def told(store: MemoryStore) -> tuple[dict[tuple[int, str], str], list[str]]:
    """Return the hash of each contribution that counts, and the digests of the versions."""
    log = OuterLog(PrefixStore(store, RUN), RUN, whole=True)
    found = {
        (closed.number, name): "" if one.object is None else one.object.blake3
        for closed in log.refresh().closed
        for name, one in closed.contributions.items()
    }
    with opened(store) as registry:
        return found, [version.digest for version in registry.versions()]


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ranks=st.integers(2, 4), values=st.sampled_from(["levels", "float32"]))
def test_a_sharded_member_sends_the_bytes_of_one_with_the_whole_model(seed: int, ranks: int, values: str) -> None:
    stores = [MemoryStore(uuid.uuid4().hex) for _ in range(2)]
    with small_groups():
        twins = together(
            stores[0], lambda store: whole(store, "a", values=values), lambda store: whole(store, "b", values=values)
        )
        model, dealt = together(
            stores[1],
            lambda store: whole(store, "a", values=values),
            lambda store: sharded(store, "b", ranks, seed, values=values),
        )
        assert told(stores[0]) == told(stores[1])
    assert held(model) == held(twins[0])
    for rank in dealt:
        assert held(rank) == wanted(rank, model)


def test_ranks_alone_begin_a_run_and_push_its_versions() -> None:
    stores = [MemoryStore(uuid.uuid4().hex) for _ in range(2)]
    with small_groups():
        model = whole(stores[0], "a", quorum=1)
        dealt = sharded(stores[1], "a", 3, 7, quorum=1)
        assert told(stores[0]) == told(stores[1])
        with opened(stores[1]) as registry:
            found = registry.load(framework="numpy")
    for rank in dealt:
        assert held(rank) == wanted(rank, model)
    assert all(
        (found[name].view(np.uint16) == (tensor.astype(found[name].dtype)).view(np.uint16)).all()
        for name, tensor in model.items()
    )


def on_ranks(store: MemoryStore, dealt: list[dict[str, Any]], life: Any) -> list[Any]:
    """Return what each rank's life gives, of a registry and what the rank holds; or the error that ended it."""
    pushes = LocalGroup(len(dealt), timeout_s=NEVER_S)

    def begun(peers: LocalPeers) -> Any:
        with opened(store, peers, pushes.peers(peers.rank)) as registry:
            return life(registry, dealt[peers.rank], peers.rank)

    return outcomes(begun, LocalGroup(len(dealt), timeout_s=NEVER_S))


def cut(ranks: int, seed: int) -> list[dict[str, Any]]:
    dealt = cut_any(made(), ranks, seed)
    for rank in dealt:
        put(rank, made())
    return dealt


def test_what_is_wrong_on_one_rank_is_raised_by_all_and_they_go_on() -> None:
    store, dealt = MemoryStore(uuid.uuid4().hex), cut(3, 11)

    def life(registry: Registry, mine: dict[str, Any], rank: int) -> Any:
        said = []
        with registry.outer(mine, member="a", inner_steps=1) as outer:
            learn(mine, "a", 0)
            good = {name: [part.copy() for part, _ in parts(value)] for name, value in mine.items()}
            if rank == 1:
                next(part for value in mine.values() for part, _ in parts(value) if part.size).flat[0] = np.nan
            try:
                outer.step()
            except InvalidModel as error:
                said.append(str(error))
            for name, kept in good.items():
                for (part, _), cells in zip(parts(mine[name]), kept, strict=True):
                    part[...] = cells
            assert outer.finish().counts
        return said

    with small_groups():
        found = on_ranks(store, dealt, life)
        assert [len(said) for said in found] == [1, 1, 1]
        assert len({said[0] for said in found}) == 1
        assert "not finite" in found[0][0]
        assert len(told(store)[1]) == 2


def test_ranks_that_were_given_other_options_find_out() -> None:
    store, dealt = MemoryStore(uuid.uuid4().hex), cut(2, 3)

    def life(registry: Registry, mine: dict[str, Any], rank: int) -> Any:
        registry.outer(mine, member="a", inner_steps=1 + rank).join()

    with small_groups():
        message = alike(on_ranks(store, dealt, life), InvalidArgument)
    assert "inner_steps=2" in message
    assert not [*store.list("outer/")]


def test_ranks_save_what_they_have_not_sent_and_go_on_with_it() -> None:
    store, dealt = MemoryStore(uuid.uuid4().hex), cut(3, 17)
    twin = MemoryStore(uuid.uuid4().hex)
    saved: dict[int, Any] = {}

    def before(registry: Registry, mine: dict[str, Any], rank: int) -> None:
        outer = registry.outer(mine, member="a", inner_steps=1)
        outer.join()
        learn(mine, "a", 0)
        outer.step()
        learn(mine, "a", 1)
        saved[rank] = outer.state_dict()  # and the process ends

    def after(registry: Registry, mine: dict[str, Any], rank: int) -> None:
        outer = registry.outer(mine, member="a", inner_steps=1)
        outer.load_state_dict(saved[rank])
        with outer:
            outer.finish()

    def wrong(registry: Registry, mine: dict[str, Any], rank: int) -> None:
        outer = registry.outer(mine, member="a", inner_steps=1)
        outer.load_state_dict(saved[(rank + 1) % 3])
        outer.join()

    with small_groups():
        assert on_ranks(store, dealt, before) == [None] * 3
        assert "begin with as many ranks" in alike(on_ranks(store, dealt, wrong), LayoutMismatch)
        assert on_ranks(store, dealt, after) == [None] * 3
        model = made()
        with opened(twin) as registry, registry.outer(model, member="a", inner_steps=1) as outer:
            for round_ in range(2):
                learn(model, "a", round_)
                outer.step()
        assert told(store) == told(twin)
    for rank in dealt:
        assert held(rank) == wanted(rank, model)


@pytest.mark.slow
def test_ranks_write_checkpoints_and_begin_at_them() -> None:
    store, dealt = MemoryStore(uuid.uuid4().hex), cut(3, 23)

    def life(registry: Registry, mine: dict[str, Any], rank: int) -> int:
        with registry.outer(mine, member="a", inner_steps=1) as outer:
            while outer.round < 40:
                learn(mine, "a", outer.round)
                outer.step()
            return outer.round

    def late(registry: Registry, mine: dict[str, Any], rank: int) -> int:
        with registry.outer(mine, member="b", inner_steps=1) as outer:
            return outer.round

    with small_groups():
        [rounds] = set(on_ranks(store, dealt, life))
        state = OuterLog(PrefixStore(store, RUN), RUN).refresh()
        assert len(state.checkpoints) >= 2
        for key in [*store.list(f"{RUN}/outer/objects/contribution/")]:
            if int(key.rpartition("/")[2][:12]) <= state.checkpoints[-1].round:
                store.delete(key)
        others = cut(2, 29)
        assert on_ranks(store, others, late) == [rounds, rounds]
        model = made()
        with opened(store) as registry, registry.outer(model, member="c", inner_steps=1) as outer:
            assert outer.round == rounds
    for rank in [*dealt, *others]:
        assert held(rank) == wanted(rank, model)
