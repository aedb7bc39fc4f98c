"""Patches of layouts of more than 64 groups are stored in parts: the very bytes that one object would have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.format.patch_coding import Coded
from pulse_registry.format.patch_parts import parts_in
from pulse_registry.push.upload import store_patch
from pulse_registry.store import Body
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import PatchRef
from tests.support.groups import geometry_of, small_groups
from tests.support.inline import Inline
from tests.support.parts import CHANGES, change_groups, cut, end_to_end, parts_of, small_parts, wide_model, wide_run
from tests.support.records import DictStore
from tests.support.registries import RUN, all_restored, bits, garbage, quick, state_of
from tests.support.sampling import examples
from tests.unit.compaction.runs import compact


def patch(store: DictStore, base: int, target: int) -> PatchRef:
    [found] = [patch for patch in state_of(store).patches if (patch.base, patch.target) == (base, target)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("coder", ["gap", "class", "auto"])
def test_head_and_parts_are_the_patch_of_one_object(coder: Any):
    store, twin = DictStore(), DictStore()
    states = wide_run(store, coder=coder)
    with small_parts(10**6):
        wide_run(twin, coder=coder)
    for version, groups in enumerate(CHANGES, 1):
        ref, whole = patch(store, version - 1, version), patch(twin, version - 1, version)
        data = twin.objects[f"{RUN}/{whole.object.key}"]
        objects = parts_of(store, version - 1, version)
        write_id = ref.object.key.split("/")[2].split("-")[2]
        assert (ref, objects) == cut(whole, data, 64, write_id)
        assert end_to_end(objects) == data
        assert ref.size == len(data) == whole.size
        numbers = {key.rpartition("/")[2] for key in objects}
        assert numbers == {"patch-head"} | {f"{group // 64:05d}" for group in groups}
    with small_groups():
        assert all_restored(store, states) == all_restored(twin, states) == [bits(model) for model in states]


def test_a_layout_of_64_groups_keeps_its_objects_and_records():
    """The 64th group is the last of one part: from the 65th on there are parts."""
    for cells, parted in ((64 * 32, False), (64 * 32 + 1, True)):
        store, model = DictStore(), {"w": wide_model()["a.weight"].reshape(-1)[:cells].copy()}
        with small_groups(), quick(store, keyframe_share=1e9) as registry:
            registry.push(0, model)
            model["w"].view("u2")[-1] ^= 1
            registry.push(1, model)
        ref = patch(store, 0, 1)
        assert (ref.parts is not None) == parted == keys.is_head_key(ref.object.key)
        records = [store.objects[key] for key in sorted(store.objects) if key.startswith(f"{RUN}/log/0")]
        formats = [b"pulse-record/2" in record for record in records]
        assert formats == [False, False, parted]
        assert (b'"parts":' in records[-1]) == parted


def test_a_run_goes_on_from_patches_of_one_object_with_patches_in_parts():
    store = DictStore()
    with small_parts(10**6):  # as releases before did
        model = wide_run(store, 4)[-1]
    states = [model]
    with small_groups(), quick(store, keyframe_share=1e9) as registry:
        for version in (4, 5):
            model["b.bias"].view("u4")[version] += 1
            registry.push(version, model)
            states.append({name: array.copy() for name, array in model.items()})
    assert [ref.parts is None for ref in state_of(store).patches] == [True] * 3 + [False] * 2
    assert state_of(store).to_snapshot().format == "pulse-snapshot/3"
    with small_groups(), quick(store) as reader:
        for version, expected in zip((3, 5, 4), (states[0], states[2], states[1]), strict=True):
            reader.pull(version, into=model)
            assert bits(model) == bits(expected)


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_merged_patches_are_stored_in_parts(coder: Any):
    store, twin = DictStore(), DictStore()
    states = wide_run(store, coder=coder)
    with small_parts(10**6):
        wide_run(twin, coder=coder)
    with small_groups():
        made = compact(store)
        with small_parts(10**6):
            compact(twin)
        assert (0, 4) in {(one.base, one.target) for one in made}
        ref, whole = patch(store, 0, 4), patch(twin, 0, 4)
        assert (ref.object.blake3, ref.size) == (whole.head_blake3, whole.size)
        assert end_to_end(parts_of(store, 0, 4)) == twin.objects[f"{RUN}/{whole.object.key}"]
        assert all_restored(store, states) == [bits(model) for model in states]


@pytest.mark.slow
@examples(30)
@given(st.integers(1, 8), st.sets(st.integers(0, 155)), st.sampled_from(["gap", "class", "auto"]))
def test_any_change_in_parts_of_any_size_is_restored(part_groups: int, groups: set[int], coder: Any):
    store, model = DictStore(), wide_model()
    states = [bits(model)]
    with small_groups(), small_parts(part_groups):
        with quick(store, keyframe_share=1e9, coder=coder) as registry:
            registry.push(0, model)
            change_groups(model, groups, 1)
            registry.push(1, model)
        states.append(bits(model))
        assert all_restored(store, [model, model]) == states
    ref, objects = patch(store, 0, 1), parts_of(store, 0, 1)
    assert len(objects) == 1 + len({group // part_groups for group in groups})
    assert sum(map(len, objects.values())) == ref.size


# -- what goes wrong --------------------------------------------------------------------------------------------------


def coded(geometry: Geometry, store: DictStore) -> list[Coded]:
    """The groups of a patch, as they are coded."""
    ref = patch(store, 0, 1)
    objects = parts_of(store, 0, 1)
    found = []
    for part in parts_in(ref, objects[ref.object.key]):
        at = 0
        for row in part.rows:
            entry = list(part.directory.values())[row]
            found.append(Coded(entry, objects[part.key][at : at + entry.size]))
            at += entry.size
    return found


@pytest.fixture(scope="module")
def groups() -> tuple[Geometry, list[Coded]]:
    store = DictStore()
    wide_run(store, 2)
    geometry = geometry_of(wide_model())
    return geometry, coded(geometry, store)


def test_the_head_is_stored_after_all_parts_and_few_parts_wait(groups: tuple[Geometry, list[Coded]]):
    geometry, found = groups
    order: list[str] = []

    class Noting(DictStore):
        def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
            order.append(key.rpartition("/")[2])
            super().put(key, data, if_absent=if_absent)

    def coming() -> Iterator[Coded]:
        for group in found:
            order.append(f"group {group.entry.group}")
            yield group

    timeline = Timeline()
    ref = store_patch(Noting(), geometry, 1, "0" * 32, coming(), Inline(), timeline)
    assert order == ["group 0", "group 1", "group 70", "00000", "group 130", "00001", "00002", "patch-head"]
    phases = {phase.phase: phase for phase in timeline.phases()}
    assert phases["upload"].nbytes == ref.size


def test_what_the_coding_raises_ends_the_upload_and_no_head_is_stored(groups: tuple[Geometry, list[Coded]]):
    geometry, found = groups

    def coming() -> Iterator[Coded]:
        yield from found[:3]
        raise CorruptObject("the base is gone")

    store = DictStore()
    with pytest.raises(CorruptObject, match="base is gone"):
        store_patch(store, geometry, 1, "0" * 32, coming(), Inline(), Timeline())
    assert {key.rpartition("/")[2] for key in store.objects} == {"00000"}


@pytest.mark.parametrize("failing", ["00000", "00001", "00002", "patch-head"])
def test_a_push_whose_part_or_head_is_not_taken_commits_nothing_and_the_next_carries_it(failing: str):
    store = DictStore()
    states = wide_run(store, 1)
    model, down = states[0], [False]

    def due(verb: str, key: str) -> bool:
        return down[0] and verb == "put" and "/patch/" in key and key.endswith(failing)

    with small_groups(), quick(FaultStore(store, [Fault("fail_before", matches=due)]), keyframe_share=1e9) as registry:
        registry.push(1, model)
        change_groups(model, CHANGES[0], 1)
        down[0] = True
        with pytest.raises(StoreUnavailable):
            registry.push(2, model)
        assert state_of(store).latest.version == 1  # type: ignore[union-attr]
        down[0] = False
        registry.push(3, model)
    with small_groups():
        assert all_restored(store, [model] * 3)[-1] == bits(model)


def test_a_push_stores_each_part_once_and_a_pull_reads_each_once():
    store = CountingStore(DictStore())
    states = wide_run(store, 2)
    puts = [key for verb, key in store.ledger if verb == "put" and "/patch/" in key]
    assert len(puts) == len(set(puts)) == 4
    store.ledger.clear()
    into = garbage(states[0])
    with small_groups(), quick(store) as reader:
        reader.pull(0, into=into)
        store.ledger.clear()
        result = reader.pull(1, into=into)
    gets = [key for verb, key in store.ledger if verb == "get" and "/patch/" in key]
    assert sorted(gets) == sorted(puts)
    assert bits(into) == bits(states[1])
    assert result.objects == 2, "the parts come side by side: the route counts them as one"
