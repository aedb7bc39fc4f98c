"""The compactor attaches what the ladder lacks, and nothing that is wrong, whatever fails under it."""

from __future__ import annotations

import errno
import itertools
import math
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from pulse_registry.cache import CacheFolder
from pulse_registry.compaction import Attached, CompactOptions, local_copy, temp_patch
from pulse_registry.compaction import compactor as compactor_module
from pulse_registry.compaction.compactor import TRIES
from pulse_registry.compaction.ladder import spans_into
from pulse_registry.compaction.local_copy import LocalCopy
from pulse_registry.context import Context
from pulse_registry.errors import AccessDenied, Fenced, InvalidArgument, PulseError, StoreUnavailable, Untrusted
from pulse_registry.events import Event, EventKind
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.options import Options
from pulse_registry.pull import fetch, group_stream
from pulse_registry.pull.route import plan
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.signing import SigningKey, Trust
from pulse_registry.store import FileStore, PrefixStore, Store
from pulse_registry.store.prices import Prices
from pulse_registry.store.wrappers.wrapper import WrapperStore
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import (
    RUN,
    Model,
    bits,
    change,
    check_store,
    copied,
    failing,
    garbage,
    quick,
    restored,
    small_model,
    state_of,
    without_pauses,
)
from tests.support.waiting import HANG_S, until
from tests.unit.compaction.runs import NEVER, compact, finish, merged, pushed


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with small_groups():
        yield


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[LocalCopy]:
    """The local copy of the weights of each compactor that is made."""
    made: list[LocalCopy] = []

    def make(context: Context) -> LocalCopy:
        made.append(LocalCopy(context))
        return made[-1]

    monkeypatch.setattr(compactor_module, "LocalCopy", make)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("coder", ["gap", "class"])
def test_a_worker_gets_from_any_version_to_any_other_with_few_objects(coder: str) -> None:
    store = DictStore()
    model, states = pushed(store, 36, coder=coder)
    made = compact(store)
    assert {(done.base, done.target) for done in made} == merged(store) >= {(0, 4), (4, 8), (0, 16), (16, 32)}
    assert check_store(store) == set()
    state = state_of(store)
    assert {patch.coder for patch in state.patches} == {coder}
    for base, target in [(0, 35), (3, 33), (15, 17), (7, 31)]:
        route = plan(state, target, have=base, prices=Prices(1, 0))
        if coder == "gap":
            assert route.objects <= 2 * math.log2(target - base) + 2
        with quick(store) as worker:
            weights = garbage(model)
            worker.pull(base, into=weights)
            worker.pull(target, into=weights)
            assert bits(weights) == states[target]


def test_a_second_run_finds_nothing_to_do() -> None:
    store = DictStore()
    pushed(store, 17)
    assert compact(store)
    before = dict(store.objects)
    assert compact(store) == []
    assert store.objects == before


def test_versions_without_a_change_between_them_merge_to_an_empty_patch() -> None:
    store = DictStore()
    model, states = pushed(store, 9, still=True)
    compact(store)
    assert {patch.changed for patch in state_of(store).patches} == {0}
    assert (0, 4) in merged(store)
    assert restored(store, model, 8) == states[8]


@pytest.mark.parametrize("model", [{"a": np.zeros((0, 3), np.uint8)}, {"a": np.ones(5, "u2"), "z": np.zeros(0, "u1")}])
def test_a_model_with_tensors_without_cells_is_compacted_too(model: Model) -> None:
    store = DictStore()
    with quick(store, keyframe_share=NEVER) as registry:
        for version in range(5):
            registry.push(version, model)
    compact(store)
    assert (0, 4) in merged(store)
    assert check_store(store) == set()


@pytest.mark.slow
@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
def test_a_compactor_that_dies_at_any_store_call_is_followed_by_one_that_completes_its_work(action) -> None:
    first = DictStore()
    model, states = pushed(first, 5)
    whole, outage = failing(copied(first))
    compact(whole)
    calls, expected = len(outage.log), merged(whole)
    for nth in range(1, calls + 1):
        inner = copied(first)
        store, outage = failing(inner)
        outage.arm(nth, action, lasting=action == "fail_before")
        try:
            compact(store)
        except PulseError:
            assert outage.fired
        check_store(inner)
        outage.heal()
        compact(store)
        check_store(inner)
        assert merged(inner) == expected
        with quick(inner) as worker:
            weights = garbage(model)
            for version in (0, 4):
                worker.pull(version, into=weights)
                assert bits(weights) == states[version]


def test_several_at_work_on_one_run_corrupt_nothing_and_seldom_do_work_twice() -> None:
    store = DictStore()
    pushed(store, 17)
    with quick(store) as one, quick(store) as two:
        compactors = [one.compactor(), two.compactor()]
        made = [done for _ in range(40) for compactor in compactors if (done := compactor.step()) is not None]
        for compactor in compactors:
            compactor.close()
    assert check_store(store) == set()
    assert len(made) == len(merged(store))


def test_what_another_has_attached_meanwhile_is_not_attached_again() -> None:
    store = DictStore()
    pushed(store, 5)

    def faster() -> None:
        assert compact(store)

    with quick(_Before(store, "objects/patch", faster)) as registry:
        assert finish(registry.compactor()) == []
    assert len([patch for patch in state_of(store).patches if patch.base == 0 and patch.target == 4]) == 1


def test_nothing_is_attached_to_a_version_that_is_retired_meanwhile() -> None:
    store, told = DictStore(), list[Event]()
    pushed(store, 5)

    def retire() -> None:
        scoped = PrefixStore(store, RUN)
        LogWriter(scoped, RUN, LogReader(scoped, RUN), utc_now, random_id, "operator").retire(versions=[0])

    with without_pauses(retries=False):
        registry = Registry(_Before(store, "objects/patch", retire), RUN, Options(on_event=told.append))
    with registry:
        assert finish(registry.compactor()) == []
    assert (0, 4) not in merged(store)
    assert told == []


def test_a_compactor_that_may_not_write_says_so_at_once() -> None:
    store = DictStore()
    pushed(store, 9)

    def refuse() -> None:
        raise AccessDenied("read only")

    with quick(_Before(store, "objects/patch", refuse)) as registry:
        compactor = registry.compactor()
        with pytest.raises(AccessDenied):
            compactor.step()
        compactor.close()


def test_a_full_disk_is_an_event_and_the_work_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = DictStore(), list[Event]()
    model = small_model()
    with without_pauses(retries=False):
        options = PushOptions(dtype="keep", keyframe_share=NEVER, coder="gap")
        registry = Registry(store, RUN, Options(push=options, on_event=told.append))
    with registry:
        for version in range(5):
            registry.push(version, model)
        compactor = registry.compactor()
        with monkeypatch.context() as patched:

            def full(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patched.setattr(local_copy, "reserve", full)
            for version in range(5, 5 + TRIES + 1):
                assert compactor.step() is None
                registry.push(version, model)
        assert {event.kind for event in told} == {EventKind.COMPACTION_FAILED}
        assert "No space left" in told[-1].message
        assert {(done.base, done.target) for done in finish(compactor)} >= {(0, 4), (4, 8)}


def test_what_it_attaches_is_signed_and_believed_where_its_key_may_attach(tmp_path) -> None:
    store, trainer, own = DictStore(), SigningKey.generate(), SigningKey.generate()
    trust = Trust([trainer.public, f"{own.public}=attach"], state_dir=tmp_path)
    model = small_model()
    with Registry(
        store, RUN, Options(push=PushOptions(dtype="keep", keyframe_share=NEVER), signer=trainer)
    ) as registry:
        for version in range(6):
            change(model, version)
            registry.push(version, model)
    with Registry(store, RUN, Options(signer=own, trust=trust)) as registry:
        assert [(done.base, done.target) for done in finish(registry.compactor())] == [(0, 4)]
    with Registry(store, RUN, Options(trust=trust)) as worker:
        weights = garbage(model)
        worker.pull("latest", into=weights)
    assert bits(weights) == bits(model)
    with Registry(store, RUN, Options(signer=SigningKey.generate(), trust=trust)) as registry:
        compactor, before = registry.compactor(CompactOptions(keyframe_every=1)), {*store.objects}
        with pytest.raises(Untrusted):
            compactor.step()
        compactor.close()
    assert {*store.objects} == before, "it is told before the work"


def test_it_reads_past_the_node_s_cache(tmp_path) -> None:
    store = DictStore()
    pushed(store, 6)
    with Registry(store, RUN, Options(cache=CacheFolder(tmp_path / "cache", 1 << 20))) as registry:
        assert len(finish(registry.compactor())) == 1
    assert not list((tmp_path / "cache").glob("[0-9a-f]*"))


@pytest.mark.parametrize("options", [{"compact": "outline"}])
def test_there_is_no_other_way_to_compact(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="compact is 'outline'"):
        quick(DictStore(), **options)


class _Before(WrapperStore):
    """Does something once, before the first put below a folder of the run."""

    def __init__(self, store: Store, folder: str, action) -> None:
        super().__init__(store)
        self._folder, self._action = f"{RUN}/{folder}", action

    def put(self, key, data, *, if_absent: bool = False) -> None:
        if key.startswith(self._folder) and self._action is not None:
            action, self._action = self._action, None
            action()
        self._store.put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_a_damaged_patch_is_part_of_nothing_that_is_attached(coder: str) -> None:
    store, told = DictStore(), list[Event]()
    model, states = pushed(store, 13, coder=coder)
    damaged = next(patch.object.key for patch in state_of(store).patches if patch.target == 6)
    key = f"{RUN}/{damaged}"
    store.objects[key] = store.objects[key][:-1] + bytes([store.objects[key][-1] ^ 1])
    compact(store, told=told)
    assert {pair for pair in merged(store) if pair[0] < 6 <= pair[1]} == set()
    assert (0, 4) in merged(store)
    assert EventKind.COMPACTION_FAILED in {event.kind for event in told}
    assert damaged in {event.key for event in told}
    assert restored(store, model, 5) == states[5]


def test_a_damaged_block_is_gone_around_where_its_parts_are_whole() -> None:
    store, told = DictStore(), list[Event]()
    model, states = pushed(store, 17)
    with quick(store) as registry:
        compactor = registry.compactor()
        while (8, 12) not in merged(store):
            assert compactor.step() is not None
        compactor.close()
    damaged = next(patch.object.key for patch in state_of(store).patches if (patch.base, patch.target) == (8, 12))
    store.delete(f"{RUN}/{damaged}")
    compact(store, told=told)
    assert (0, 16) in merged(store)
    assert EventKind.COMPACTION_FAILED not in {event.kind for event in told}
    with quick(store) as worker:
        weights = garbage(model)
        worker.pull(0, into=weights)
        worker.pull(16, into=weights)
    assert bits(weights) == states[16]


def test_a_keyframe_whose_cells_change_while_it_is_written_is_not_attached(
    copies: list[LocalCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written = DictStore(), list[int]()
    model, states = pushed(store, 6)
    write = compactor_module.write_keyframe

    def disturbed(store: Store, geometry, version: int, write_id: str, cells_of, **more):
        if not written:
            last = [array for array in copies[-1].weights.arrays if array.size][-1]
            last.reshape(-1)[-1] ^= 1  # after the check of all cells
        written.append(version)
        return write(store, geometry, version, write_id, cells_of, **more)

    monkeypatch.setattr(compactor_module, "write_keyframe", disturbed)
    with quick(store) as registry:
        compactor = registry.compactor(CompactOptions(keyframe_every=5))
        copies[-1].move_to(registry.state(), 5)
        finish(compactor)
    assert written == [5, 5], "the first was not attached"
    assert len(state_of(store).keyframes_of(5)) == 1
    assert restored(store, model, 5) == states[5]


def test_work_that_fails_is_tried_again_after_new_versions_and_then_left() -> None:
    store, told = DictStore(), list[Event]()
    model = small_model()
    with without_pauses(retries=False):
        options = PushOptions(dtype="keep", keyframe_share=NEVER, coder="gap")
        registry = Registry(store, RUN, Options(push=options, on_event=told.append))
    with registry:
        for version in range(5):
            registry.push(version, model)
        for patch in registry.state().patches:
            store.objects[f"{RUN}/{patch.object.key}"] = b""
        compactor = registry.compactor()
        for tries in (*range(1, TRIES + 1), TRIES):
            for _ in range(2):
                assert compactor.step() is None
            found = [event.message for event in told if event.kind is EventKind.COMPACTION_FAILED]
            assert len(found) == tries
            assert "0 -> 4" in found[-1]
            registry.push(version := version + 1, model)
        compactor.close()


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_a_copy_of_the_weights_that_was_damaged_is_made_anew(coder: str, copies: list[LocalCopy]) -> None:
    store = DictStore()
    model, states = pushed(store, 17, coder=coder)
    with quick(store, backend="numba") as registry:
        compactor = registry.compactor()
        rng = np.random.default_rng(0)
        while compactor.step() is not None:
            for array in copies[-1].weights.arrays:
                flat = array.reshape(-1)
                if flat.size:
                    flat[rng.integers(flat.size)] ^= flat.dtype.type(1)
        compactor.close()
    assert (0, 16) in merged(store)
    for base, target in [(0, 16), (4, 12), (3, 16)]:
        with quick(store) as worker:
            weights = garbage(model)
            worker.pull(base, into=weights)
            worker.pull(target, into=weights)
            assert bits(weights) == states[target]


def test_a_keyframe_is_never_made_of_damaged_weights(copies: list[LocalCopy]) -> None:
    store = DictStore()
    model, states = pushed(store, 6)
    with quick(store) as registry:
        compactor = registry.compactor(CompactOptions(keyframe_every=5))
        assert compactor.step() == Attached("patch", 0, 4, state_of(store).patches_into(4)[-1].size)
        copies[-1].move_to(registry.state(), 5)
        largest = max(copies[-1].weights.arrays, key=lambda array: array.size)
        largest.reshape(-1)[0] ^= 1
        made = compactor.step()
        assert made is not None
        assert (made.kind, made.target) == ("keyframe", 5)
        compactor.close()
    keyframe = state_of(store).keyframe(5)
    assert keyframe is not None
    assert restored(store, model, 5) == states[5]


def test_keyframes_follow_their_policy() -> None:
    store = DictStore()
    model, states = pushed(store, 8)
    made = compact(store, CompactOptions(keyframe_every=3))
    assert [done.target for done in made if done.kind == "keyframe"] == [7]
    assert restored(store, model, 7) == states[7]
    assert check_store(store) == set()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(
    tmp_path, copies: list[LocalCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fetch, group_stream):
        monkeypatch.setattr(module, "RANGE_BYTES", 1 << 15)
    monkeypatch.setattr(fetch, "_BEGINNINGS_BYTES", 1 << 16)
    monkeypatch.setattr(fetch, "_LEAST_BEGINNING", 1 << 14)
    monkeypatch.setattr(temp_patch, "_CHUNK", 1 << 15)
    peaks = {cells: _peak(tmp_path / str(cells), cells, copies) for cells in (1 << 19, 1 << 21)}
    # How many groups are under way at once is the threads' own affair: it moves a peak by a few tenths.
    assert peaks[1 << 21] < 2 * peaks[1 << 19], peaks
    assert peaks[1 << 21] < 4 << 20, "the weights; the patches are larger"


def _peak(folder, cells: int, copies: list[LocalCopy]) -> int:
    """Return the most memory that merging four patches takes, of half of the cells each, in groups of 64 KiB."""
    rng, model = np.random.default_rng(0), {"w": np.zeros(cells, np.uint16)}
    options = PushOptions(dtype="keep", keyframe_share=NEVER)
    with small_groups(1 << 16), Registry(FileStore(folder), RUN, Options(push=options)) as registry:
        for version in range(5):
            registry.push(version, model)
            model["w"][rng.integers(0, cells, cells // 2)] += 1
        compactor = registry.compactor()
        copies[-1].move_to(registry.state(), 4)  # what is allocated once is no part of it
        tracemalloc.start()
        assert compactor.step() is not None
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        compactor.close()
    return peak


def test_inline_the_trainer_s_own_process_makes_the_ladder() -> None:
    store = DictStore()
    model = small_model()
    with quick(store, compact="inline", keyframe_share=NEVER) as registry:
        for version in range(9):
            change(model, version)
            registry.push(version, model)
        until(lambda: merged(store) >= {(0, 4), (4, 8)})
    assert check_store(store) == set()
    assert restored(store, model, 8) == bits(model)


def test_a_trainer_goes_on_whatever_happens_to_its_compactor(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([StoreUnavailable("down"), SystemExit("not ours"), RuntimeError("a bug")])

    stepped = threading.Semaphore(0)

    def fail(self: object) -> None:
        stepped.release()
        raise next(failures, AccessDenied("never"))

    monkeypatch.setattr(compactor_module.Compactor, "step", fail)
    store, model, told = DictStore(), small_model(), []
    with quick(store, compact="inline", on_event=told.append) as registry:
        for version in range(5):
            change(model, version)
            registry.push(version, model)
            assert stepped.acquire(timeout=HANG_S)
    registry.close()
    assert restored(store, model, 4) == bits(model)
    said = [event.message.rpartition("push: ")[2] for event in told if event.kind == EventKind.COMPACTION_FAILED]
    assert said == ["down", "RuntimeError: a bug", "never", "never"]


def test_the_ladder_of_thousands_of_versions_has_no_version_that_ends_more_than_a_few_blocks() -> None:
    counts = [len(spans_into(target)) for target in range(1, 4097)]
    assert sum(counts) < 1.2 * len(counts)
    assert max(counts) < 20
    assert list(itertools.islice(counts, 4)) == [0, 1, 0, 2]


def test_a_compactor_of_a_run_that_has_moved_stops_before_it_does_anything() -> None:
    store = DictStore()
    pushed(store, 9)
    scoped = PrefixStore(store, RUN)
    LogWriter(scoped, RUN, LogReader(scoped, RUN), utc_now, random_id, "operator").move("s3://bucket/eu", random_id())
    before = dict(store.objects)
    with pytest.raises(Fenced, match="moved it to s3://bucket/eu"):
        compact(store)
    assert store.objects == before
