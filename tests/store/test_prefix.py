from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pulse_registry.errors import InvalidArgument
from pulse_registry.store import (
    CountingStore,
    FaultStore,
    FileStore,
    LocalFiles,
    MemoryStore,
    PrefixStore,
    Store,
    WrapperStore,
    presigner_of,
)
from tests.store.conformance import VALID_KEYS, StoreConformance, Subject
from tests.store.model import StoreMachine

_names = (f"test-prefix-{number}" for number in itertools.count())


class TestPrefixStore(StoreConformance):
    @pytest.fixture
    def subject(self) -> Subject:
        below = MemoryStore(next(_names))
        return Subject(
            store=PrefixStore(below, "p/q"),
            raw_get=lambda key: below.get(f"p/q/{key}"),
            raw_set=lambda key, data: below.put(f"p/q/{key}", data),
        )

    @pytest.mark.parametrize("key", [key for key in VALID_KEYS if len(key) < 1000], ids=ascii)
    def test_every_valid_key_round_trips(self, store: Store, key: str) -> None:
        # The bound on length holds for the whole key: the longest one of the suite has no room for a prefix.
        super().test_every_valid_key_round_trips(store, key)


class _Machine(StoreMachine):
    def fresh(self) -> Store:
        below = MemoryStore(next(_names))
        # Neighbours that only look as if they were below the prefix.
        for key in ("d", "d-/a", "dd/a", "d0"):
            below.put(key if key != "d" else "e", b"")
        return PrefixStore(below, "d")


def test_a_view_below_a_prefix_behaves_like_a_dict() -> None:
    run_state_machine_as_test(_Machine, settings=settings(max_examples=30, stateful_step_count=30))


def test_a_view_of_a_view_joins_the_prefixes() -> None:
    below = MemoryStore(next(_names))
    view = PrefixStore(PrefixStore(below, "runs"), "math/7b")
    view.put("head", b"1")
    assert [*below.list("")] == ["runs/math/7b/head"]
    assert [*view.list("", after="hea")] == ["head"]
    assert view.url == f"{below.url}/runs/math/7b"


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "..", "a/../b"])
def test_a_prefix_that_is_no_key_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgument):
        PrefixStore(MemoryStore(next(_names)), prefix)


def test_a_view_of_a_file_store_knows_the_files_and_one_of_memory_has_none(tmp_path: Path) -> None:
    view = PrefixStore(PrefixStore(FileStore(tmp_path), "runs"), "a")
    view.put("b/c", b"data")
    path = view.local_path("b/c")
    assert path == tmp_path / "runs/a/b/c"
    assert path.read_bytes() == b"data"
    assert PrefixStore(MemoryStore(next(_names)), "a").local_path("b") is None
    with pytest.raises(InvalidArgument):
        view.local_path("../b")


def test_wrappers_that_watch_or_change_reads_are_not_led_around(tmp_path: Path) -> None:
    for store in (CountingStore(FileStore(tmp_path)), FaultStore(FileStore(tmp_path), [])):
        assert not isinstance(store, LocalFiles)
        assert PrefixStore(store, "a").local_path("b") is None


class _SigningStore(MemoryStore):
    def presign(self, key: str, expires_s: int) -> str:
        return f"https://host/{key}?expires={expires_s}"


def test_urls_are_signed_for_the_whole_key_through_any_wrappers() -> None:
    signer = presigner_of(WrapperStore(PrefixStore(WrapperStore(_SigningStore(next(_names))), "runs/a")))
    assert signer is not None
    assert signer.presign("head", 60) == "https://host/runs/a/head?expires=60"
    with pytest.raises(InvalidArgument):
        signer.presign("../b/head", 60)


def test_a_store_that_can_not_sign_has_no_presigner() -> None:
    assert presigner_of(PrefixStore(MemoryStore(next(_names)), "a")) is None
