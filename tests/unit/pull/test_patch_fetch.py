"""Patches on their way: large ones come by ranges, a damaged group is read again alone, and nothing else with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulse_kernels import get_backend
from pulse_registry.errors import CorruptObject
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import PatchFile
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.pull import fetch, group_stream
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.group_stream import arriving
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from tests.support.groups import geometry_of
from tests.support.inline import Inline
from tests.support.patches import encode_patch
from tests.support.records import DictStore

KEY = "objects/patch/x.safetensors"
REFERENCE = get_backend("reference")


class Recording(DictStore):
    """A store that notes the ranges that are read, and may damage answers."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[ByteRange] = []
        self.damage: dict[int, int] = {}
        """Byte of the object: how often it is still to come damaged."""

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        assert byte_range is not None, "no more than was committed is read"
        self.ranges.append(byte_range)
        data = bytearray(super().get(key, byte_range, max_bytes=max_bytes))
        for place, left in self.damage.items():
            if left and byte_range[0] <= place < byte_range[1]:
                data[place - byte_range[0]] ^= left
                self.damage[place] -= 1
        return bytes(data)


class Stored:
    """A patch of many groups in a recording store."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        old = {"w": rng.integers(0, 2**16, 20_000, dtype=np.uint16)}
        self.geometry: Geometry = geometry_of(old, group_bytes=2000)
        index = np.arange(0, 1000, 3, dtype=np.uint32)
        changes = []
        for group in self.geometry.groups:
            cells = old["w"][group.start : group.start + group.cells]
            changes.append(
                SparseUpdate(group, index, cells[index], cells[index] + rng.integers(1, 9, len(index)).astype("u2"))
            )
        self.file: PatchFile = encode_patch(REFERENCE, self.geometry, 3, 4, changes)
        self.changes = changes
        self.store = Recording()
        self.store.put(KEY, [self.file.head, *self.file.groups])
        self.ref = self.file.ref(KEY)

    def fetch(self) -> Patch:
        (patch,) = begin_patches(self.store, "run", self.geometry, [self.ref], map)
        assert list(arriving([patch], list(patch.entries), Inline(), Timeline())) == list(patch.entries)
        return patch

    def decode(self, patch: Patch) -> None:
        for change in self.changes:
            delta, expected = patch.decode(REFERENCE, change.group), change.delta(REFERENCE)
            assert delta.index.tolist() == expected.index.tolist()
            assert delta.distance.tolist() == expected.distance.tolist()

    def place(self, group: int) -> int:
        return len(self.file.head) + sum(map(len, self.file.groups[:group]))

    def span(self, group: int) -> ByteRange:
        return self.place(group), self.place(group + 1)


@pytest.fixture
def stored() -> Stored:
    return Stored()


def test_a_small_patch_is_one_read(stored: Stored):
    stored.decode(stored.fetch())
    assert stored.store.ranges == [(0, stored.ref.object.size)]


@pytest.mark.parametrize("nbytes", [1, 700, 2500, 5000, 10**6])
def test_a_large_patch_is_read_by_ranges_of_whole_groups_each_byte_once(
    stored: Stored, nbytes: int, monkeypatch: pytest.MonkeyPatch
):
    for module in (fetch, group_stream):
        monkeypatch.setattr(module, "RANGE_BYTES", nbytes)
    patch = stored.fetch()
    ranges = list(stored.store.ranges)
    first = min(stored.ref.object.size, max(nbytes, len(stored.file.head)))
    assert ranges[0] == (0, first)
    ends = {stored.place(n) for n in range(len(stored.file.groups) + 1)}
    at = max(end for end in ends if end <= first)
    for start, stop in ranges[1:]:
        assert start == at
        assert {start, stop} <= ends
        assert stop - start <= max(nbytes, *map(len, stored.file.groups))
        at = stop
    assert at == stored.ref.object.size
    stored.decode(patch)
    assert stored.store.ranges == ranges, "all of it was at hand"


@pytest.mark.parametrize("nbytes", [2500, 10**6])
def test_a_damaged_group_is_read_again_alone(stored: Stored, nbytes: int, monkeypatch: pytest.MonkeyPatch):
    for module in (fetch, group_stream):
        monkeypatch.setattr(module, "RANGE_BYTES", nbytes)
    damaged = [0, 7, len(stored.file.groups) - 1]
    stored.store.damage = {stored.place(number) + 3: 1 for number in damaged}
    patch = stored.fetch()
    stored.store.ranges.clear()
    stored.decode(patch)
    assert stored.store.ranges == [stored.span(number) for number in damaged]


def test_a_damaged_head_is_read_again(stored: Stored):
    stored.store.damage = {len(stored.file.head) - 1: 2}
    stored.decode(stored.fetch())
    assert stored.store.ranges == [(0, stored.ref.object.size)] * 3


def test_a_group_that_is_damaged_in_the_store_is_refused_after_a_second_look(stored: Stored):
    data = bytearray(stored.store.objects[KEY])
    data[stored.place(4) + 1] ^= 1
    stored.store.objects[KEY] = bytes(data)
    patch = stored.fetch()
    with pytest.raises(CorruptObject, match="the BLAKE3 of group 4 differs"):
        patch.decode(REFERENCE, stored.geometry.groups[4])
    assert stored.store.ranges[1:] == [stored.span(4)]
    patch.decode(REFERENCE, stored.geometry.groups[5])


def test_a_group_that_never_comes_whole_is_given_up_after_five_reads(stored: Stored):
    stored.store.damage = {stored.place(2): 100}
    patch = stored.fetch()
    with pytest.raises(CorruptObject, match="the BLAKE3 of group 2 differs"):
        patch.decode(REFERENCE, stored.geometry.groups[2])
    assert len(stored.store.ranges) == 5


def test_a_first_read_that_does_not_hold_the_head_is_refused(stored: Stored):
    read: Any = lambda key, byte_range: b""  # noqa: E731
    with pytest.raises(CorruptObject, match="were committed"):
        Patch.parse(stored.geometry, stored.ref, stored.file.head[:-1], read)
    patch = Patch.parse(stored.geometry, stored.ref, stored.file.head, read)
    assert len(patch.entries) == len(stored.file.groups)


def test_the_beginnings_of_a_long_chain_take_little_memory_together(stored: Stored, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "_LEAST_BEGINNING", 100)
    monkeypatch.setattr(fetch, "_BEGINNINGS_BYTES", 30_000)
    begin_patches(stored.store, "run", stored.geometry, [stored.ref] * 10, map)
    assert stored.store.ranges == [(0, 3000)] * 10
    stored.store.ranges.clear()
    begin_patches(stored.store, "run", stored.geometry, [stored.ref] * 1000, map)
    assert stored.store.ranges == [(0, max(100, stored.ref.head_size))] * 1000
