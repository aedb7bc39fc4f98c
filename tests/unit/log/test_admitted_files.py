"""A service appends a commit that names files only if all of them are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, Snapshotter
from pulse_registry.store import PrefixStore
from pulse_schemas import CommitRecord
from tests.support.records import DictStore
from tests.support.registries import RUN, commits, copied, quick, small_model

CONFIG = b'{"model_type":"x"}'
FILE = f"{RUN}/{keys.file_key(blake3(CONFIG).hexdigest())}"


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[DictStore, CommitRecord]:
    """A run whose last record, a commit with files, is not there, and that record."""
    store, folder = DictStore(), tmp_path_factory.mktemp("files")
    Path(folder, "config.json").write_bytes(CONFIG)
    with quick(store) as registry:
        registry.push(0, small_model(), files=folder)
    [record] = commits(store)
    del store.objects[f"{RUN}/{keys.record_key(record.seq)}"]
    store.objects = {key: data for key, data in store.objects.items() if "snapshots" not in key and "head" not in key}
    return store, record


def admit(root: DictStore, record: CommitRecord) -> None:
    store = PrefixStore(root, RUN)
    reader = LogReader(store, RUN)
    AppendGuard(store, RUN, reader, Snapshotter(store, reader)).admit(record.seal())


def listed(record: CommitRecord) -> str:
    return f"{RUN}/{keys.file_key(record.files or '')}"


HARM: dict[str, tuple[Callable[[DictStore, CommitRecord], object], str]] = {
    "no list": (lambda s, r: s.objects.pop(listed(r)), "which is not there: store it first"),
    "a damaged list": (lambda s, r: s.objects.update({listed(r): b"{}"}), "can't be read"),
    "a list without end": (lambda s, r: s.objects.update({listed(r): bytes(1 << 20)}), "can't be read"),
    "no file": (lambda s, r: s.objects.pop(FILE), "which is not there: store it first"),
    "a short file": (lambda s, r: s.objects.update({FILE: CONFIG[:-1]}), r"with 18 bytes, but it has 17"),
}


@pytest.mark.parametrize("how", HARM)
def test_a_record_without_its_files_is_refused(pushed: tuple[DictStore, CommitRecord], how: str) -> None:
    store, record = copied(pushed[0]), pushed[1]
    harm, message = HARM[how]
    harm(store, record)
    before = dict(store.objects)
    with pytest.raises(InvalidArgument, match=message):
        admit(store, record)
    assert store.objects == before


def test_a_record_with_its_files_is_appended(pushed: tuple[DictStore, CommitRecord]) -> None:
    store, record = copied(pushed[0]), pushed[1]
    admit(store, record)
    with quick(store) as registry:
        assert registry.files() == {"config.json": CONFIG}
