"""Slices when something goes wrong: writes that are cut off, versions that go, ranks that fail, or hold others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pulse_registry import BaseMismatch, InvalidArgument, RetentionPolicy, Slice
from pulse_registry.cache import CacheFolder
from pulse_registry.errors import Gone, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.format.sparse_update import HostUpdate, SparseUpdate
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.pull.destination import HostDestination
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, PrefixStore, Store, WrapperStore
from pulse_registry.testing import CountingStore, FaultStore
from pulse_registry.testing.fault import Fault
from pulse_schemas import Lease
from tests.support.groups import small_groups
from tests.support.ranks import alike, on_ranks, outcomes
from tests.support.records import DictStore
from tests.support.registries import RUN, quick, settle
from tests.support.slices import held, put, wanted
from tests.support.waiting import until

Model = dict[str, npt.NDArray[Any]]
NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0)


class Cut(BaseException):
    """The end of a write before its end."""


def model_at(version: int) -> Model:
    rng = np.random.default_rng(5)
    state = {name: rng.integers(0, 0x4000, (12, 16), np.uint16) for name in "vw"}
    for _ in range(version):
        for array in state.values():
            array.reshape(-1)[rng.integers(0, array.size, 40)] ^= 1
    return state


@pytest.fixture
def store() -> Iterator[DictStore]:
    made = DictStore()
    with small_groups(64):
        with quick(made, coder="gap", keyframe_share=1e9) as trainer:
            for version in range(5):
                trainer.push(version, model_at(version))
        yield made


def ranks_of(count: int = 2) -> list[dict[str, Any]]:
    """Return ranks that hold the columns of one tensor and the rows of the other, as the last of its copies does."""
    wide, high = 16 // count, 12 // count
    return [
        {
            "v": Slice(np.zeros((12, wide), np.uint16), of=(12, 16), at=(0, wide * n)),
            "w": Slice(np.zeros((high, 16), np.uint16), of=(12, 16), at=(high * n, 0)),
        }
        for n in range(count)
    ]


def holds(rank: dict[str, Any], version: int) -> bool:
    return held(rank) == wanted(rank, model_at(version))


@contextmanager
def cutting(verb: str, rank: dict[str, Any]) -> Iterator[list[int]]:
    """Let the next ``apply``, ``undo`` or ``filling`` of a rank's cells end in the midst; yields where it did."""
    plain, cut = getattr(HostDestination, verb), list[int]()
    room = rank["v"].tensor

    def mine(destination: HostDestination) -> bool:
        arrays = destination.weights.arrays
        return not cut and any(np.shares_memory(array, room) for array in arrays)

    def half(destination: HostDestination, changes: HostUpdate) -> None:
        if not mine(destination) or not changes.groups:
            plain(destination, changes)
            return
        first = changes.groups[0]
        at = len(first.index) // 2
        part = SparseUpdate(first.group, first.index[:at], first.old[:at], first.new[:at])
        plain(destination, HostUpdate((part, *changes.groups[1 : len(changes.groups) // 2])))
        cut.append(at)
        raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostDestination, verb, half)
        yield cut
    assert cut


@pytest.mark.parametrize("target", [1, 2, 3, 4])
def test_slices_whose_change_was_cut_off_are_mended_by_the_next_pull_wherever_it_goes(
    store: DictStore, target: int
) -> None:
    rank = ranks_of()[1]
    with quick(store, undo_share=100.0) as registry:
        registry.pull(2, into=rank)
        with cutting("apply", rank), pytest.raises(Cut):
            registry.pull(3, into=rank)
        assert not holds(rank, 2)
        assert not holds(rank, 3)
        assert registry.pull(target, into=rank).version == target
        assert holds(rank, target)
        assert registry.verify(target, model=rank).version == target


def test_slices_whose_undo_was_cut_off_are_mended_too(store: DictStore) -> None:
    rank = ranks_of()[1]
    with quick(store) as registry:
        registry.pull(2, into=rank)
        with registry.stage(3, into=rank) as staged:
            staged.apply()
            with cutting("undo", rank), pytest.raises(Cut):
                staged.undo()
        assert not holds(rank, 2)
        assert not holds(rank, 3)
        registry.pull(4, into=rank)
        assert holds(rank, 4)


def test_slices_that_a_keyframe_had_begun_to_fill_hold_nothing_known(
    store: DictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = ranks_of()[1]
    plain = HostDestination.filling

    @contextmanager
    def filling(destination: HostDestination) -> Iterator[Callable[..., None]]:
        with plain(destination) as write:

            def once(group: Any, cells: Any) -> None:
                write(group, cells)
                raise Cut

            yield once

    with quick(store) as registry:
        monkeypatch.setattr(HostDestination, "filling", filling)
        with pytest.raises(Cut):
            registry.pull(2, into=rank)
        monkeypatch.undo()
        assert registry.pull(3, into=rank).version == 3
        assert holds(rank, 3)


@pytest.mark.parametrize("target", [2, 3, 4])
def test_a_rank_whose_change_was_cut_off_comes_along_with_the_others_again(store: DictStore, target: int) -> None:
    dealt = ranks_of()

    def serve(registry: Registry, rank: int) -> str:
        registry.pull(2, into=dealt[rank])
        if rank == 1:
            with cutting("apply", dealt[1]), pytest.raises(Cut):
                registry.pull(3, into=dealt[1])
        else:
            registry.pull(3, into=dealt[0])
            assert holds(dealt[0], 3)
        return registry.pull(target, into=dealt[rank]).checked

    assert on_ranks([store] * 2, serve) == ["state"] * 2
    assert all(holds(rank, target) for rank in dealt)


def test_ranks_that_hold_other_versions_come_to_the_same_one(store: DictStore) -> None:
    dealt = ranks_of(4)

    def serve(peers: LocalPeers) -> list[str]:
        with quick(store) as alone:
            alone.pull(peers.rank, into=dealt[peers.rank])
            alone.verify(peers.rank, model=dealt[peers.rank])
        with quick(store, peers=peers, undo_share=100.0 * (peers.rank % 2)) as registry:
            registry.verify(peers.rank, model=dealt[peers.rank])
            return [registry.pull(version, into=dealt[peers.rank]).checked for version in (4, 3, 2, 4, 0)]

    assert outcomes(serve, LocalGroup(4)) == [["state"] * 5] * 4
    assert all(holds(rank, 0) for rank in dealt)


def test_weights_that_were_shown_to_hold_a_version_are_pulled_into_by_patches_and_count_what_they_should(
    store: DictStore,
) -> None:
    dealt = [*ranks_of(), ranks_of()[1]]
    for rank in dealt:
        put(rank, model_at(2))
    stores = [CountingStore(store) for _ in dealt]

    def serve(registry: Registry, rank: int) -> tuple[str, bool]:
        assert registry.verify(2, model=dealt[rank]).version == 2
        stores[rank].reset()
        checked = registry.pull(3, into=dealt[rank]).checked
        by_keyframe = any("/keyframe/" in key for _, key in stores[rank].ledger)
        with pytest.raises(BaseMismatch, match="not those of version 2"):
            registry.verify(2, model=dealt[rank])
        return checked, by_keyframe

    assert on_ranks(stores, serve) == [("state", False)] * 3
    assert all(holds(rank, 3) for rank in dealt)


def test_a_version_that_is_staged_beside_serving_is_applied_and_undone_on_all_ranks_or_on_none(
    store: DictStore,
) -> None:
    dealt = ranks_of()

    def serve(registry: Registry, rank: int) -> tuple[str, ...]:
        registry.pull(0, into=dealt[rank])
        with registry.stage(2, into=dealt[rank]) as staged:
            assert holds(dealt[rank], 0), "to stage changes nothing"
            staged.apply()
            staged.apply()
            assert holds(dealt[rank], 2)
            staged.undo()
            staged.undo()
            assert holds(dealt[rank], 0)
            staged.apply()
            if rank:
                staged.discard()
            with pytest.raises(InvalidArgument) as undone:
                staged.undo()
            assert holds(dealt[rank], 2), "one can't take it back any more, so none does"
        with registry.stage(3, into=dealt[rank], replace=True) as staged:
            staged.apply()
            with pytest.raises(InvalidArgument) as kept:
                staged.undo()
        return str(undone.value), str(kept.value)

    one, other = on_ranks([store] * 2, serve)
    assert one == other
    assert "rank 1: the staged version 2 was discarded" in one[0]
    assert "rank 0: the weights were replaced whole" in one[1]
    assert all(holds(rank, 3) for rank in dealt)


def test_where_one_rank_can_not_stage_none_has_anything_staged_and_the_next_call_does(store: DictStore) -> None:
    dealt, down = ranks_of(), [False]
    faulty = FaultStore(store, [Fault("fail_before", matches=lambda verb, key: down[0] and "/objects/" in key)])

    def serve(registry: Registry, rank: int) -> str:
        registry.pull(0, into=dealt[rank])
        if rank:
            down[0] = True
        with pytest.raises(StoreUnavailable) as raised:
            registry.stage(1, into=dealt[rank])
        assert holds(dealt[rank], 0)
        if rank:
            down[0] = False
        with registry.stage(1, into=dealt[rank]) as staged:
            staged.apply()
        return str(raised.value)

    one, other = on_ranks([store, faulty], serve)
    assert one == other
    assert one.startswith("rank 1: ")
    assert all(holds(rank, 1) for rank in dealt)


def test_threads_pull_slices_of_their_own_and_the_same_ones_with_one_registry(store: DictStore) -> None:
    dealt = [*ranks_of(), *[ranks_of()[0]] * 2]
    with quick(store) as registry, ThreadPoolExecutor(4) as pool:
        for version in (0, 3, 1, 4):
            found = list(pool.map(lambda rank, version=version: registry.pull(version, into=rank).version, dealt))
            assert found == [version] * 4
            assert all(holds(rank, version) for rank in dealt)


def test_a_rank_by_itself_has_the_newest_version_of_its_slices_ready(store: DictStore) -> None:
    rank = ranks_of()[1]
    with quick(store) as registry:
        registry.pull(0, into=rank)
        with registry.prefetch(into=rank, poll_seconds=0.01) as prefetch:
            until(lambda: prefetch.ready == 4)
            staged = prefetch.take()
            assert staged is not None
            with staged:
                assert holds(rank, 0)
                assert staged.apply().checked == "slices"
    assert holds(rank, 4)


@pytest.mark.parametrize("group_bytes", [64, 8])
def test_the_ranks_of_a_host_download_a_patch_once(group_bytes: int, tmp_path: Path) -> None:
    counting = CountingStore(DictStore())
    with small_groups(group_bytes):
        with quick(counting, coder="gap", keyframe_share=1e9) as trainer:
            for version in range(3):
                trainer.push(version, model_at(version))
            [parts, _] = [patch.parts for patch in trainer.state().patches]
        assert (parts is not None) == (group_bytes == 8), "as one object, and in parts"
        counting.reset()
        for rank in ranks_of(4):
            chosen = Options(cache=CacheFolder(tmp_path), compute=ComputeOptions(backend="reference"))
            with Registry(counting, RUN, chosen) as worker:
                for version in range(3):
                    worker.pull(version, into=rank)
            assert holds(rank, 2)
    read = [key for verb, key in counting.ledger if verb == "get" and "/patch/" in key]
    assert len(set(read)) == len(read) >= 2


class Meanwhile(WrapperStore):
    """Does something, once, before the first read of a patch after it was armed."""

    armed = False

    def __init__(self, store: Store, then: Callable[[], object]) -> None:
        super().__init__(store)
        self._then = then

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if self.armed and "/objects/patch/" in key:
            self.armed = False
            self._then()
        return super().get(key, byte_range, max_bytes=max_bytes)


def collected_of(store: Store) -> list[int]:
    """Push version 5, with a keyframe, let the others go but what a lease keeps, and return their numbers."""
    with quick(store, coder="gap", keyframe_share=1e-9) as operator:
        operator.push(5, model_at(5))
        settle(operator)
        retired = operator.gc(NOW, dry_run=False).plan.versions
        operator.gc(NOW, dry_run=False)
    return list(retired)


def test_what_a_rank_with_a_lease_holds_stays_while_others_collect_and_it_pulls_slices(store: DictStore) -> None:
    rank, collected = ranks_of()[1], []

    def collect() -> None:
        collected.extend(collected_of(store))

    collecting = Meanwhile(store, collect)
    chosen = Options(
        name="w",
        push=PushOptions(dtype="keep"),
        pull=PullOptions(lease_seconds=3600, undo_share=0.0),
        compute=ComputeOptions(backend="reference"),
    )
    with Registry(collecting, RUN, chosen) as worker:
        worker.pull(1, into=rank)
        below = PrefixStore(store, RUN)
        until(lambda: [Lease.unseal(below.get(key)).version for key in below.list(keys.LEASES)] == [1])
        collecting.armed = True
        assert worker.pull(into=rank).version == 5, "the newest, and what leads there from version 1, stay"
        assert worker.version(1).version == 1
    assert collected == [2, 3, 4], "what the rank holds stays, and its keyframe"
    assert holds(rank, 5)


@pytest.mark.parametrize("name", [1, "latest"])
def test_a_version_that_goes_while_ranks_pull_it_is_gone_on_all_or_the_next_newest_comes(
    store: DictStore, name: Any
) -> None:
    dealt = ranks_of()

    collecting = Meanwhile(store, lambda: collected_of(store))

    def serve(registry: Registry, rank: int) -> Any:
        registry.pull(0, into=dealt[rank])
        if rank:
            collecting.armed = True
        return registry.pull(name, into=dealt[rank]).version

    found = on_ranks([store, collecting], serve)
    if name == "latest":
        assert found == [5, 5]
        assert all(holds(rank, 5) for rank in dealt)
    else:
        alike(found, Gone)
        assert all(holds(rank, 0) for rank in dealt)
