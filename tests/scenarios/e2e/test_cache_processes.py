"""Real processes with one cache: each object comes once, and a killed process harms none of the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from blake3 import blake3

from pulse_registry.cache.folder import LEDGER
from pulse_registry.store import FileStore
from tests.support.groups import small_groups
from tests.support.registries import Bits, bits, change, quick, small_model

ROOT = Path(__file__).parents[3]


@pytest.fixture
def newest(tmp_path: Path) -> Bits:
    """A run of a keyframe and two patches, and what its newest version is."""
    model = small_model()
    with small_groups(), quick(FileStore(tmp_path / "root"), keyframe_share=1e9) as registry:
        for step in range(3):
            registry.push(step, model)
            change(model, step + 1)
        registry.push(3, model)
    return bits(model)


def run(folder: Path, command: str, *arguments: int) -> tuple[list[Bits], list[tuple[str, tuple[int, int]]]]:
    """Return what the workers found, and the reads of objects that the store has seen."""
    places = [str(folder / name) for name in ("root", "cache", "ledger")]
    called = [sys.executable, "-m", "tests.scenarios.e2e.cache_processes", command, *places, *map(str, arguments)]
    done = subprocess.run(called, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [
        {name: bytes.fromhex(text) for name, text in json.loads(line).items()} for line in done.stdout.split("\n")[:-1]
    ]
    reads = [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]
    return found, [(key, tuple(span)) for key, span in reads]


def holds_what_names_say(folder: Path) -> bool:
    """Tell whether each file of a cache hashes to its name: nothing is there in part, nothing else is there."""
    return all(blake3(file.read_bytes()).hexdigest() == file.name for file in folder.iterdir() if file.name != LEDGER)


@pytest.mark.slow
def test_workers_that_pull_at_once_download_each_object_once(newest: Bits, tmp_path: Path) -> None:
    found, reads = run(tmp_path, "crowd", 8)
    assert found == [newest] * 8
    assert set(Counter(reads).values()) == {1}, "no byte is read twice"
    sizes = {f"{key}": sum(stop - start for found_key, (start, stop) in reads if found_key == key) for key, _ in reads}
    store = FileStore(tmp_path / "root")
    assert sizes == {key: store.size(key) for key in sizes}
    assert len(sizes) == 5, "three patches, a shard and its index"
    assert holds_what_names_say(tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 6


@pytest.mark.slow
def test_a_pull_killed_at_any_call_leaves_a_cache_that_serves_the_next(newest: Bits, tmp_path: Path) -> None:
    killed_everywhere(newest, tmp_path, first=0, step=37)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(4))
def test_a_pull_killed_at_every_call_leaves_a_cache_that_serves_the_next(
    newest: Bits, tmp_path: Path, first: int
) -> None:
    killed_everywhere(newest, tmp_path, first=first, step=4)


def killed_everywhere(newest: Bits, folder: Path, *, first: int, step: int) -> None:
    found, _ = run(folder, "kill", first, step)
    assert len(found) > 2, "it was killed at several calls"
    assert found == [newest] * len(found)
    caches = list((folder / "cache").iterdir())
    assert len(caches) == len(found)
    assert all(holds_what_names_say(cache) for cache in caches)
