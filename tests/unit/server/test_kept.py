"""Answers are kept in bounded memory, whatever is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.format import keys
from pulse_server.transport.answer_cache import Kept
from tests.support.apps import app_over, fill, run_of
from tests.support.records import RUN, DictStore
from tests.unit.server.calling import calling


@given(st.lists(st.tuples(st.sampled_from("keep get"), st.integers(0, 5), st.integers(1, 12)), max_size=60))
def test_what_is_kept_is_bounded_and_the_least_used_goes_first(steps: list[tuple[str, int, int]]) -> None:
    kept, model = Kept[str](20), dict[int, int]()
    for what, key, nbytes in steps:
        if what == "k":
            kept.keep(key, str(key), nbytes)
            model.pop(key, None)
            model[key] = nbytes
            while sum(model.values()) > 20:
                del model[next(iter(model))]
        else:
            assert kept.get(key) == (str(key) if key in model else None)
            if key in model:
                model[key] = model.pop(key)
        assert kept.nbytes == sum(model.values()) <= 20


def test_whoever_asks_in_a_thousand_ways_makes_the_service_keep_no_more() -> None:
    store = DictStore()
    fill(store, run_of(30))
    app = app_over(store)
    with calling(app) as call:
        service = app.state.service
        service.pages, service.routes = Kept(60_000), Kept(60_000)
        for number in range(100):
            assert call("GET", f"/v1/runs/{RUN}/log?since={number % 30}&limit={number + 1}").status == 200
            assert call("GET", f"/v1/runs/{RUN}/route?to=29&object_cost={number}").status == 200
            for kept in (service.pages, service.routes):
                assert 0 < kept.nbytes <= 60_000
        feed = next(iter(service.feeds))
        assert feed.reading == {}
        assert len(feed.cache) < 5
        known = call("GET", f"/v1/runs/{RUN}/log?since=0&limit=1000").body
        store.delete(f"{RUN}/{keys.record_key(3)}")
        assert call("GET", f"/v1/runs/{RUN}/log?since=0&limit=1000").body == known
