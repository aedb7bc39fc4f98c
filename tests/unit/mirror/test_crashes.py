"""Killed at every operation, with a trainer, a collector and another mirror beside it: nothing is ever lost or early.

The plan: a fixed story at the source; a mirror that dies at its n-th operation, before or after it took effect; another
one that goes on from what is there. After each operation at the copy, a reader finds what its newest record names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from pulse_registry.compaction import CompactOptions
from pulse_registry.errors import Mirrored
from pulse_registry.format import keys
from pulse_registry.mirror import log_copy
from pulse_registry.retention import RetentionPolicy
from pulse_registry.testing import CountingStore, FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.bases import LENDER, base_files, lend, opened
from tests.support.mirrors import copy, mirror, missing, tree, whole_log
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model, without_pauses

NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


class Killed(BaseException):
    """The process is dead: it does nothing any more, not even tidy up."""


class Watched(DictStore):
    """The copy, looked at after every operation that may take something from its readers.

    Not after an object is created: readers have what they had.
    """

    def __init__(self, source: DictStore) -> None:
        super().__init__()
        self.log, self.source_log = whole_log(self), whole_log(source)

    def put(self, key, data, *, if_absent=False):
        created = key not in self.objects
        super().put(key, data, if_absent=if_absent)
        if not created or keys.record_seq(key.removeprefix(f"{RUN}/")) is not None:
            self._look(key)

    def delete(self, key):
        super().delete(key)
        self._look(key)

    def _look(self, key: str) -> None:
        assert not missing(self.source_log.refresh(), self.log.refresh(), self), f"after {key}"


@dataclass
class Story:
    """What happens at the source, chapter by chapter.

    Pushes on a base that another run lends, merged patches and keyframes, tags, two collections.
    """

    source: DictStore = field(default_factory=DictStore)
    chapters: Iterator[None] = field(init=False)

    def __post_init__(self) -> None:
        self.chapters = self._chapters()

    def go_on(self) -> None:
        next(self.chapters, None)

    def end(self) -> None:
        """Tell the rest, and let the source delete what it has retired."""
        for _ in self.chapters:
            pass
        for _ in range(2):
            with quick(self.source) as registry:
                registry.gc(NOW, dry_run=False)

    def _push(self, first: int, count: int) -> None:
        model = small_model()
        with without_pauses(snapshot_every=3), quick(self.source, keyframe_every=4) as registry:
            for step in range(first, first + count):
                change(model, step)
                registry.push(step, model, files={"config.json": str(step // 3).encode()})

    def _chapters(self) -> Iterator[None]:
        lend(self.source)
        with opened(self.source, RUN, base=LENDER) as registry:
            registry.push(0, small_model())
        self._push(1, 4)
        yield
        with quick(self.source) as registry:
            compactor = registry.compactor(CompactOptions())
            while compactor.step() is not None:
                pass
            compactor.close()
            registry.tag("best", 2)
        yield
        for _ in range(2):
            with quick(self.source) as registry:
                registry.gc(NOW, dry_run=False)
            self._push(9, 2)
            yield


def killed(store: DictStore, nth: int, action: str, dead: list[bool]) -> FaultStore:
    """Return a store whose n-th operation, and all after it, are a dead process's."""

    def die(verb: str, key: str) -> BaseException:
        dead.append(True)
        return Killed(key)

    first = Fault(action, nth=nth, error=die)  # type: ignore[arg-type]
    rest = Fault("fail_before", matches=lambda verb, key: bool(dead), error=die)
    return FaultStore(store, [first, rest])


def tell(nth: int, action: str, side: str, beside: Callable[[Story, Watched], None]) -> bool:
    """Tell the story with a mirror that dies at its n-th operation; return whether it had as many."""
    story = Story()
    copied = Watched(story.source)
    dead: list[bool] = []
    counted = CountingStore(killed(story.source if side == "source" else copied, nth, action, dead))
    ours, theirs = (counted, copied) if side == "source" else (story.source, counted)
    one = mirror(ours, theirs, policy=NOW)
    try:
        for _ in range(4):
            story.go_on()
            one.step()
            beside(story, copied)
    except Killed:
        pass
    finally:
        with suppress(Killed):
            one.close()
    story.end()
    for _ in range(2):  # the second one deletes what records of the first one freed
        copy(story.source, copied, policy=NOW)
    assert tree(copied) == tree(story.source)
    assert all(story.source.objects[key] == copied.objects[key] for key in base_files(copied))
    return len(counted.ledger) >= nth


def alone(story: Story, copied: Watched) -> None:
    """Nobody is beside it."""


def among_others(story: Story, copied: Watched) -> None:
    """Another mirror copies as well, and a writer who does not know better tries to tag the copy."""
    copy(story.source, copied, policy=NOW)
    with quick(copied) as registry, pytest.raises(Mirrored):
        registry.tag("mine", len(registry.state().versions) - 1)


@pytest.mark.parametrize("side", ["source", "copy"])
@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
@pytest.mark.parametrize(
    "stride",
    [173, pytest.param(37, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.sweep)],
    ids=["some", "many", "each"],
)
def test_a_mirror_that_is_killed_anywhere_is_gone_on_with(side: str, action: str, stride: int, monkeypatch):
    monkeypatch.setattr(log_copy, "_BATCH", 3)
    for nth in itertools.count(1, stride):
        if not tell(nth, action, side, alone):
            assert nth > stride
            return


@pytest.mark.parametrize(
    "stride",
    [331, pytest.param(37, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.sweep)],
    ids=["some", "many", "each"],
)
def test_so_it_is_with_another_mirror_and_a_writer_beside_it(stride: int):
    for nth in itertools.count(1, stride):
        if not tell(nth, "fail_after", "copy", among_others):
            return


@pytest.mark.slow
def test_killed_with_a_damaged_object_at_the_source():
    story = Story()
    copied = Watched(story.source)
    story.go_on()
    key = next(key for key in story.source.objects if "/patch/000000000002-" in key)
    good = story.source.objects[key]
    story.source.objects[key] = b"\0" * len(good)
    for nth in range(1, 60, 7):
        dead: list[bool] = []
        one = mirror(story.source, killed(copied, nth, "fail_after", dead))
        with suppress(Killed):
            one.step()
        with suppress(Killed):
            one.close()
        assert key not in copied.objects
    story.source.objects[key] = good
    story.end()
    for _ in range(2):
        copy(story.source, copied, policy=NOW)
    assert tree(copied) == tree(story.source)
    assert f"{RUN}/mirror" in copied.objects
