"""Every bit of every stored file flipped, one at a time, and every file cut at every length.

A pull then raises a typed error and leaves the weights alone, or, where the file is only a hint, does what it does
without the flip. It never raises anything else and never takes the flipped bytes for other weights.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from pulse_registry.errors import CorruptObject, PulseError
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.registry import Registry
from pulse_registry.store import PrefixStore
from tests.support.records import DictStore
from tests.support.registries import RUN, Model, bits, copied, garbage, quick, settle

TINY = {"a": np.arange(6, dtype=np.uint16), "b": np.zeros((2, 2), np.float32)}


def tiny(version: int) -> Model:
    model = {name: array.copy() for name, array in TINY.items()}
    for number in range(version):
        model["a"][number] += 3
        model["b"][0, number % 2] += 0.5
    return model


def a_run() -> DictStore:
    """Return three versions, a keyframe attached, an object retired: each kind of record and of file."""
    store = DictStore()
    with quick(store, keyframe_every=2, keyframe_share=1e9) as registry:
        for version in range(3):
            registry.push(version, tiny(version))
            settle(registry)
    inside = PrefixStore(store, RUN)
    reader = LogReader(inside, RUN)
    key = reader.refresh().patches_into(2)[0].object.key
    LogWriter(inside, RUN, reader, utc_now, random_id, "test").retire(keys=[key])
    return store


STORE = a_run()
FILES = {
    "an epoch record": r"log/000000000000\.json",
    "a commit record with a keyframe": r"log/000000000001\.json",
    "a commit record with a patch": r"log/000000000002\.json",
    "an attach record": r"log/000000000004\.json",
    "a retire record": r"log/000000000005\.json",
    "the layout": r"layouts/",
    "a patch": r"patch/000000000000-",
    "a keyframe's shard": r"keyframe/000000000000-.*/model-00001",
    "a keyframe's index": r"keyframe/000000000000-.*/model.safetensors.index",
}


OBJECTS = ("a patch", "a keyframe's shard", "a keyframe's index")


def key_of(pattern: str) -> str:
    (found,) = [key for key in STORE.objects if re.search(pattern, key)]
    return found


def refuse(registry: Registry, damaged: str, error: type[PulseError] = PulseError) -> None:
    """Pull version 1 into weights that hold nothing: an error that names what is damaged, and the weights as before."""
    into = garbage(TINY)
    was = bits(into)
    with pytest.raises(error, match=re.escape(damaged.removeprefix("run/").rpartition("/")[0]) + "|run 'run'"):
        registry.pull(1, into=into)
    assert bits(into) == was


def attempt(store: DictStore, damaged: str, data: bytes, error: type[PulseError] = PulseError) -> None:
    """Let a new reader meet the damage."""
    store.objects[damaged] = data
    with quick(store) as registry:
        refuse(registry, damaged, error)


def flipped(original: bytes, positions: Iterable[int]) -> Iterator[bytes]:
    """Yield the data with one bit flipped, for each position."""
    for position in positions:
        data = bytearray(original)
        data[position // 8] ^= 1 << position % 8
        yield bytes(data)


def test_the_run_has_each_kind_of_record() -> None:
    found = [STORE.objects[f"run/{keys.record_key(seq)}"] for seq in range(6)]
    kinds = [re.search(rb'"kind":"(\w+)"', data) for data in found]
    assert [kind.group(1) for kind in kinds if kind] == [
        b"epoch",
        b"commit",
        b"commit",
        b"commit",
        b"attach",
        b"retire",
    ]


# One bit in nine meets every byte, and every bit of a byte in turn; the sweep flips them all.
BITS = pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.sweep)], ids=["one in nine", "each"])


# Of documents test_flipped_documents flips every bit; here a pull meets some.
@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.sweep)], ids=["one in 61", "each"])
@pytest.mark.parametrize("file", [file for file in FILES if file not in OBJECTS])
def test_no_flipped_bit_of_a_record_or_layout_is_accepted(file: str, stride: int) -> None:
    key = key_of(FILES[file])
    store, original = copied(STORE), STORE.objects[key]
    for data in flipped(original, range(0, 8 * len(original), stride)):
        attempt(store, key, data)


@BITS
@pytest.mark.parametrize("file", OBJECTS[1:])
def test_no_flipped_bit_of_an_object_is_accepted(file: str, stride: int) -> None:
    key = key_of(FILES[file])
    store, original = copied(STORE), STORE.objects[key]
    with quick(store) as registry:
        for data in flipped(original, range(0, 8 * len(original), stride)):
            store.objects[key] = data
            refuse(registry, key, CorruptObject)
        store.objects[key] = original
        into = garbage(TINY)
        registry.pull(1, into=into)
        assert bits(into) == bits(tiny(1))


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.sweep)], ids=["one in 13", "each"])
@pytest.mark.parametrize("file", FILES)
def test_no_file_that_is_cut_short_is_accepted(file: str, stride: int) -> None:
    key = key_of(FILES[file])
    store, original = copied(STORE), STORE.objects[key]
    for length in range(0, len(original), stride):
        attempt(store, key, original[:length], CorruptObject)


@pytest.mark.parametrize("file", [file for file in FILES if file not in OBJECTS])
def test_no_record_or_layout_with_something_behind_it_is_accepted(file: str) -> None:
    key = key_of(FILES[file])
    for junk in (b" ", b"\n", b"\0", b"}", STORE.objects[key]):
        attempt(copied(STORE), key, STORE.objects[key] + junk, CorruptObject)


@BITS
def test_flips_in_a_patch_leave_live_weights_as_they_are(stride: int) -> None:
    key = key_of(FILES["a patch"])
    store, original = copied(STORE), STORE.objects[key]
    with quick(store) as registry:
        worker = tiny(0)
        registry.verify(0, model=worker)
        was = bits(worker)
        for data in flipped(original, range(0, 8 * len(original), stride)):
            store.objects[key] = data
            with pytest.raises(CorruptObject, match="patch/000000000000-"):
                registry.pull(1, into=worker)
            assert bits(worker) == was
        store.objects[key] = original
        registry.pull(1, into=worker)
        assert bits(worker) == bits(tiny(1))


def test_a_damaged_patch_is_refused_and_the_version_stays_reachable_by_its_keyframe() -> None:
    store = copied(STORE)
    for key in list(store.objects):
        if "patch/" in key:
            store.objects[key] = b"damaged"
    with quick(store) as registry:
        worker = garbage(TINY)
        registry.pull(2, into=worker)
        assert bits(worker) == bits(tiny(2))
        refuse(registry, key_of(FILES["a patch"]), CorruptObject)


@pytest.fixture(scope="module")
def with_snapshot() -> DictStore:
    store = copied(STORE)
    inside = PrefixStore(store, RUN)
    reader = LogReader(inside, RUN)
    reader.refresh()
    writer = LogWriter(inside, RUN, reader, utc_now, random_id, "test", snapshot_every=1)
    writer.retire(versions=[])
    assert any("snapshots/" in key for key in store.objects)
    return store


def change_nothing(with_snapshot: DictStore, pattern: str, damage: Callable[[bytes], Iterable[bytes]]) -> None:
    (key,) = [key for key in with_snapshot.objects if pattern in key]
    store, original = copied(with_snapshot), with_snapshot.objects[key]
    expected = LogReader(PrefixStore(store, RUN), RUN).refresh().to_snapshot()
    for data in damage(original):
        store.objects[key] = data
        assert LogReader(PrefixStore(store, RUN), RUN).refresh().to_snapshot() == expected
    store.objects.pop(key)
    assert LogReader(PrefixStore(store, RUN), RUN).refresh().to_snapshot() == expected


@pytest.mark.parametrize("pattern", ["run/head", "snapshots/", "segments/"])
def test_a_damaged_hint_or_snapshot_changes_nothing(with_snapshot: DictStore, pattern: str, caplog) -> None:
    one_of_a_byte = random.Random(2)
    change_nothing(
        with_snapshot,
        pattern,
        lambda data: flipped(data, (8 * at + one_of_a_byte.randrange(8) for at in range(0, len(data), 13))),
    )
    assert "ignoring the" in caplog.text
    change_nothing(with_snapshot, pattern, lambda data: (data[:length] for length in range(0, len(data), 71)))


@pytest.mark.sweep
@pytest.mark.parametrize("pattern", ["run/head", "snapshots/", "segments/"])
def test_no_damage_of_a_hint_or_snapshot_changes_anything(with_snapshot: DictStore, pattern: str) -> None:
    change_nothing(with_snapshot, pattern, lambda data: flipped(data, range(8 * len(data))))
    change_nothing(with_snapshot, pattern, lambda data: (data[:length] for length in range(len(data))))


# Write ids are random; the names of tests must not be, or workers that share them out do not find them.
NAMES = {re.sub(r"-[0-9a-f]{32}", "", key): key for key in STORE.objects}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_file_in_the_place_of_another_is_not_taken_for_it(name: str) -> None:
    key = NAMES[name]
    for other, data in STORE.objects.items():
        if other == key or data == STORE.objects[key]:
            continue
        store = copied(STORE)
        store.objects[key] = data
        with quick(store) as registry:
            for version in range(3):
                into = garbage(TINY)
                was = bits(into)
                try:
                    registry.pull(version, into=into)
                except PulseError:
                    assert bits(into) == was
                else:
                    assert bits(into) == bits(tiny(version))


@pytest.mark.parametrize("name", sorted(name for name in NAMES if name != "run/head"))
def test_a_missing_file_is_refused_or_not_needed(name: str) -> None:
    key = NAMES[name]
    store = copied(STORE)
    del store.objects[key]
    with quick(store) as registry:
        for version in range(3):
            into = garbage(TINY)
            was = bits(into)
            try:
                registry.pull(version, into=into)
            except PulseError:
                assert bits(into) == was
            else:
                assert bits(into) == bits(tiny(version))
