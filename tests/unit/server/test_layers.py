"""Changed cells by layers: pages of what the heads of patches say, each read once and nothing decoded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from pulse_registry.compaction import CompactOptions
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import open_store
from pulse_registry.testing import CountingStore
from pulse_server.runs import layer_counts
from tests.support.apps import app_over
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model, state_of
from tests.support.waiting import HANG_S
from tests.unit.compaction.runs import NEVER, compact

URL = f"/v1/runs/{RUN}/layers"


def pushed(store: Any, versions: int, *, wider: int = 99, **options: Any) -> None:
    model = small_model()
    with quick(store, keyframe_share=NEVER, **options) as registry:
        for version in range(versions):
            change(model, version)
            more = {"wider": np.full(5, version, np.float32)} if version >= wider else {}
            registry.push(version, model | more)


def pages(client: TestClient, limit: int) -> list[dict[str, Any]]:
    found = [client.get(f"{URL}?limit={limit}").json()]
    while found[-1]["next"] is not None:
        found.append(client.get(f"{URL}?limit={limit}&after={found[-1]['next']}").json())
    return found


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_pages_count_what_each_version_changed_by_layers(coder: str) -> None:
    store = DictStore()
    with small_groups():
        pushed(store, 12, coder=coder)
        with quick(store) as registry:
            totals = [int(step.changed.sum()) for step in registry.stats(0, weights=True).steps]
        with TestClient(app_over(store)) as client:
            whole = client.get(URL).json()
            assert [sum(step["changed"]) for step in whole["steps"]] == totals
            assert {step["why"] for step in whole["steps"]} == {None}
            assert sum(row["cells"] for row in whole["rows"]) == 61
            paged = pages(client, 5)
            assert [len(page["steps"]) for page in paged] == [5, 5, 1]
            assert [step for page in paged for step in page["steps"]] == whole["steps"]
            assert client.get(f"{URL}?after=11").json()["steps"] == []


def test_each_head_is_read_once() -> None:
    store = CountingStore(DictStore())
    with small_groups():
        pushed(store, 6)
        with TestClient(app_over(store)) as client:
            client.get(URL)
            store.reset()
            client.get(URL)
            assert not [key for _, key in store.ledger if "objects/" in key]
            assert client.get("/v1/runs/none/layers").status_code == 404


def test_what_no_head_tells_is_told_with_its_reason() -> None:
    store = DictStore()
    with small_groups():
        pushed(store, 9, wider=7, keyframe_every=4)
        compact(store, CompactOptions())
        with quick(store) as registry:
            registry.gc(RetentionPolicy(keep_last=3, keep_every=4, keep_seconds=0, grace_seconds=0), dry_run=False)
        state = state_of(store)
        live = [v for v in range(9) if not state.is_retired(v)]
        assert live == [0, 4, 6, 7, 8]
        [lost] = [patch.object.key for patch in state.patches if (patch.base, patch.target) == (7, 8)]
        del store.objects[f"{RUN}/{lost}"]
        with TestClient(app_over(store)) as client:
            first, second = pages(client, 64)
    assert [(step["base"], step["target"]) for step in first["steps"]] == [(0, 4), (4, 6), (6, 7)]
    assert first["steps"][0]["changed"]
    assert first["steps"][2] == {"base": 6, "target": 7, "changed": [], "why": "layout"}
    assert [(step["base"], step["target"], step["why"]) for step in second["steps"]] == [(7, 8, "gone")]
    assert sum(row["cells"] for row in second["rows"]) == 66


def test_a_layout_of_too_many_tensors_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_counts, "_LONG_LAYOUT", 100)
    store = DictStore()
    pushed(store, 2)
    with TestClient(app_over(store)) as client:
        body = client.get(URL).json()
    assert body["rows"] == []
    assert body["steps"] == [{"base": 0, "target": 1, "changed": [], "why": "large"}]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_counts, "_NUMBERS", 20)
    store = CountingStore(DictStore())
    with small_groups():
        pushed(store, 12)
        with TestClient(app_over(store)) as client:
            whole = client.get(URL).json()
            store.reset()
            assert client.get(URL).json() == whole
    assert len([key for _, key in store.ledger if "objects/patch" in key]) > 5


@pytest.mark.parametrize("query", ["limit=0", "limit=65", "after=-2", "after=x"])
def test_a_page_that_is_none_is_refused(query: str) -> None:
    store = DictStore()
    pushed(store, 1)
    with TestClient(app_over(store)) as client:
        assert client.get(f"{URL}?{query}").status_code == 422
        assert client.get(URL).json() == {"run": RUN, "rows": [], "steps": [], "next": None}


@pytest.mark.slow
def test_heads_are_read_without_numba(tmp_path: Path) -> None:
    code = """
import sys
from fastapi.testclient import TestClient
from tests.support.apps import app_over
from tests.support.registries import RUN
from pulse_registry.store import open_store
with TestClient(app_over(open_store(sys.argv[1]))) as client:
    print(len(client.get(f"/v1/runs/{RUN}/layers").json()["steps"]), sorted({"numba", "torch"} & set(sys.modules)))
"""
    pushed(open_store(str(tmp_path)), 3)
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "2 []", done.stdout + done.stderr
