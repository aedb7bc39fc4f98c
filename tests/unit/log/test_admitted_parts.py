"""A record that names a patch in parts is appended for others only if the parts that its head names are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, Snapshotter, append_guard
from pulse_registry.store import PrefixStore
from pulse_registry.testing import CountingStore
from pulse_schemas import CommitRecord, Record, unseal_record
from tests.support.parts import wide_run
from tests.support.records import DictStore
from tests.support.registries import RUN, copied


@pytest.fixture(scope="module")
def pushed() -> tuple[DictStore, CommitRecord]:
    """A run whose newest record, which names a patch of three parts, is yet to be appended."""
    store = DictStore()
    wide_run(store, 2)
    newest = max(key for key in store.objects if key.startswith(f"{RUN}/log/0"))
    record = unseal_record(store.objects[newest])
    assert isinstance(record, CommitRecord)
    for key in [newest, *(key for key in store.objects if key.startswith(f"{RUN}/log/s") or key == f"{RUN}/head")]:
        store.objects.pop(key, None)
    return store, record


def admit(store: DictStore, record: Record) -> CountingStore:
    counting = CountingStore(PrefixStore(store, RUN))
    reader = LogReader(counting, RUN)
    AppendGuard(counting, RUN, reader, Snapshotter(counting, reader)).admit(record.seal())
    return counting


def part(record: CommitRecord, number: int) -> str:
    assert record.patch is not None
    return f"{RUN}/{keys.part_key(record.patch.object.key, number)}"


def head(record: CommitRecord) -> str:
    assert record.patch is not None
    return f"{RUN}/{record.patch.object.key}"


def test_a_record_whose_parts_are_there_is_appended(pushed: tuple[DictStore, CommitRecord]):
    store, record = copied(pushed[0]), pushed[1]
    counting = admit(store, record)
    assert store.objects[f"{RUN}/{keys.record_key(record.seq)}"] == record.seal()
    asked = [key for verb, key in counting.ledger if verb == "size" and "/patch/" in key]
    assert len(asked) == len(set(asked)) == 4
    read = [f"{RUN}/{key}" for verb, key in counting.ledger if verb == "get" and "/patch/" in key]
    assert read == [head(record)]


def cut(store: DictStore, key: str, by: int) -> None:
    store.objects[key] = (store.objects[key] + b"x")[: len(store.objects[key]) + by]


HARM: dict[str, tuple[Callable[[DictStore, CommitRecord], Any], str]] = {
    "a missing part": (lambda s, r: s.objects.pop(part(r, 1)), "/00001, which is not there: store it first"),
    "a short part": (lambda s, r: cut(s, part(r, 2), -1), "/00002 with .* bytes, but"),
    "a long part": (lambda s, r: cut(s, part(r, 0), 1), "/00000 with .* bytes, but"),
    "no head": (lambda s, r: s.objects.pop(head(r)), "/patch-head, which is not there"),
    "a short head": (lambda s, r: cut(s, head(r), -1), "/patch-head with .* bytes, but it has"),
    "another head": (lambda s, r: s.objects.update({head(r): bytes(len(s.objects[head(r)]))}), "the head's BLAKE3"),
}


@pytest.mark.parametrize("how", HARM)
def test_a_record_without_the_parts_that_its_head_names_is_refused(pushed: tuple[DictStore, CommitRecord], how: str):
    store, record = copied(pushed[0]), pushed[1]
    harm, message = HARM[how]
    harm(store, record)
    before = dict(store.objects)
    with pytest.raises(InvalidArgument, match=message):
        admit(store, record)
    assert store.objects == before


def test_a_record_that_lies_about_the_bytes_of_its_parts_is_refused(pushed: tuple[DictStore, CommitRecord]):
    store, record = copied(pushed[0]), pushed[1]
    assert record.patch is not None
    lying = record.patch.model_copy(update={"parts": (record.patch.parts or 0) + 1})
    with pytest.raises(InvalidArgument, match="this is not a patch object"):
        admit(store, record.model_copy(update={"patch": lying}))


def test_a_head_that_is_too_long_is_not_read(pushed: tuple[DictStore, CommitRecord], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(append_guard, "MOST_HEAD_BYTES", 100)
    with pytest.raises(InvalidArgument, match="and a head 100 at most"):
        admit(copied(pushed[0]), pushed[1])
