"""Numba loops over a graph: edges put in order by where they end, and Dijkstra's algorithm backwards from there."""

from __future__ import annotations

from typing import Any

import numpy as np


def link_edges(start: Any, end: Any, usable: Any, low: int, offsets: Any, order: Any) -> None:
    """Sort usable rows by end, the newest first: those into node n are order[offsets[n] : offsets[n + 1]].

    ``offsets`` comes as zeros, one for each node and one more; node n stands for the end ``low + n``.
    """
    for row in range(len(end)):
        if usable[row]:
            offsets[end[row] - low] += 1
    total = 0
    for node in range(len(offsets)):
        total += offsets[node]
        offsets[node] = total
    for row in range(len(end)):
        if usable[row]:
            node = end[row] - low
            offsets[node] -= 1
            order[offsets[node]] = row


def _rise(first: Any, second: Any, at: int, cost: int, rest: int) -> None:
    """Put an entry into the heap, from its free last place upwards."""
    while at > 0:
        above = (at - 1) >> 1
        if first[above] < cost or (first[above] == cost and second[above] <= rest):
            break
        first[at], second[at] = first[above], second[above]
        at = above
    first[at], second[at] = cost, rest


def _sink(first: Any, second: Any, size: int) -> None:
    """Take the heap's last entry to the top, of which the entry was taken, and from there downwards."""
    cost, rest = first[size], second[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            first[right] < first[below] or (first[right] == first[below] and second[right] < second[below])
        ):
            below = right
        if cost < first[below] or (cost == first[below] and rest <= second[below]):
            break
        first[at], second[at] = first[below], second[below]
        at = below
    first[at], second[at] = cost, rest


def cheapest_path(
    offsets: Any,
    order: Any,
    start: Any,
    end: Any,
    price: Any,
    low: int,
    target: int,
    start_legs: Any,
    cost: Any,
    legs: Any,
    via: Any,
    first: Any,
    second: Any,
) -> int:
    """Search backwards from a node for the start with the least cost, then the fewest legs, then the lowest number.

    Args:
        offsets, order: from ``link_edges``; the last node is where edges with a start below 0 begin.
        start, end: of each row.
        price: of each row; negative: not to be used.
        low: the number of node 0.
        target: the node to reach.
        start_legs: for each node, the legs before it if it is a start, else -1.
        cost, legs, via: out, for each node: of the best way from there, and its first row; ``legs`` comes as -1.
        first, second: the heap: cost, and legs and node in one number; as many as there are rows, and one.

    Returns:
        The start found, or -1.
    """
    nothing = len(offsets) - 2
    cost[target], legs[target], via[target] = 0, 0, -1
    first[0], second[0] = 0, target
    size = 1
    found, found_cost, found_legs = -1, np.int64(0), np.int64(0)
    while size > 0:
        here, there = first[0], second[0] >> 32
        node = second[0] & 0xFFFFFFFF
        size -= 1
        if size > 0:
            _sink(first, second, size)
        if found >= 0 and (here > found_cost or (here == found_cost and there >= found_legs)):
            break
        if here != cost[node] or there != legs[node]:
            continue
        if start_legs[node] >= 0:
            whole = there + start_legs[node]
            if (
                found < 0
                or here < found_cost
                or (here == found_cost and (whole < found_legs or (whole == found_legs and node < found)))
            ):
                found, found_cost, found_legs = node, here, whole
        if node == nothing:
            continue
        for at in range(offsets[node], offsets[node + 1]):
            row = order[at]
            if price[row] < 0:
                continue
            other = start[row] - low if start[row] >= 0 else nothing
            reached = here + price[row]
            if legs[other] < 0 or reached < cost[other] or (reached == cost[other] and there + 1 < legs[other]):
                cost[other], legs[other], via[other] = reached, there + 1, row
                _rise(first, second, size, reached, ((there + 1) << 32) | other)
                size += 1
    return found


def trace_path(via: Any, end: Any, low: int, node: int, rows: Any) -> int:
    """Write the rows of the way from a node on, and return how many they are."""
    count = 0
    while via[node] >= 0:
        rows[count] = via[node]
        node = end[via[node]] - low
        count += 1
    return count
