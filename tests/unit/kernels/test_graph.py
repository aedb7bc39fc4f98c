"""Cheapest paths: as cheap as an exhaustive search finds, by the rule for ties, on random and extreme graphs."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels.cpu.graph import Graph, Path

Edge = tuple[int, ...]
"""Start, end, bytes, objects and, if there are any, decoded cells."""


def graph(edges: list[Edge], usable: list[bool] | None = None) -> Graph:
    columns = np.array([(*edge, 0)[:5] for edge in edges], np.int64).reshape(-1, 5).T
    live = np.ones(len(edges), np.bool_) if usable is None else np.array(usable, np.bool_)
    return Graph.of(*(np.ascontiguousarray(column) for column in columns), usable=live)


def search(edges: list[Edge], target: int, starts: dict[int, int], *prices: int, **more: list) -> Path:
    found = graph(edges, more.get("usable")).cheapest(target, starts, *(prices or [0]), avoid=more.get("avoid", ()))
    assert found is not None
    return found


def exhaustive(edges: list[Edge], usable: list[bool], target: int, starts: dict[int, int], prices: tuple[int, int]):
    """The least (cost, legs) by Bellman-Ford from the starts on; None where the target is out of reach."""
    best = {number: (0, legs) for number, legs in starts.items()} | {-1: (0, 0)}
    for _ in range(len(edges) + 1):
        for (start, end, *costs), live in zip(edges, usable, strict=True):
            if live and start in best:
                cost, legs = best[start]
                reached = (cost + priced(costs, prices), legs + 1)
                best[end] = min(best.get(end, reached), reached)
    return best.get(target)


def priced(costs: Sequence[int], prices: tuple[int, int]) -> int:
    return costs[0] + prices[0] * costs[1] + prices[1] * costs[2]


numbers, few = st.integers(3, 9), st.integers(0, 2)


@given(
    st.lists(st.tuples(st.just(-1) | numbers, numbers, st.integers(0, 5), few, few), max_size=24),
    st.data(),
)
def test_a_path_costs_what_an_exhaustive_search_finds_and_its_edges_join(edges, data):
    usable = data.draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    avoid = data.draw(st.sets(st.integers(0, len(edges) - 1), max_size=3)) if edges else set()
    target, prices = data.draw(numbers), (data.draw(few), data.draw(few))
    starts = data.draw(st.dictionaries(st.integers(0, 12), st.integers(0, 3), max_size=3))
    starts.pop(target, None)
    found = search(edges, target, starts, *prices, usable=usable, avoid=sorted(avoid))
    live = [alive and row not in avoid for row, alive in enumerate(usable)]
    expected = exhaustive(edges, live, target, starts, prices)
    assert found.found == (expected is not None)
    if not found.found:
        return
    rows = found.rows.tolist()
    path = [edges[row] for row in rows]
    assert all(live[row] for row in rows)
    assert [one[1] for one in path[:-1]] == [one[0] for one in path[1:]]
    assert (path[0][0], path[-1][1]) == (found.start, target)
    cost = sum(priced(edge[2:], prices) for edge in path)
    assert (cost, len(path) + starts.get(found.start, 0)) == expected


def test_of_equal_starts_the_lower_is_taken_and_nothing_last():
    edges = [(-1, 5, 1, 0), (4, 5, 1, 0), (3, 5, 1, 0)]
    assert search(edges, 5, {3: 0, 4: 0}).start == 3
    assert search(edges, 5, {3: 1, 4: 0}).start == 4
    assert search(edges, 5, {}).start == -1


def test_of_equal_edges_the_last_is_taken():
    edges = [(0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 2, 0)]
    assert search(edges, 1, {0: 0}).rows.tolist() == [1]
    assert search(edges, 1, {0: 0}, avoid=[1]).rows.tolist() == [0]


@pytest.mark.parametrize("edges", [[], [(-1, 7, 1, 1)]])
def test_what_has_no_edge_is_out_of_reach(edges: list[Edge]):
    for target in (0, 6, 8, 10**12):
        assert not search(edges, target, {3: 0}).found


def test_numbers_far_from_zero_take_memory_for_the_span_between_them_alone():
    low = 10**15
    found = search([(low, low + 1, 1, 1), (-1, low, 1, 1)], low + 1, {})
    assert found.rows.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("nbytes", "prices"), [(2**62, (0, 0)), (1, (2**62, 0)), (1, (2**70, 0)), (1, (0, 2**61)), (1, (0, 2**70))]
)
def test_costs_whose_sums_would_not_be_exact_are_refused(nbytes: int, prices: tuple[int, int]):
    assert graph([(0, 1, nbytes, 1, 2), (1, 2, nbytes, 1, 2)]).cheapest(2, {0: 0}, *prices) is None


def test_the_largest_costs_that_are_taken_are_summed_exactly():
    nbytes = 2**62 // 10 - 1
    edges = [(number, number + 1, nbytes, 1) for number in range(8)]
    assert search(edges, 8, {0: 0}).rows.tolist() == list(range(8))


def test_a_long_way_and_a_wide_one_are_found():
    chain = [(number, number + 1, 1, 1) for number in range(5000)]
    assert search(chain, 5000, {0: 0}).rows.tolist() == list(range(5000))
    star = [(0, number, 10, 1) for number in range(1, 3000)] + [(number, 3000, number, 1) for number in range(1, 3000)]
    assert search(star, 3000, {0: 0}).rows.tolist() == [0, 2999]
    assert len(search(star, 3000, {1: 0}).reached) >= 1


def test_a_search_ends_at_the_start_and_does_not_look_at_the_whole_graph():
    chain = [edge for number in range(5000) for edge in ((number, number + 1, 1, 1), (number + 1, number, 1, 1))]
    reached = search(chain, 4000, {3990: 0}).reached
    assert len(reached) < 30


def test_every_order_of_rows_gives_the_same_cost():
    edges = [(-1, 0, 5, 1), (0, 1, 1, 1), (1, 2, 1, 1), (0, 2, 2, 1), (2, 1, 1, 1)]
    for order in itertools.permutations(edges):
        rows = search(list(order), 2, {}, 1).rows
        assert [order[row] for row in rows] == [(-1, 0, 5, 1), (0, 2, 2, 1)]


def test_numbers_that_lie_far_apart_take_no_memory_for_those_between():
    far = [0, 7, 10**9, 2**40, 2**62 - 1]
    edges = [(-1, far[0], 10, 1), *((a, b, 1, 1) for a, b in itertools.pairwise(far))]
    tracemalloc.start()
    try:
        found = search(edges, far[-1], {3: 0})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.found, found.start, found.rows.tolist()) == (True, -1, [0, 1, 2, 3, 4])
    assert found.reached.tolist() == far
    assert search(edges, far[-1], {far[2]: 0}).rows.tolist() == [3, 4]
    assert not search(edges, 8, {}).found
    assert peak < 1 << 20


def test_edges_from_nothing_can_be_left_out():
    edges = [(-1, 5, 1, 1), (0, 5, 9, 1)]
    assert search(edges, 5, {0: 0}).start == -1
    assert graph(edges).cheapest(5, {0: 0}, 0, from_nothing=False).start == 0
    assert not graph(edges).cheapest(5, {}, 0, from_nothing=False).found


def test_a_target_that_no_edge_leads_to_is_reached_where_it_is_a_start() -> None:
    none = np.empty(0, np.int64)
    graph = Graph.of(none, none, none, none, none, np.empty(0, bool))
    found = graph.cheapest(2, {0: 0, 2: 1}, 5)
    assert found is not None
    assert (found.found, found.start, found.rows.tolist()) == (True, 2, [])
    missed = graph.cheapest(1, {0: 0, 2: 1}, 5)
    assert missed is not None
    assert not missed.found
