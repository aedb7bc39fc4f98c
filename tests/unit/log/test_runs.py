"""Finding the runs of a root without looking at what is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log.runs import RUN_NAME, list_runs
from pulse_registry.store import open_store
from pulse_registry.testing import CountingStore
from tests.support.records import DictStore

NAMES = ["a", "a-b", "a.b", "a0", "a_b", "ab", "b", "b0", "UP", ".hidden", "z", "0", "a" * 128, "a" * 129, "é"]


@given(
    st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(["head", "log/0", "objects/x/y", "~"]))), st.booleans()
)
def test_every_folder_that_is_a_run_is_found_once_in_the_order_of_keys(
    found: set[tuple[str, str]], stray: bool
) -> None:
    store = DictStore()
    for name, key in found:
        store.put(f"{name}/{key}", b"")
    if stray:
        for key in ("a-file", "zz", "a1"):
            store.put(key, b"")
    assert list(list_runs(store)) == sorted(
        {name for name, _ in found if RUN_NAME.fullmatch(name)}, key=lambda name: f"{name}/"
    )


def test_runs_cost_one_listing_however_many_there_are_and_however_much_is_in_them() -> None:
    base = open_store("memory://tests-runs")
    names = [f"run-{number}" for number in range(30)]
    for name in names:
        for number in range(5):
            base.put(f"{name}/log/{number}", b"")
    store = CountingStore(base)
    assert sorted(list_runs(store)) == sorted(names)
    assert store.calls == {"list": 1}
