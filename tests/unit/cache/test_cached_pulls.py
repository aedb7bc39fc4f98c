"""Pulls through a cache give the same bits as pulls without one, whatever has become of the cache's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from pulse_registry.cache import CacheFolder, partial_object
from pulse_registry.errors import CorruptObject
from pulse_registry.events import Event
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore, Store
from pulse_registry.testing import CountingStore
from tests.support.command_line import Pulse, Run
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import RUN, Bits, bits, change, garbage, quick, small_model


@pytest.fixture(params=["raw", "exponents"])
def pushed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[DictStore, list[Bits]]:
    """A run of a keyframe and three patches, and what its versions are."""
    monkeypatch.setattr(partial_object, "RANGE_BYTES", 64)
    return filled(DictStore(), keyframe_coding=request.param)


def filled(store: DictStore, **options: Any) -> tuple[DictStore, list[Bits]]:
    model, states = small_model(), []
    with small_groups(), quick(store, keyframe_share=1e9, **options) as registry:
        for step in range(4):
            registry.push(step, model)
            states.append(bits(model))
            change(model, step + 1)
    return store, states


def pull(store: Store, cache: Path | None, events: list[Event] | None = None, limit: int = 10**6) -> Bits:
    """Pull the newest version as a new worker."""
    into, heard = garbage(small_model()), events if events is not None else []
    folder = CacheFolder(cache, limit) if cache is not None else None
    with (
        small_groups(),
        Registry(
            store,
            RUN,
            Options(
                push=PushOptions(dtype="keep"),
                cache=folder,
                on_event=heard.append,
                compute=ComputeOptions(backend="reference"),
            ),
        ) as registry,
    ):
        registry.pull(into=into)
    return bits(into)


@pytest.mark.slow
def test_the_second_worker_of_a_host_reads_no_object_from_the_store(
    pushed: tuple[DictStore, list[Bits]], tmp_path: Path
) -> None:
    store, states = pushed
    for worker in range(3):
        counting = CountingStore(store)
        assert pull(counting, tmp_path / "cache") == states[-1]
        objects = {key for _, key in counting.ledger if "/objects/" in key}
        assert len(objects) == (0 if worker else 5)
    alone = CountingStore(store)
    assert pull(alone, None) == states[-1]


@pytest.mark.parametrize("damage", ["a bit", "a byte less", "a byte more", "zeros", "nothing"])
def test_damaged_copies_are_read_anew_and_nobody_else_is_blamed(
    pushed: tuple[DictStore, list[Bits]], tmp_path: Path, damage: str
) -> None:
    store, states = pushed
    assert pull(store, tmp_path) == states[-1]
    copies = [file for file in tmp_path.iterdir() if len(file.name) == 64]
    for copy in copies:
        data = bytearray(copy.read_bytes())
        if damage == "a bit":
            data[len(data) // 2] ^= 16
        whole = {"a byte less": data[:-1], "a byte more": data + b"x", "zeros": bytes(len(data)), "nothing": b""}
        copy.write_bytes(whole.get(damage, data))
    events: list[Event] = []
    assert pull(store, tmp_path, events) == states[-1]
    assert events == []
    counting = CountingStore(store)
    assert pull(counting, tmp_path) == states[-1]
    assert not [key for _, key in counting.ledger if "/objects/" in key], "the copies are whole again"


def test_what_is_damaged_in_the_store_is_refused_with_a_cache_as_without(
    pushed: tuple[DictStore, list[Bits]], tmp_path: Path
) -> None:
    store, _ = pushed
    for number, key in enumerate(key for key in store.objects if "/objects/patch/" in key):
        damaged, cache = DictStore(), tmp_path / f"{number}"
        damaged.objects = store.objects | {key: store.objects[key][:-1] + b"\0"}
        with pytest.raises(CorruptObject):
            pull(damaged, cache)
        assert not [file for file in cache.iterdir() if file.name.endswith(".part")]


@pytest.mark.parametrize("limit", [1, 300, 700])
def test_a_cache_too_small_for_the_run_costs_no_bit(
    pushed: tuple[DictStore, list[Bits]], tmp_path: Path, limit: int
) -> None:
    store, states = pushed
    assert pull(store, tmp_path, limit=limit) == states[-1]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= limit + 20


def test_a_keyframe_that_is_removed_before_it_is_opened_comes_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, states = filled(DictStore())
    folder = CacheFolder.file

    def gone(self: CacheFolder, ref: Any) -> Path:
        path = folder(self, ref)
        return path if "keyframe" not in ref.key or not path.exists() else tmp_path / "gone"

    with monkeypatch.context() as patched:
        patched.setattr(CacheFolder, "file", gone)
        assert pull(store, tmp_path / "cache") == states[-1]


def test_verify_looks_at_the_stored_objects_and_not_at_copies(tmp_path: Path) -> None:
    store, states = filled(DictStore())
    assert pull(store, tmp_path) == states[-1]
    key = next(key for key in store.objects if "/objects/patch/" in key)
    store.objects[key] = store.objects[key][:-1] + b"\0"
    assert pull(store, tmp_path) == states[-1], "the copy is still good"
    folder = CacheFolder(tmp_path)
    with (
        small_groups(),
        Registry(store, RUN, Options(cache=folder, compute=ComputeOptions(backend="reference"))) as registry,
        pytest.raises(CorruptObject),
    ):
        registry.verify()


def test_open_takes_the_cache_from_its_arguments_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    with quick(FileStore(root)) as registry:
        registry.push(0, small_model())
    with pulse_registry.open(
        str(root), run=RUN, cache=tmp_path / "given", compute=pulse_registry.ComputeOptions(backend="reference")
    ) as registry:
        registry.pull(into=garbage(small_model()))
    assert len(list((tmp_path / "given").iterdir())) == 3
    monkeypatch.setenv("PULSE_CACHE", str(tmp_path / "environment"))
    with pulse_registry.open(
        str(root), run=RUN, compute=pulse_registry.ComputeOptions(backend="reference")
    ) as registry:
        registry.pull(into=garbage(small_model()))
    assert len(list((tmp_path / "environment").iterdir())) == 3


def test_the_command_pulls_through_a_cache(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    for out in ("one", "two"):
        answer = pulse("pull", "--out", tmp_path / out, "--cache", tmp_path / "cache", "--cache-bytes", 10**7, "--json")
        assert answer.code == 0, answer
    names = {file.name for file in (tmp_path / "cache").iterdir()}
    assert len(names) == 3 + len(run.states) - 1
    answer = pulse("pull", "--out", tmp_path / "three", "--cache", tmp_path / "cache", "--cache-bytes", 0)
    assert answer.code == 2
