"""Readers of runs that share a base: the host's cache, an audit, pinned keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulse_registry.cache import cache_folder
from pulse_registry.doctor.audit import RunAudit
from pulse_registry.doctor.audit.defect import DefectKind
from pulse_registry.errors import Untrusted
from pulse_registry.options import Options, PushOptions
from pulse_registry.registry import Registry
from pulse_registry.signing import SigningKey, Trust
from pulse_registry.store import RunStore, Store
from pulse_registry.testing import CountingStore
from pulse_schemas import BASES
from tests.support.bases import LENDER, base_files, lend, opened, state_of, tuned
from tests.support.records import DictStore
from tests.support.registries import Model, bits, garbage

RUNS = ("math", "code", "chat")


def fleet() -> tuple[DictStore, Model]:
    store = DictStore()
    model = lend(store)
    for number, run in enumerate(RUNS):
        with opened(store, run, LENDER) as registry:
            registry.push(0, tuned(model, number))
    return store, model


@pytest.mark.slow
def test_a_host_fetches_the_files_of_a_base_once_for_all_runs(tmp_path: Path) -> None:
    store, model = fleet()
    counted = CountingStore(store)
    for number, run in enumerate(RUNS):
        into = garbage(model)
        with Registry(counted, run, Options(cache=cache_folder(tmp_path / "cache", None))) as registry:
            registry.pull(into=into)
        assert bits(into) == bits(tuned(model, number))
    shards = [key for verb, key in counted.ledger if verb == "get" and key.endswith(".safetensors") and BASES in key]
    assert len(shards) == 1


def defects(store: Store, run: str, *, contents: bool) -> list[tuple[str, DefectKind]]:
    found = RunAudit(RunStore(store, run), run).defects(contents=contents)
    return [(one.key, one.kind) for one in found]


@pytest.mark.parametrize("contents", [False, True])
def test_an_audit_finds_what_of_a_base_is_missing_or_damaged(*, contents: bool) -> None:
    store, _ = fleet()
    assert defects(store, "math", contents=contents) == []
    [base] = state_of(store, "math").bases
    store.delete(f"math/bases/{base}")
    assert defects(store, "math", contents=contents) == [(f"bases/{base}", DefectKind.MISSING)]
    assert defects(store, "code", contents=contents) == []
    shard, index = base_files(store)
    store.delete(index)
    store.put(shard, b"\0" * store.size(shard))
    damaged = [(shard, DefectKind.DAMAGED)] if contents else []
    assert {*defects(store, "code", contents=contents)} == {(index, DefectKind.MISSING), *damaged}


def test_a_reader_with_pinned_keys_believes_what_the_run_signed_of_its_base(tmp_path: Path) -> None:
    store, ours, theirs = DictStore(), SigningKey.generate(), SigningKey.generate()
    model = lend(store)

    def signed(run: str, key: SigningKey, **push: Any) -> Registry:
        options = PushOptions(dtype="keep", **push)
        return Registry(store, run, Options(push=options, signer=key))

    with signed("kept", theirs) as registry:
        registry.push(0, model)
    with signed("math", ours, base="kept") as registry:
        registry.push(0, tuned(model, 1))
    assert not state_of(store, "kept").bases, "the lender's readers would not believe this key"
    into = garbage(model)
    with Registry(store, "math", Options(trust=Trust([ours.public], state_dir=tmp_path / "ours"))) as registry:
        registry.pull(into=into)
    assert bits(into) == bits(tuned(model, 1))
    with (
        Registry(store, "math", Options(trust=Trust([theirs.public], state_dir=tmp_path / "theirs"))) as registry,
        pytest.raises(Untrusted),
    ):
        registry.pull(into=into)
