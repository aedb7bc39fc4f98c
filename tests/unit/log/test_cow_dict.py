"""The dict whose copies are cheap: what it holds is what a plain dict would."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log import cow
from pulse_registry.log.cow import CowDict

KEYS = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers()),
        st.tuples(st.just("del"), KEYS, st.just(0)),
        st.tuples(st.just("pop"), KEYS, st.integers()),
        st.tuples(st.just("copy"), st.booleans(), st.just(0)),
    ),
    max_size=60,
)


def check(found: CowDict[int, int], expected: dict[int, int]) -> None:
    assert len(found) == len(expected)
    assert list(reversed(found)) == list(found)[::-1]
    assert dict(found) == dict(found.items()) == expected
    assert set(found) == set(found.keys()) == set(expected)
    assert sorted(found.values()) == sorted(expected.values())
    for key in range(13):
        assert (key in found) == (key in expected)
        assert found.get(key) == expected.get(key)
        assert found.get(key, "none") == expected.get(key, "none")


@given(STEPS, st.integers(0, 4))
def test_copies_of_copies_hold_what_plain_dicts_hold(steps, layer):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cow, "_LEAST_LAYER", layer)
        found, expected = CowDict[int, int](), dict[int, int]()
        others: list[tuple[CowDict[int, int], dict[int, int]]] = []
        for what, key, value in steps:
            match what:
                case "set":
                    found[key] = expected[key] = value
                case "del" if key in expected:
                    del found[key], expected[key]
                case "del":
                    with pytest.raises(KeyError):
                        del found[key]
                    with pytest.raises(KeyError):
                        found[key]
                case "pop":
                    assert found.pop(key, value) == expected.pop(key, value)
                case "copy":
                    others.append((found, expected))
                    copy, same = found.copy(), expected.copy()
                    if key:  # go on with the copy, or with the one that was copied
                        found, expected = copy, same
                    else:
                        others[-1] = (copy, same)
        for one, plain in [*others, (found, expected)]:
            check(one, plain)


def test_entries_come_in_order_of_insertion_and_new_ones_last():
    first = CowDict[str, int]()
    first.update({"b": 1, "a": 2})
    second = first.copy()
    second["c"] = 3
    second["b"] = 4
    del second["a"]
    assert list(second) == ["b", "c"]
    assert list(second.values()) == [4, 3]
    assert list(first.items()) == [("b", 1), ("a", 2)]


def test_a_copy_takes_along_what_is_new_and_not_what_was_there():
    big = CowDict[int, int]()
    for key in range(10_000):
        big[key] = key
    copies = [big]
    tracemalloc.start()
    try:
        for key in range(10_000, 10_500):
            copies.append(copies[-1].copy())
            copies[-1][key] = key
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 20 * sys.getsizeof(dict.fromkeys(range(10_000))), "of 500 copies, each of as many entries"
    assert len(copies[-1]) == 10_500
