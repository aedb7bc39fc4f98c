"""A run begins with a version of another run: its first push is a patch, and the cells are stored once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pulse_registry.errors import CorruptObject, Gone, InvalidArgument, LayoutMismatch, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log.mirror_mark import write_mark
from pulse_registry.retention import RetentionPolicy
from pulse_registry.roots import NearestStore
from pulse_registry.store import RunStore, Store
from pulse_registry.testing import Fault, FaultStore
from pulse_schemas import BASES, unseal_record
from tests.support.bases import LENDER, base_files, broken_promises, lend, opened, state_of, stored_bytes, tuned
from tests.support.records import DictStore
from tests.support.registries import bits, garbage

NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


def pulled(store: Store, run: str, model: Any) -> Any:
    into = garbage(model)
    with opened(store, run) as registry:
        registry.pull(into=into)
    return bits(into)


def begun(store: Store, run: str, model: Any, base: str = LENDER, **options: Any) -> Any:
    with opened(store, run, base, **options) as registry:
        return registry.push(7, model)


def test_the_first_push_is_a_patch_on_the_other_runs_version() -> None:
    store = DictStore()
    model = lend(store, 3)
    result = begun(store, "a", tuned(model, 1))
    assert (result.version, result.kind, result.step) == (1, "patch", 7)
    state = state_of(store, "a")
    first, lent = state.version(0), state_of(store, LENDER).version(2)
    assert (first.digest, first.layout, first.step) == (lent.digest, lent.layout, lent.step)
    assert first.metadata == {"base": f"{LENDER}@2"}
    assert pulled(store, "a", model) == bits(tuned(model, 1))
    [patch] = state.patches_into(1)
    assert [*store.list("a/objects/")] == [f"a/{patch.object.key}"]


def test_cells_are_stored_once_for_all_runs() -> None:
    store = DictStore()
    model = lend(store)
    for run in range(5):
        begun(store, f"tune-{run}", tuned(model, run))
    [keyframe] = [found for found in state_of(store, LENDER).keyframes if found.base is None]
    assert stored_bytes(store, BASES) == keyframe.size
    assert len({base for run in range(5) for base in state_of(store, f"tune-{run}").bases}) == 1
    for run in range(5):
        assert pulled(store, f"tune-{run}", model) == bits(tuned(model, run))
    assert broken_promises(store) == []


def test_the_run_that_lends_goes_on_with_the_shared_files() -> None:
    store = DictStore()
    model = lend(store)
    [own] = state_of(store, LENDER).keyframes
    begun(store, "a", tuned(model, 1))
    assert state_of(store, LENDER).keyframe(0) != own
    with opened(store, LENDER) as registry:
        registry.gc(NOW, dry_run=False)
        registry.gc(NOW, dry_run=False)
    assert [*store.list(f"{LENDER}/objects/")] == []
    assert pulled(store, LENDER, model) == bits(model)
    assert broken_promises(store) == []


def test_without_the_right_to_write_there_the_other_run_keeps_its_own() -> None:
    store = DictStore()
    model = lend(store)
    before = {key: store.get(key) for key in store.list(f"{LENDER}/")}
    refuse = Fault("fail_before", "put", lambda verb, key: key.startswith(f"{LENDER}/"))
    begun(FaultStore(store, [refuse]), "a", tuned(model, 1))
    assert {key: store.get(key) for key in store.list(f"{LENDER}/")} == before
    assert pulled(store, "a", model) == bits(tuned(model, 1))


def test_a_version_without_a_keyframe_gets_one() -> None:
    store = DictStore()
    lend(store, 3)
    with opened(store, LENDER) as registry:
        middle = registry.load(1, framework="numpy")
    assert state_of(store, LENDER).keyframe(1) is None
    begun(store, "a", tuned(middle, 1), f"{LENDER}@1")
    assert pulled(store, "a", middle) == bits(tuned(middle, 1))
    assert state_of(store, "a").version(0).metadata == {"base": f"{LENDER}@1"}


def test_a_base_is_named_by_a_tag_and_in_any_case() -> None:
    store = DictStore()
    lend(store, 3)
    with opened(store, LENDER) as registry:
        registry.tag("best", 0)
        first = registry.load(0, framework="numpy")
    begun(store, "a", tuned(first, 1), f"{LENDER.upper()}@Best")
    assert state_of(store, "a").version(0).metadata == {"base": f"{LENDER}@0"}


def test_a_run_may_begin_with_a_version_that_is_a_shared_base_itself() -> None:
    store = DictStore()
    model = lend(store)
    begun(store, "a", tuned(model, 1))
    begun(store, "b", tuned(model, 2), "a@0")
    assert state_of(store, "b").bases.keys() == state_of(store, "a").bases.keys()
    assert len(base_files(store)) == 2


def test_who_starts_again_goes_on_whatever_base_he_names() -> None:
    store = DictStore()
    model = lend(store)
    begun(store, "a", tuned(model, 1))
    before = store.objects.copy()
    result = begun(store, "a", tuned(model, 2))
    assert (result.version, result.kind) == (2, "patch")
    assert not {key for key in store.objects.keys() - before.keys() if not key.startswith("a/")}
    assert begun(store, "a", tuned(model, 3), "nobody@12").version == 3


def test_the_weights_that_are_the_base_are_not_fetched() -> None:
    store = DictStore()
    model = lend(store)
    begun(store, "a", model)
    counted: list[str] = []
    watch = Fault("fail_after", "get", lambda verb, key: bool(counted.append(key)))
    begun(FaultStore(store, [watch]), "b", model)
    assert not [key for key in counted if key.startswith(BASES) and key.endswith(".safetensors")]
    begun(FaultStore(store, [watch]), "c", tuned(model, 1))
    assert [key for key in counted if key.startswith(BASES) and key.endswith(".safetensors")]


@pytest.mark.parametrize(
    ("base", "error"),
    [
        ("nobody", NotFound),
        (f"{LENDER}@9", NotFound),
        (f"{LENDER}@none", NotFound),
        (f"{LENDER}@-1", InvalidArgument),
        (f"{LENDER}@", InvalidArgument),
        ("../a", InvalidArgument),
        ("a", InvalidArgument),
        ("_bases", InvalidArgument),
    ],
)
def test_a_base_that_is_none_is_refused_and_nothing_is_written(base: str, error: type[Exception]) -> None:
    store = DictStore()
    model = lend(store)
    before = store.objects.copy()
    with pytest.raises(error):
        begun(store, "a", model, base)
    assert store.objects == before


def test_other_tensors_than_the_bases_are_refused_and_nothing_is_written() -> None:
    store = DictStore()
    model = lend(store)
    before = store.objects.copy()
    with pytest.raises(LayoutMismatch, match=r"'head\.weight' is new"):
        begun(store, "a", model | {"head.weight": np.zeros((2, 2), np.float32)})
    assert store.objects == before


def test_a_retired_version_is_no_base() -> None:
    store = DictStore()
    model = lend(store, 3, keyframe_every=1)
    with opened(store, LENDER) as registry:
        registry.gc(NOW, dry_run=False)
    with pytest.raises(Gone):
        begun(store, "a", model, f"{LENDER}@0")


def test_a_damaged_keyframe_is_not_copied() -> None:
    store = DictStore()
    model = lend(store)
    [key] = [key for key in store.list(f"{LENDER}/objects/keyframe/") if key.endswith(".safetensors")]
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(CorruptObject, match=key.removeprefix(f"{LENDER}/")):
        begun(store, "a", tuned(model, 1))
    assert not [key for key in base_files(store) if key.endswith(".safetensors")]
    assert len(state_of(store, "a").versions) == 0


def test_runs_that_begin_at_the_same_moment_share_one_base() -> None:
    store = DictStore()
    model = lend(store)
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda run: begun(store, f"tune-{run}", tuned(model, run)), range(6)))
    assert [result.version for result in results] == [1] * 6
    assert len(base_files(store)) == 2
    for run in range(6):
        assert pulled(store, f"tune-{run}", model) == bits(tuned(model, run))
    assert broken_promises(store) == []


@pytest.mark.slow
def test_a_trainer_that_dies_at_any_call_of_the_store_leaves_what_the_next_one_goes_on_with() -> None:
    whole = DictStore()
    model = lend(whole)
    for nth in range(1, 200):
        store = DictStore()
        store.objects, store.times = whole.objects.copy(), whole.times.copy()
        dying = FaultStore(store, [Fault("fail_before", nth=nth, times=1)])
        with suppress(StoreUnavailable):
            begun(dying, "a", tuned(model, 1))
        assert broken_promises(store) == []
        if len(state_of(store, "a").versions) < 2:
            assert begun(store, "a", tuned(model, 1)).version == 1
        assert pulled(store, "a", model) == bits(tuned(model, 1))
        assert len(base_files(store)) == 2
        if not dying.fired:
            return
    raise AssertionError("it makes more calls than that")


def test_a_first_version_that_names_a_base_is_a_record_of_the_fourth_format() -> None:
    store = DictStore()
    begun(store, "a", tuned(lend(store), 1))
    formats = [unseal_record(store.get(f"a/{keys.record_key(seq)}")).format for seq in range(3)]
    assert formats == ["pulse-record/1", "pulse-record/4", "pulse-record/1"]


def test_deleting_the_folder_of_the_run_that_lent_takes_nothing_from_others() -> None:
    store = DictStore()
    model = lend(store)
    begun(store, "a", tuned(model, 1))
    for key in [*store.list(f"{LENDER}/")]:
        store.delete(key)
    assert pulled(store, "a", model) == bits(tuned(model, 1))
    assert begun(store, "b", tuned(model, 2), "a@0").version == 1
    with pytest.raises(InvalidArgument):
        RunStore(store, "a").delete(base_files(store)[0])


# -- several roots -----------------------------------------------------------------------------------------------------


def two_roots() -> tuple[DictStore, DictStore]:
    """Return a root with a copy of the run that lends, and its home, where a run shares its weights already."""
    copy, home = DictStore(), DictStore()
    copy.url, home.url = "dict://copy", "dict://home"
    model = lend(home)
    for key in [*home.list(f"{LENDER}/")]:
        copy.put(key, home.get(key))
    write_mark(RunStore(copy, LENDER), LENDER, home.url)
    begun(home, "there", tuned(model, 1))
    return copy, home


def test_a_base_is_stored_at_the_root_where_the_run_is_written_whatever_others_hold() -> None:
    copy, home = two_roots()
    model = tuned(lend(DictStore()), 2)
    begun(NearestStore([copy, home]), "here", model)
    assert broken_promises(copy) == []
    assert pulled(copy, "here", model) == bits(model)
