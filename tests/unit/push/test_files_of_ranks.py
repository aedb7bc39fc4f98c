"""Small files of a sharded push: rank 0's go along, and what is wrong with them is raised on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pulse_registry import Slice
from pulse_registry.errors import InvalidArgument
from pulse_registry.registry import Registry
from tests.support.ranks import alike, on_ranks
from tests.support.records import DictStore
from tests.support.registries import commits, quick


def test_the_files_of_rank_0_count_and_are_stored_once(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    store = DictStore()

    def work(registry: Registry, rank: int) -> None:
        part = np.full((2, 3), rank, np.uint16)
        model = {"w": Slice(part, of=(4, 3), at=(2 * rank, 0))}
        # The folder is rank 0's: others need not have it.
        registry.push(0, model, files=folder if rank == 0 else tmp_path / "elsewhere")
        part[0, 0] += 1
        registry.push(1, model)

    assert on_ranks([store, store], work) == [None, None]
    with quick(store) as registry:
        assert registry.files(0) == registry.files(1) == {"config.json": b"{}"}
    assert [record.files is None for record in commits(store)] == [False, True]


def test_bad_files_of_rank_0_fail_the_push_on_all_ranks(tmp_path: Path) -> None:
    store = DictStore()

    def work(registry: Registry, rank: int) -> None:
        part = np.full((2, 3), rank, np.uint16)
        registry.push(0, {"w": Slice(part, of=(4, 3), at=(2 * rank, 0))}, files=tmp_path / "none")

    assert "can't be read" in alike(on_ranks([store, store], work), InvalidArgument)
    assert not [key for key in store.objects if "/objects/" in key]
