"""The next patch is read beside the look past its record: a worker waits for two requests in turn, not for three."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pulse_registry.errors import NotFound
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from tests.support.records import DictStore
from tests.support.registries import Bits, Model, bits, change, garbage, quick, small_model
from tests.support.waiting import HANG_S

PATCH = "/objects/patch/"


class Paired(DictStore):
    """A store in which what is paired waits for each other: one after the other, nobody would come to an end."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.paired = False
        self.damaged = 0
        self._both = threading.Barrier(2, timeout=HANG_S)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self.calls.append(key)
        if self.paired and (PATCH in key or key not in self.objects):
            self._both.wait()
        data = super().get(key, byte_range, max_bytes=max_bytes)
        if PATCH in key and self.damaged:
            self.damaged -= 1
            return bytes(len(data))
        return data


@dataclass
class Site:
    store: Paired = field(default_factory=Paired)
    model: Model = field(default_factory=small_model)
    into: Model = field(default_factory=lambda: garbage(small_model()))

    def __post_init__(self) -> None:
        self.trainer, self.worker = quick(self.store, keyframe_share=1e9), quick(self.store)
        self.push()
        self.worker.pull(into=self.into)

    def push(self, times: int = 1) -> Bits:
        for _ in range(times):
            change(self.model, seed=len(self.store.objects))
            self.trainer.push(len(self.store.objects), self.model)
        return bits(self.model)

    def pulled(self, pull: Callable[[Registry], object]) -> list[str]:
        """Return which records and patches were asked for."""
        self.store.calls.clear()
        pull(self.worker)
        return [key.rpartition("/")[2] for key in self.store.calls if "/log/" in key or PATCH in key]


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_patch_comes_beside_the_look_past_its_record(site: Site) -> None:
    wanted = site.push()
    site.store.paired = True
    calls = site.pulled(lambda worker: worker.pull(into=site.into))
    assert bits(site.into) == wanted
    assert len(calls) == 3, calls


def test_the_patch_of_a_version_that_is_known_comes_beside_the_look_for_a_newer_one(site: Site) -> None:
    wanted = site.push()
    site.worker.state()
    site.store.paired = True
    calls = site.pulled(lambda worker: worker.pull(into=site.into))
    assert bits(site.into) == wanted
    assert len(calls) == 2, calls


@pytest.mark.parametrize("behind", [2, 5])
def test_who_is_further_behind_asks_for_nothing_twice(site: Site, behind: int) -> None:
    wanted = site.push(behind)
    calls = site.pulled(lambda worker: worker.pull(into=site.into))
    assert bits(site.into) == wanted
    assert len(calls) == len(set(calls)) == 2 * behind + 1


def test_what_was_damaged_on_its_way_is_read_again(site: Site) -> None:
    wanted = site.push()
    site.store.damaged = 1
    assert len(site.pulled(lambda worker: worker.pull(into=site.into))) == 4
    assert bits(site.into) == wanted


def test_a_patch_that_is_gone_is_told_and_changes_nothing(site: Site) -> None:
    held = bits(site.into)
    site.push()
    for key in [key for key in site.store.objects if PATCH in key]:
        del site.store.objects[key]
    with pytest.raises(NotFound, match="objects/patch/"):
        site.worker.pull(into=site.into)
    assert bits(site.into) == held


@pytest.mark.parametrize("version", [0, 1])
def test_who_goes_back_or_stays_reads_no_patch_ahead(site: Site, version: int) -> None:
    site.push()
    site.worker.pull(into=site.into)
    site.push()
    calls = site.pulled(lambda worker: worker.pull(version, into=site.into))
    assert not [key for key in calls if "00000001-" in key]


def test_weights_that_nobody_knows_read_no_patch_ahead(site: Site) -> None:
    site.push()
    calls = site.pulled(lambda worker: worker.pull(into=garbage(small_model())))
    assert calls.index("000000000003.json") < min(n for n, key in enumerate(calls) if "-" in key)
