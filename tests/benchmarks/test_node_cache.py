"""The benchmark of a host's workers runs, at a size whose times mean nothing, and says what it is to say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from benchmarks import node_cache
from benchmarks.node_cache import PULLS, Ends, document, measure, work
from benchmarks.results import Row, rows_of
from benchmarks.synthetic import synthetic_states


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Two workers over a folder store, in threads of this process."""
    folder, states = tmp_path_factory.mktemp("node"), synthetic_states(20_000, 1, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node_cache, "crowd", in_threads)
        rows = measure(lambda name: str(folder / "roots" / name), states, [2], folder / "caches", 1)
    return {row.key: row for row in rows_of(document(rows, states, [2], 1))}


@contextmanager
def in_threads(url: str, cache: Path | None, count: int) -> Iterator[list[Ends]]:
    def pipe(stack: ExitStack) -> tuple[IO[str], IO[str]]:
        read, write = os.pipe()
        return stack.enter_context(open(read)), stack.enter_context(open(write, "w"))

    with ExitStack() as ours, ThreadPoolExecutor(count) as pool, ExitStack() as first:
        workers = []
        for _ in range(count):
            (lines, said), (answers, told) = pipe(first), pipe(ours)
            workers.append(Ends(said, answers))
            pool.submit(work, url, str(cache or ""), lines, told)
        for ends in workers:
            ends.answer()
        yield workers
        for ends in workers:
            ends.lines.close()
        pool.shutdown()


def test_workers_with_a_cache_take_each_byte_from_the_store_once(found: dict[str, Row]) -> None:
    for pull in PULLS:
        without, with_cache = found[f"{pull}.2.none.mb"].value, found[f"{pull}.2.cache.mb"].value
        assert 0 < with_cache < without
        assert (found[f"{pull}.2.copies"].value, found[f"{pull}.2.copies"].holds) == (1.0, True)


def test_every_pull_has_a_time_and_is_held_against_the_one_without(found: dict[str, Row]) -> None:
    for pull in PULLS:
        assert all(found[f"{pull}.2.{how}.s"].unit == "s" for how in ("none", "cache"))
        assert found[f"{pull}.2.ratio"].value > 0
