"""The backup of docs/how-to/back-up-and-restore.md, of a run that others go on with and collect meanwhile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

from pulse_registry.doctor.audit import Defect, RunAudit
from pulse_registry.errors import NotFound
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import PrefixStore
from tests.support.records import DictStore

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "back-up-and-restore.md"
RUN = "math"
Filters = Sequence[tuple[str, str]]
OLD_ORDER: Sequence[Filters] = [
    [("exclude", "*"), ("include", "*/objects/*"), ("include", "*/layouts/*")],
    [("exclude", "*"), ("include", "*/log/*")],
]
"""Objects first, as it was documented once."""


def commands(section: str) -> list[Filters]:
    """Return the filters of each `aws s3 sync` of a section of the page, in order."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n#")[0]
    found = []
    for line in re.findall(r"(?m)^\$ (aws s3 sync .*)$", text):
        words = shlex.split(line)
        filters = [(w.removeprefix("--"), words[n + 1]) for n, w in enumerate(words) if w in ("--exclude", "--include")]
        found.append(filters)
    return found


def chosen(key: str, filters: Filters) -> bool:
    """Tell whether `aws s3 sync` takes a key: the last filter that fits decides."""
    takes = [kind == "include" for kind, pattern in filters if fnmatchcase(key, pattern)]
    return takes[-1] if takes else True


def sync(source: DictStore, target: DictStore, filters: Filters, meanwhile: Callable[[], None]) -> None:
    """List, then copy what was listed and is still there, one object at a time."""
    for key in [key for key in source.list("") if chosen(key, filters)]:
        meanwhile()
        try:
            target.put(key, source.get(key))
        except NotFound:
            continue  # aws says so, goes on, and ends with an exit code


@dataclass
class Live:
    """A run that goes on: at each turn a version more, and now and then a collection."""

    grace_s: float = 0.0
    now: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    step: int = 0
    store: DictStore = field(default_factory=DictStore)

    def __post_init__(self) -> None:
        self.store = DictStore(lambda: self.now)
        options = PushOptions(dtype="keep", keyframe_share=1e9, keyframe_every=3)
        self.trainer = Registry(self.store, RUN, Options(push=options, compute=ComputeOptions(backend="reference")))

    def turn(self) -> None:
        self.now += timedelta(seconds=60)
        self.trainer.push(self.step, {"w": np.arange(500, dtype=np.uint16) + np.uint16(self.step)})
        self.step += 1
        if self.step % 4 == 0:
            policy = RetentionPolicy(keep_last=4, keep_seconds=0, grace_seconds=self.grace_s)
            self.trainer.gc(policy, dry_run=False)


def defects(store: DictStore) -> list[Defect]:
    audit = RunAudit(PrefixStore(store, RUN), RUN)
    return [*audit.defects(contents=True)]


def backup(order: Sequence[Filters], *, grace_s: float) -> tuple[Live, DictStore]:
    live, copy = Live(grace_s=grace_s), DictStore()
    with live.trainer:
        for _ in range(10):
            live.turn()
        for filters in order:
            sync(live.store, copy, filters, live.turn)
    return live, copy


def newest(store: DictStore) -> int:
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as reader:
        return reader.version().version


@pytest.mark.slow
def test_the_documented_backup_of_a_live_run_is_whole_and_can_be_gone_on_with() -> None:
    live, copy = backup(commands("Backup"), grace_s=7 * 86_400)
    assert newest(live.store) > newest(copy) >= 9
    assert defects(copy) == []
    assert defects(live.store) == []
    target = np.zeros(500, np.uint16)
    with Registry(copy, RUN, Options(compute=ComputeOptions(backend="reference"))) as restored:
        held = restored.pull(into={"w": target}).version
        assert np.array_equal(target, np.arange(500, dtype=np.uint16) + np.uint16(held))
        assert restored.push(1000, {"w": target + np.uint16(7)}).version == held + 1
    assert defects(copy) == []


@pytest.mark.slow
def test_a_second_backup_brings_the_copy_up_to_date() -> None:
    live, copy = backup(commands("Backup"), grace_s=7 * 86_400)
    for filters in commands("Backup"):
        sync(live.store, copy, filters, lambda: None)
    assert newest(copy) == newest(live.store)
    assert defects(copy) == []


def test_a_restored_run_is_whole_at_every_moment() -> None:
    _, copy = backup(commands("Backup"), grace_s=7 * 86_400)
    target = DictStore()

    def check() -> None:
        if any(key.startswith(f"{RUN}/log/") for key in target.objects):
            assert defects(target) == []

    for filters in commands("Restore"):
        sync(copy, target, filters, check)
    assert newest(target) == newest(copy)


@pytest.mark.parametrize(
    ("order", "grace_s"),
    [(OLD_ORDER, 7 * 86_400), (commands("Backup"), 0.0)],
    ids=["objects before the log", "a collector that deletes meanwhile"],
)
def test_a_backup_in_another_way_lacks_objects_and_the_audit_says_which(
    order: Sequence[Filters], grace_s: float
) -> None:
    _, copy = backup(order, grace_s=grace_s)
    lacking = [one for one in defects(copy) if one.key.startswith("objects/")]
    assert lacking
    assert not any(f"{RUN}/{one.key}" in copy.objects for one in lacking)
