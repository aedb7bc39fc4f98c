"""Objects that are gone or damaged: a pull takes another route and says so, or leaves the weights as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pulse_kernels import get_backend
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.errors import CorruptObject, Gone, NotFound
from pulse_registry.events import Event, EventKind
from pulse_registry.format.keyframe import write_keyframe
from pulse_registry.format.keys import patch_key
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.pull import failover
from pulse_registry.registry import Registry
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, PrefixStore, Store
from pulse_registry.testing import Fault, FaultStore
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import read_model
from pulse_schemas import KeyframeRef, PatchRef
from tests.support.patches import encode_patch
from tests.support.records import DictStore
from tests.support.registries import (
    RUN,
    Model,
    bits,
    change,
    copied,
    garbage,
    quick,
    settle,
    small_model,
    state_of,
)

VERSIONS = 9


def model_at(version: int) -> Model:
    model = small_model()
    for number in range(version):
        change(model, seed=number, cells=2)
    return model


class Bucket:
    """A run with a keyframe at 0 and at 4, and what a compactor would add to it."""

    def __init__(self) -> None:
        self.store = DictStore()
        with quick(self.store, keyframe_share=1e9, coder="gap") as registry:
            for version in range(VERSIONS):
                registry.push(version, model_at(version))
            self.geometry = Geometry(registry.layout())
        self.attach_keyframe(4)

    @property
    def scoped(self) -> Store:
        return PrefixStore(self.store, RUN)

    def writer(self) -> LogWriter:
        return LogWriter(self.scoped, RUN, LogReader(self.scoped, RUN), utc_now, random_id, "compactor")

    def weights(self, version: int) -> Weights:
        return Weights.into(self.geometry, read_model(model_at(version)))

    def attach_patch(self, base: int, target: int) -> str:
        backend, old, new = get_backend("reference"), self.weights(base), self.weights(target)
        changes = [
            SparseUpdate(group, *backend.diff(new.copy_of(group), old.copy_of(group))) for group in self.geometry.groups
        ]
        file = encode_patch(backend, self.geometry, base, target, changes)
        key = patch_key(base, target, random_id())
        self.scoped.put(key, file.head + b"".join(file.groups))
        self.writer().attach(patches=[file.ref(key)])
        return key

    def attach_keyframe(self, version: int, *, cells_of: int | None = None) -> KeyframeRef:
        weights = self.weights(version if cells_of is None else cells_of)
        cells = weights.copy_of
        ref = write_keyframe(self.scoped, self.geometry, version, random_id(), cells, backend="reference")
        self.writer().attach(keyframes=[ref])
        return ref

    def step(self, target: int) -> str:
        [found] = [patch for patch in state_of(self.store).patches_into(target) if patch.base == target - 1]
        return found.object.key

    def damage(self, key: str, at: int = -1) -> None:
        data = bytearray(self.store.objects[f"{RUN}/{key}"])
        data[at] ^= 1
        self.store.objects[f"{RUN}/{key}"] = bytes(data)

    def remove(self, key: str) -> None:
        del self.store.objects[f"{RUN}/{key}"]

    def worker(self, have: int | None = None) -> tuple[Registry, Model, list[Event]]:
        events: list[Event] = []
        registry = listening(self.store, events)
        into = garbage(model_at(0)) if have is None else model_at(have)
        if have is not None:
            registry.verify(have, model=into)
        return registry, into, events


def listening(store: Store, events: list[Event]) -> Registry:
    return quick(store, on_event=events.append, undo_share=0.0)


@pytest.fixture(scope="module")
def whole() -> Bucket:
    return Bucket()


@pytest.fixture
def bucket(whole: Bucket) -> Bucket:
    bucket = Bucket.__new__(Bucket)
    bucket.store, bucket.geometry = copied(whole.store), whole.geometry
    return bucket


BREAK: dict[str, Callable[[Bucket, str], None]] = {
    "gone": Bucket.remove,
    "its last byte damaged": Bucket.damage,
    "its head damaged": lambda bucket, key: bucket.damage(key, 20),
}


@pytest.mark.parametrize("how", BREAK)
def test_a_merged_patch_that_is_bad_costs_the_chain_and_is_told_of(bucket: Bucket, how: str) -> None:
    merged = bucket.attach_patch(4, 8)
    registry, into, events = bucket.worker(4)
    with registry:
        assert [leg.patch.object.key for leg in registry.route(8, have=4).legs if leg.patch] == [merged]
        BREAK[how](bucket, merged)
        with registry.stage(8, into=into) as staged:
            assert bits(into) == bits(model_at(4))
            result = staged.apply()
    assert bits(into) == bits(model_at(8))
    assert (result.avoided, result.objects) == ((merged,), 4)
    assert [(event.kind, event.run, event.key) for event in events] == [(EventKind.OBJECT_AVOIDED, RUN, merged)]


@pytest.mark.parametrize("how", BREAK)
@pytest.mark.parametrize("file", [0, 1])
def test_a_keyframe_with_a_bad_file_is_avoided_for_an_older_one(bucket: Bucket, how: str, file: int) -> None:
    frame = bucket.attach_keyframe(8)
    key = (frame.index, *frame.shards)[file].key
    BREAK[how](bucket, key)
    registry, into, events = bucket.worker()
    with registry:
        result = registry.pull(8, into=into)
    assert bits(into) == bits(model_at(8))
    assert result.avoided == (key,)
    assert [event.key for event in events] == [key]


def test_an_older_keyframe_of_the_same_version_does_as_well(bucket: Bucket) -> None:
    bucket.remove(bucket.attach_keyframe(4).index.key)
    registry, into, _ = bucket.worker()
    with registry:
        assert registry.pull(4, into=into).objects == 2
    assert bits(into) == bits(model_at(4))


def test_each_bad_object_is_avoided_in_turn_and_told_of_once(bucket: Bucket) -> None:
    bad = [bucket.attach_patch(4, 8), bucket.attach_patch(4, 8), bucket.attach_patch(4, 7)]
    for key in bad:
        bucket.remove(key)
    registry, into, events = bucket.worker(4)
    with registry:
        result = registry.pull(8, into=into)
        assert bits(into) == bits(model_at(8))
    assert sorted(result.avoided) == sorted(event.key or "" for event in events) == sorted(bad)


def test_a_pull_goes_around_so_many_objects_and_no_more(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "MOST_AVOIDED", 2)
    bad = [bucket.attach_patch(4, 8), bucket.attach_patch(4, 8), bucket.attach_patch(4, 7)]
    for key in bad:
        bucket.remove(key)
    registry, into, _ = bucket.worker(4)
    with registry, pytest.raises(NotFound) as caught:
        registry.pull(8, into=into)
    assert caught.value.key in bad
    assert bits(into) == bits(model_at(4))


def test_where_no_route_is_left_the_first_error_is_raised_and_nothing_is_changed_or_told(bucket: Bucket) -> None:
    bucket.damage(merged := bucket.attach_patch(0, 8))
    bucket.remove(bucket.step(8))
    registry, into, events = bucket.worker(0)
    with registry, pytest.raises(CorruptObject, match=merged) as caught:
        registry.pull(8, into=into)
    assert caught.value.key == merged
    assert bits(into) == bits(model_at(0))
    assert all(event.key == merged for event in events), "the last one was not got around"


def test_a_keyframe_with_other_cells_than_were_committed_is_avoided(bucket: Bucket) -> None:
    frame = bucket.attach_keyframe(6, cells_of=3)
    registry, into, _ = bucket.worker()
    with registry:
        assert registry.pull(6, into=into).avoided == (frame.index.key,)
    assert bits(into) == bits(model_at(6))


def test_the_way_back_goes_around_a_bad_object_too(bucket: Bucket) -> None:
    bucket.remove(bucket.step(7))
    registry, into, _ = bucket.worker(8)
    with registry:
        assert registry.pull(6, into=into).avoided == (bucket.step(7),)
    assert bits(into) == bits(model_at(6))


def test_a_trainer_that_takes_over_goes_around_a_bad_object(bucket: Bucket) -> None:
    frame = bucket.attach_keyframe(8)
    bucket.remove(frame.shards[0].key)
    events: list[Event] = []
    with listening(bucket.store, events) as trainer:
        assert trainer.push(9, model_at(9)).kind == "patch"
        settle(trainer)
    assert [event.key for event in events] == [frame.shards[0].key]
    registry, into, _ = bucket.worker()
    with registry:
        registry.pull("latest", into=into)
    assert bits(into) == bits(model_at(9))


def test_verification_and_checkpoint_folders_go_around_a_bad_object(bucket: Bucket, tmp_path: Path) -> None:
    frame = bucket.attach_keyframe(8)
    bucket.remove(frame.shards[0].key)
    registry, _, events = bucket.worker()
    with registry:
        assert registry.verify(8).version == 8
        pulled = pull_checkpoint(registry, 8, into=tmp_path / "out")
    assert (pulled.verified, pulled.avoided) == (True, (frame.shards[0].key,))
    assert [event.key for event in events] == [frame.shards[0].key] * 2


def test_a_checkpoint_folder_of_a_version_that_is_forgotten_is_written_anew(bucket: Bucket, tmp_path: Path) -> None:
    registry, _, _ = bucket.worker()
    with registry:
        assert pull_checkpoint(registry, 3, into=tmp_path / "out").version == 3
        record = bucket.writer().retire(versions=[1, 2, 3])
        bucket.writer().deleted(record.seq)
        assert pull_checkpoint(registry, 8, into=tmp_path / "out").verified
        into = garbage(model_at(0))
        registry.pull(8, into=into)
    assert bits(into) == bits(model_at(8))


# -- what is retired meanwhile -------------------------------------------------------------------------------------


class Sweeping(FaultStore):
    """A store in which a clean-up strikes just before an object is read for the first time."""

    def __init__(self, bucket: Bucket, key: str, sweep: Callable[[], None]) -> None:
        super().__init__(bucket.store, [Fault("fail_before", matches=self._before, nth=10**9)])
        self._key, self._sweep, self._swept = f"{RUN}/{key}", sweep, False

    def _before(self, verb: str, key: str) -> bool:
        if key == self._key and not self._swept:
            self._swept = True
            self._sweep()
        return False


def test_what_was_retired_meanwhile_is_no_event(bucket: Bucket) -> None:
    merged = bucket.attach_patch(4, 8)

    def sweep() -> None:
        bucket.writer().retire(keys=[merged])
        bucket.remove(merged)

    _, into, events = bucket.worker(4)
    with listening(Sweeping(bucket, merged, sweep), events) as registry:
        registry.verify(4, model=into)
        result = registry.pull(8, into=into)
    assert bits(into) == bits(model_at(8))
    assert (result.avoided, result.objects, events) == ((), 4, [])


@pytest.mark.parametrize("forgotten", [False, True])
def test_who_holds_a_version_that_is_swept_meanwhile_goes_by_a_keyframe(bucket: Bucket, forgotten: bool) -> None:
    steps = [bucket.step(number) for number in (2, 3, 4)]

    def sweep() -> None:
        record = bucket.writer().retire(versions=[1, 2, 3], keys=steps)
        for key in steps:
            bucket.remove(key)
        if forgotten:
            bucket.writer().deleted(record.seq)

    _, into, events = bucket.worker(3)
    with listening(Sweeping(bucket, steps[-1], sweep), events) as registry:
        registry.verify(3, model=into)
        assert [leg.kind for leg in registry.route(5, have=3).legs] == ["patch"] * 2
        with registry.stage(5, into=into) as staged:
            assert [leg.kind for leg in staged.route.legs] == ["keyframe", "patch"]
            staged.apply()
    assert bits(into) == bits(model_at(5))
    assert events == []


def go_on(bucket: Bucket, *, forgotten: bool = False) -> None:
    """Push version 9, and retire and delete version 8."""
    newest = bucket.step(8)
    with quick(bucket.store, coder="gap") as trainer:
        trainer.push(9, model_at(9))
    bucket.attach_keyframe(9)
    record = bucket.writer().retire(versions=[8], keys=[newest])
    bucket.remove(newest)
    if forgotten:
        bucket.writer().deleted(record.seq)


def test_a_version_that_is_swept_meanwhile_is_gone_but_its_name_goes_on_to_the_newest(bucket: Bucket) -> None:
    newest, sweep = bucket.step(8), partial(go_on, bucket)

    def pull(version: int | str, store: Store) -> Model:
        _, into, events = bucket.worker(7)
        with listening(store, events) as registry:
            registry.verify(7, model=into)
            try:
                registry.pull(version, into=into)
            finally:
                assert events == []
                assert bits(into) in (bits(model_at(7)), bits(model_at(9)))
        return into

    before = copied(bucket.store)
    with pytest.raises(Gone):
        pull(8, Sweeping(bucket, newest, sweep))
    bucket.store = before
    assert bits(pull("latest", Sweeping(bucket, newest, sweep))) == bits(model_at(9))


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_checked_goes_on_to_the_newest_as_well(bucket: Bucket, forgotten: bool) -> None:
    newest, before = bucket.step(8), copied(bucket.store)

    def verified(version: int | str) -> int:
        with quick(Sweeping(bucket, newest, partial(go_on, bucket, forgotten=forgotten))) as registry:
            return registry.verify(version).version

    with pytest.raises(Gone):
        verified(8)
    bucket.store = before
    assert verified("latest") == 9


# -- copies --------------------------------------------------------------------------------------------------------


class Cached(DictStore):
    """A cache of a store: what it holds is read from it, whatever the store says."""

    def __init__(self, store: DictStore, keys: dict[str, bytes]) -> None:
        super().__init__()
        self.objects, self.copies, self.discarded = store.objects, keys, list[str]()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if key in self.copies:
            return self.copies[key][slice(*byte_range) if byte_range else slice(None)]
        return super().get(key, byte_range, max_bytes=max_bytes)

    def discard(self, key: str) -> bool:
        self.discarded.append(key)
        return self.copies.pop(f"{RUN}/{key}", None) is not None


@pytest.mark.parametrize("stored_too", [False, True])
def test_a_damaged_copy_is_dropped_and_the_object_avoided_only_if_it_is_damaged_too(
    bucket: Bucket, stored_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = bucket.attach_patch(4, 8)
    good = bucket.store.objects[f"{RUN}/{merged}"]
    if stored_too:
        bucket.damage(merged)
    cached = Cached(bucket.store, {f"{RUN}/{merged}": good[:-1] + bytes([good[-1] ^ 2])})
    context = Runtime.context
    monkeypatch.setattr(Runtime, "context", lambda runtime: replace(context(runtime), copies=cached))
    _, into, events = bucket.worker(4)
    with listening(cached, events) as registry:
        registry.verify(4, model=into)
        result = registry.pull(8, into=into)
    assert bits(into) == bits(model_at(8))
    assert result.avoided == ((merged,) if stored_too else ())
    assert cached.discarded == [merged]


def test_an_object_that_no_route_names_is_nothing_to_avoid(bucket: Bucket) -> None:
    for key in [key for key in bucket.store.objects if "/layouts/" in key]:
        del bucket.store.objects[key]
    registry, into, events = bucket.worker()
    with registry, pytest.raises(NotFound):
        registry.pull(8, into=into)
    assert events == []


def test_patches_that_are_damaged_in_one_group_alone_are_avoided_as_a_whole(bucket: Bucket) -> None:
    merged = bucket.attach_patch(4, 8)
    ref: PatchRef = next(patch for patch in state_of(bucket.store).patches if patch.object.key == merged)
    bucket.damage(merged, ref.head_size)
    registry, into, _ = bucket.worker(4)
    with registry:
        assert registry.pull(8, into=into).avoided == (merged,)
