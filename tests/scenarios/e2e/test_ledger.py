"""What pushes and pulls cost in requests: exact counts, and the table of docs/requests.md that says them.

After a wanted change: ``python -m tests.scenarios.e2e.test_ledger`` renews the table.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from pulse_registry.format import keyframe
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.log.runs import list_runs
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push import keyframe as push_keyframe
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore
from pulse_registry.testing import CountingStore
from tests.support.registries import registry_with, settle

PAGE = Path(__file__).resolve().parents[3] / "docs" / "requests.md"
PIECE, SHARD, KEYFRAME_EVERY = 4096, 20_000, 10
CELLS = 20_000
"""Of BF16: 40,000 bytes in two tensors, so two shards of five pieces each."""
VERBS = {"get": "GET", "put": "PUT", "size": "HEAD", "list": "LIST"}


def model(step: int) -> dict[str, np.ndarray]:
    tensors = {name: np.zeros(CELLS // 2, np.uint16) for name in ("a", "b")}
    tensors["a"][:step] = np.arange(1, step + 1)
    return tensors


@dataclass
class Run:
    """A run with a trainer, a worker that is at its newest version, and the ledger of either."""

    root: MemoryStore = field(default_factory=lambda: MemoryStore(f"ledger-{uuid.uuid4().hex}"))

    def __post_init__(self) -> None:
        self.trainers, self.workers = CountingStore(self.root), CountingStore(self.root)
        options = PushOptions(dtype="keep", keyframe_share=1e9, keyframe_every=KEYFRAME_EVERY)
        self.trainer = registry_with(self.trainers, Options(push=options, compute=ComputeOptions(backend="reference")))
        self.worker = self.new_worker()
        self.weights = model(0)
        self.step = 0

    def new_worker(self) -> Registry:
        return Registry(self.workers, "run", Options(compute=ComputeOptions(backend="reference")))

    def push(self, times: int = 1) -> None:
        for _ in range(times):
            self.trainer.push(self.step, model(self.step))
            settle(self.trainer)
            self.step += 1

    def pull(self) -> None:
        self.worker.pull(into=self.weights)

    def close(self) -> None:
        self.trainer.close()
        self.worker.close()


def first_push(run: Run) -> CountingStore:
    run.push()
    return run.trainers


def patch_push(run: Run) -> CountingStore:
    run.push(2)
    run.trainers.reset()
    run.push()
    return run.trainers


def keyframe_push(run: Run) -> CountingStore:
    run.push(KEYFRAME_EVERY)
    run.trainers.reset()
    run.push()
    return run.trainers


def snapshot_push(run: Run) -> CountingStore:
    while run.trainer.state().seq < 62:
        run.push()
    run.trainers.reset()
    run.push()
    return run.trainers


def open_short(run: Run) -> CountingStore:
    run.push(5)
    with run.new_worker() as worker:
        worker.state()
    return run.workers


def open_long(run: Run) -> CountingStore:
    while run.trainer.state().seq < 68:
        run.push()
    with run.new_worker() as worker:
        worker.state()
    return run.workers


def look(run: Run) -> CountingStore:
    run.push(3)
    run.pull()
    run.workers.reset()
    assert list(run.worker.watch(timeout=0)) == []
    return run.workers


def pull_nothing_new(run: Run) -> CountingStore:
    run.push(3)
    run.pull()
    run.workers.reset()
    run.pull()
    return run.workers


def pull_by(versions: int, run: Run) -> CountingStore:
    run.push(1)
    run.pull()
    run.push(versions)
    run.workers.reset()
    run.pull()
    return run.workers


def pull_from_nothing(run: Run) -> CountingStore:
    run.push(4)
    run.worker.state()
    run.workers.reset()
    run.worker.load()
    return run.workers


def list_runs_of_a_root(run: Run) -> CountingStore:
    for number in range(1000):
        run.root.put(f"run-{number:03d}/head", b"")
    assert len([*list_runs(run.workers)]) == 1000
    return run.workers


@dataclass(frozen=True)
class Row:
    """One thing to do, and what it costs."""

    what: str
    act: Callable[[Run], CountingStore]
    calls: dict[str, int]
    why: str


ROWS = {
    "first push": Row(
        "first push of a run",
        first_push,
        {"get": 5, "put": 7, "list": 2},
        "hint, snapshots, record 0, twice, mark, what lies beyond; epoch, mark, hint; layout, shards, index; record",
    ),
    "push": Row("push of a patch", patch_push, {"put": 2}, "patch, record"),
    "keyframe": Row(
        "push after which a keyframe is made",
        keyframe_push,
        {"put": 6},
        "patch, record; in the background two shards, index, record",
    ),
    "snapshot": Row(
        "push after which a snapshot of the log is due, one in 64",
        snapshot_push,
        {"put": 5, "list": 1},
        "patch, record; snapshots and segments; segment, snapshot, hint",
    ),
    "open short": Row("open a run of 6 records", open_short, {"get": 8}, "hint; each record, one that is not there"),
    "open long": Row(
        "open a run of 69 records",
        open_long,
        {"get": 10},
        "hint, snapshot, its segment, its last record; the 5 records after it, and one that is not there",
    ),
    "look": Row("a look of `watch`, nothing new", look, {"get": 1}, "the next record, which is not there"),
    "nothing new": Row("pull, nothing new", pull_nothing_new, {"get": 1}, "a look"),
    "pull by 1": Row(
        "pull by 1 version", functools.partial(pull_by, 1), {"get": 3}, "its record, and the one after it; patch"
    ),
    "pull by 5": Row(
        "pull by 5 versions", functools.partial(pull_by, 5), {"get": 11}, "5 records, and the one after them; 5 patches"
    ),
    "from nothing": Row(
        "pull from nothing, the log known: a keyframe of 10 pieces, 3 patches",
        pull_from_nothing,
        {"get": 16},
        "look; layout, index, 10 pieces; 3 patches",
    ),
    "list runs": Row(
        "list the runs of a root, in the service", list_runs_of_a_root, {"list": 1}, "folders, up to 1,000 in a page"
    ),
}


@pytest.fixture
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patched:
        small = functools.partial(KeyframeForm, shard_bytes=SHARD, piece_bytes=PIECE)
        patched.setattr(push_keyframe, "KeyframeForm", small)
        run = Run()
        try:
            yield run
        finally:
            run.close()


@pytest.mark.parametrize("name", ROWS)
def test_requests_are_as_few_as_the_page_says(run: Run, name: str) -> None:
    ledger = ROWS[name].act(run)
    assert ledger.calls == Counter(ROWS[name].calls), ledger.ledger


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"first push", "list runs"}))
def test_nothing_is_listed_and_no_size_is_asked_for(run: Run, name: str) -> None:
    run.trainers.reset()
    ROWS[name].act(run)
    run.pull()
    assert not {"list", "size", "exists", "delete"} & run.workers.calls.keys()
    assert not {"size", "exists", "delete"} & run.trainers.calls.keys()
    # A trainer that found no hint, in a run that was new, has listed the snapshots, and what lies beyond the end; and
    # one that wrote a snapshot, what is there of others.
    assert run.trainers.calls["list"] <= 3


def table() -> str:
    lines = [f"| what | {' | '.join(VERBS.values())} | which |", f"| --- |{' ---: |' * len(VERBS)} --- |"]
    for row in ROWS.values():
        counts = " | ".join(str(row.calls.get(verb, 0)) for verb in VERBS)
        lines.append(f"| {row.what} | {counts} | {row.why} |")
    return "\n".join(lines)


def page_with(text: str) -> str:
    begin, end = "<!-- table -->\n", "\n<!-- end -->"
    return re.sub(f"(?s){begin}.*{end}", lambda _: begin + table() + end, text)


def test_the_page_holds_this_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_with(text) == text, "run: python -m tests.scenarios.e2e.test_ledger"
    assert table() in text
    assert f"{keyframe.PIECE_BYTES >> 20} MiB" in text


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
