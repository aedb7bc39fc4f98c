"""Patches in parts are read as patches of one object are; what is wrong with a part, or with what says so, is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pulse_kernels import get_backend
from pulse_registry.cache import CacheFolder
from pulse_registry.errors import CorruptObject, NotFound, PulseError
from pulse_registry.events import Event, EventKind
from pulse_registry.format import keys
from pulse_registry.format.patch_parts import parts_in, pieces_of
from pulse_registry.log import RunState, sealed_hash
from pulse_registry.log.rules import violation
from pulse_registry.options import Options
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.group_stream import arriving
from pulse_registry.push.options import PushOptions
from pulse_registry.store import PrefixStore, Store
from pulse_registry.testing import CountingStore
from pulse_registry.timeline import Timeline
from pulse_schemas import CommitRecord, PatchRef, RetireRecord, SchemaError, Snapshot, unseal_record
from tests.support.groups import geometry_of, small_groups
from tests.support.inline import Inline
from tests.support.parts import CHANGES, change_groups, cut, parts_of, small_parts, wide_model, wide_run
from tests.support.records import DictStore
from tests.support.registries import RUN, Bits, bits, copied, garbage, quick, registry_with, state_of
from tests.support.sampling import examples
from tests.unit.compaction.runs import compact

REFERENCE = get_backend("reference")
GEOMETRY = geometry_of(wide_model())


@pytest.fixture(scope="module")
def run() -> tuple[DictStore, list[Bits]]:
    """A run of four versions in parts, of which version 0 alone has a keyframe."""
    store = DictStore()
    states = wide_run(store, 4, coder="gap")
    return store, [bits(model) for model in states]


@pytest.fixture
def store(run: tuple[DictStore, list[Bits]]) -> DictStore:
    return copied(run[0])


def ref_of(store: DictStore, base: int, target: int) -> PatchRef:
    [found] = [ref for ref in state_of(store).patches if (ref.base, ref.target) == (base, target)]
    return found


def read(store: DictStore, ref: PatchRef) -> list[tuple[int, list[int], list[int]]]:
    """Return what a patch changes of each group, as a pull reads it."""
    [patch] = begin_patches(PrefixStore(store, RUN), RUN, GEOMETRY, [ref], map)
    found = []
    for number in arriving([patch], list(patch.entries), Inline(), Timeline()):
        delta = patch.decode(REFERENCE, GEOMETRY.groups[number])
        found.append((number, delta.index.tolist(), delta.distance.tolist()))
    return found


@pytest.mark.slow
@examples(30)
@given(st.sets(st.integers(0, 155)), st.integers(1, 60), st.integers(1, 400))
def test_both_forms_are_read_alike(groups: set[int], part_groups: int, range_bytes: int):
    store, model = DictStore(), wide_model()
    with small_groups(), small_parts(10**6), quick(store, keyframe_share=1e9, coder="gap") as registry:
        registry.push(0, model)
        change_groups(model, groups, 1)
        registry.push(1, model)
    whole = ref_of(store, 0, 1)
    ref, objects = cut(whole, store.objects[f"{RUN}/{whole.object.key}"], part_groups)
    store.objects |= {f"{RUN}/{key}": data for key, data in objects.items()}
    with small_parts(part_groups), pytest.MonkeyPatch.context() as patched:
        patched.setattr("pulse_registry.pull.group_stream.RANGE_BYTES", range_bytes)
        assert read(store, ref) == read(store, whole)
        parts = list(parts_in(ref, objects[ref.object.key]))
    assert {part.key: part.size for part in parts} == {
        key: len(data) for key, data in objects.items() if not key.endswith("/patch-head")
    }
    assert len({part.blake3 for part in parts}) == len(parts)
    assert [sum(size for size, _ in pieces_of(part)) for part in parts] == [part.size for part in parts]


def test_a_part_is_told_from_those_of_other_patches_and_of_other_numbers(store: DictStore):
    names = set()
    for base in range(3):
        ref = ref_of(store, base, base + 1)
        names |= {part.blake3 for part in parts_in(ref, store.objects[f"{RUN}/{ref.object.key}"])}
    assert len(names) == sum(len({group // 64 for group in groups}) for groups in CHANGES[:3])


# -- hostile parts ----------------------------------------------------------------------------------------------------


def other_patch(store: DictStore, key: str) -> None:
    store.objects[key] = next(data for name, data in parts_of(store, 1, 2).items() if name.endswith("/00001"))


def flip(store: DictStore, key: str) -> None:
    data = bytearray(store.objects[key])
    data[len(data) // 2] ^= 4
    store.objects[key] = bytes(data)


HARM: dict[str, tuple[Callable[[DictStore, str], Any], type[PulseError]]] = {
    "missing": (lambda store, key: store.objects.pop(key), NotFound),
    "short": (lambda store, key: store.objects.update({key: store.objects[key][:-1]}), CorruptObject),
    "empty": (lambda store, key: store.objects.update({key: b""}), CorruptObject),
    "flipped": (flip, CorruptObject),
    "of another patch": (other_patch, CorruptObject),
    "the head": (
        lambda store, key: store.objects.update({key: store.objects[f"{key[:-6]}/patch-head"][:300]}),
        CorruptObject,
    ),
}


@pytest.mark.parametrize("how", HARM)
def test_a_part_that_is_not_what_the_head_says_is_a_typed_error_that_names_it(store: DictStore, how: str):
    harm, error = HARM[how]
    ref = ref_of(store, 0, 1)
    key = keys.part_key(ref.object.key, 1)
    harm(store, f"{RUN}/{key}")
    with pytest.raises(error, match="/00001") as caught:
        read(store, ref)
    assert caught.value.key is not None
    assert keys.named_key(caught.value.key.removeprefix(f"{RUN}/")) == ref.object.key
    # No other route leads there.
    into = garbage(wide_model())
    before = bits(into)
    with small_groups(), quick(store) as worker, pytest.raises(error):
        worker.pull(1, into=into)
    assert bits(into) == before


def test_bytes_after_the_last_group_of_a_part_are_not_read(store: DictStore, run: tuple[DictStore, list[Bits]]):
    """As the bytes after a patch of one object: nobody reads past what was committed."""
    ref = ref_of(store, 0, 1)
    store.objects[f"{RUN}/{keys.part_key(ref.object.key, 1)}"] += b"more"
    assert read(store, ref) == read(run[0], ref)


@pytest.fixture(scope="module")
def compacted() -> tuple[DictStore, list[Bits]]:
    """A longer run, in which a merged patch leads from 0 to 4."""
    store = DictStore()
    states = wide_run(store, coder="gap")
    with small_groups():
        compact(store)
    return store, [bits(model) for model in states]


@pytest.mark.parametrize("how", HARM)
@pytest.mark.parametrize("cached", [False, True])
def test_a_patch_with_a_bad_part_is_avoided_as_one(
    compacted: tuple[DictStore, list[Bits]], how: str, cached: bool, tmp_path: Path
):
    store, events = copied(compacted[0]), list[Event]()
    merged = ref_of(store, 0, 4).object.key
    HARM[how][0](store, f"{RUN}/{keys.part_key(merged, 0)}")
    into = garbage(wide_model())
    folder = CacheFolder(tmp_path / "cache", 10**6) if cached else None
    options = Options(push=PushOptions(dtype="keep"), cache=folder, on_event=events.append)
    with small_groups(), registry_with(store, options) as worker:
        assert any(leg.patch and leg.patch.object.key == merged for leg in worker.route(4).legs)
        result = worker.pull(4, into=into)
    assert bits(into) == compacted[1][4]
    assert result.avoided == (merged,)
    assert [event.key for event in events if event.kind is EventKind.OBJECT_AVOIDED] == [merged]


# -- hostile heads and records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [-1, 1, 2**40])
def test_parts_that_lie_about_their_bytes_are_refused(store: DictStore, more: int):
    ref = ref_of(store, 0, 1)
    with pytest.raises(CorruptObject, match="this is not a patch object"):
        read(store, ref.model_copy(update={"parts": (ref.parts or 0) + more}))


def test_a_head_of_another_patch_is_refused(store: DictStore):
    ref, other = ref_of(store, 0, 1), ref_of(store, 1, 2)
    store.objects[f"{RUN}/{ref.object.key}"] = store.objects[f"{RUN}/{other.object.key}"]
    with pytest.raises(CorruptObject, match=r"BLAKE3|past the end|bytes"):
        read(store, ref)


@pytest.mark.parametrize(
    "change", [{"head_size": 100}, {"head_blake3": "0" * 64}, {"parts": -1}, {"parts": True}, {"parts": 2**63}]
)
def test_a_reference_whose_object_is_not_its_head_is_no_document(store: DictStore, change: dict[str, Any]):
    fields = ref_of(store, 0, 1).model_dump() | change
    with pytest.raises(ValidationError):
        PatchRef.model_validate(fields)


def last_record(store: DictStore) -> CommitRecord:
    newest = max(key for key in store.objects if key.startswith(f"{RUN}/log/0"))
    record = unseal_record(store.objects[newest])
    assert isinstance(record, CommitRecord)
    return record


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("objects/patch/000000000002-000000000003-{id}/00000", "a part of a patch"),
        ("objects/patch/000000000002-000000000003-{id}/00000", "no key of a patch's head"),
        ("objects/patch/000000000002-000000000003-{id}.safetensors", "no key of a patch's head"),
        ("objects/patch/000000000002-000000000003-{id}/more/patch-head", "no key of a patch's head"),
        ("objects/patch/000000000002-000000000003-x{id}/patch-head", "no key of a patch's head"),
        ("objects/patch/000000000001-000000000003-{id}/patch-head", "no key of an object of version 3"),
    ],
)
def test_a_record_that_names_parts_by_other_keys_is_refused(store: DictStore, key: str, message: str):
    record = last_record(store)
    assert record.patch is not None
    named = record.patch.object.model_copy(update={"key": key.format(id="1" * 32)})
    whole = {"parts": None} if message.startswith("a part") else {}
    broken = record.patch.model_copy(update={"object": named, **whole})
    format_ = "pulse-record/1" if whole else "pulse-record/2"
    sealed = record.model_copy(update={"patch": broken, "format": format_}).seal()
    store.objects[f"{RUN}/{keys.record_key(record.seq)}"] = sealed
    for name in [name for name in store.objects if name.startswith(f"{RUN}/log/s") or name == f"{RUN}/head"]:
        del store.objects[name]
    with pytest.raises(CorruptObject, match=message):
        state_of(store)


def test_a_snapshot_has_one_format_and_names_parts_by_heads(store: DictStore):
    state = state_of(store)
    snapshot = state.to_snapshot()
    assert snapshot.format == "pulse-snapshot/3"
    assert RunState.from_snapshot(Snapshot.unseal(snapshot.seal())).to_snapshot() == snapshot
    for change in ({"format": "pulse-snapshot/2"}, {"patches": ()}):
        with pytest.raises(SchemaError, match="of format"):
            Snapshot.parse(snapshot.model_copy(update=change).canonical())
    patch = snapshot.patches[0]
    for key, message in ((keys.patch_key(0, 1, "1" * 32), "head"), (keys.part_key(patch.object.key, 0), "no key of")):
        named = patch.model_copy(update={"object": patch.object.model_copy(update={"key": key})})
        with pytest.raises(CorruptObject, match=message):
            RunState.from_snapshot(snapshot.model_copy(update={"patches": (named, *snapshot.patches[1:])}))


def test_to_retire_a_part_retires_the_patch(store: DictStore):
    ref = ref_of(store, 0, 1)
    record = last_record(store)
    retire = RetireRecord(
        run=RUN, seq=record.seq + 1, epoch=1, write_id="2" * 32, previous=sealed_hash(record.seal()),
        created_at=record.created_at, keys=(keys.part_key(ref.object.key, 2),)
    )  # fmt: skip
    state = state_of(store).copy()
    assert violation(state, retire) is None
    state.apply(retire)
    assert not state.is_live(ref.object.key)
    assert state.is_retired_key(ref.object.key)
    assert state.is_retired_key(keys.part_key(ref.object.key, 0))
    assert list(state.retired_keys) == [ref.object.key]


# -- the node's cache -------------------------------------------------------------------------------------------------


def cached_pull(store: Store, folder: Path, version: int) -> Bits:
    into = garbage(wide_model())
    options = Options(push=PushOptions(dtype="keep"), cache=CacheFolder(folder, 10**6))
    with small_groups(), registry_with(store, options) as worker:
        worker.pull(version, into=into)
    return bits(into)


def test_parts_are_read_once_on_a_host(run: tuple[DictStore, list[Bits]], tmp_path: Path):
    for worker in range(2):
        store = CountingStore(run[0])
        assert cached_pull(store, tmp_path / "cache", 3) == run[1][3]
        objects = [key for verb, key in store.ledger if "/objects/" in key]
        assert (len(objects) > 0) == (worker == 0)
        assert len([key for key in objects if "/patch/" in key]) == len({key for key in objects if "/patch/" in key})
    for ref in state_of(run[0]).patches:
        for part in parts_in(ref, run[0].objects[f"{RUN}/{ref.object.key}"]):
            assert (tmp_path / "cache" / part.blake3).read_bytes() == run[0].objects[f"{RUN}/{part.key}"]


def test_a_damaged_copy_of_a_part_is_dropped_and_not_the_patch(run: tuple[DictStore, list[Bits]], tmp_path: Path):
    cached_pull(run[0], tmp_path / "cache", 3)
    ref = ref_of(run[0], 0, 1)
    [part] = [part for part in parts_in(ref, run[0].objects[f"{RUN}/{ref.object.key}"]) if part.key.endswith("1")]
    place = tmp_path / "cache" / part.blake3
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(bytes(data))
    store = CountingStore(run[0])
    assert cached_pull(store, tmp_path / "cache", 3) == run[1][3]
    assert {key for verb, key in store.ledger if "/objects/" in key} == {f"{RUN}/{part.key}"}
    assert place.read_bytes() == run[0].objects[f"{RUN}/{part.key}"]
