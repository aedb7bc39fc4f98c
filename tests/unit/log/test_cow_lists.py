"""Lists by number: what a plain dict of lists says, in every copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log import cow
from pulse_registry.log.cow import CowLists

steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "pop", "copy"]), st.integers(0, 2)), max_size=80)


@given(steps, st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_copy_says_what_plain_lists_say(steps, few, rng):
    before = cow._FEW
    cow._FEW = few
    try:
        lists, model, kept = CowLists[str](str), {0: [], 1: [], 2: []}, []
        for number, (what, at) in enumerate(steps):
            if what == "add":
                lists.add(at, f"{number}")
                model[at].append(f"{number}")
            elif what == "remove" and model[at]:
                item = rng.choice(model[at])
                lists.remove(at, item)
                model[at].remove(item)
            elif what == "pop":
                assert lists.pop(at) == tuple(model[at])
                model[at] = []
            elif what == "copy":
                kept.append((lists, {key: list(items) for key, items in model.items()}))
                lists = lists.copy()
        for found, expected in [*kept, (lists, model)]:
            assert {key: list(found.of(key)) for key in expected} == expected
    finally:
        cow._FEW = before


def test_a_copy_and_one_item_more_copy_few_of_the_others():
    looked = 0

    def key(item: str) -> str:
        nonlocal looked
        looked += 1
        return item

    lists = CowLists[str](key)
    for number in range(5_000):
        lists = lists.copy()
        lists.add(0, f"{number}")
    for number in range(5_000):
        lists = lists.copy()
        lists.remove(0, f"{number}")
    assert lists.of(0) == ()
    assert looked < 25_000
