"""What the engines said is compared with what a fresh one says: each way in which it may differ is found."""

from __future__ import annotations

from typing import Any

import pytest

from pulse_registry.demo.vllm.proof import Proof, prove

SAID = [([5, 6], [-0.5, -0.25]), ([7, 8], [-1.0, -2.0])]
FIRST = [([5, 6], [-0.5, -0.75]), ([7, 8], [-1.5, -2.5])]


def proof(**changed: Any) -> Proof:
    given: dict[str, Any] = {"answers": {"one": SAID, "two": SAID}, "held": {"one": "4", "two": "4"}}
    given |= {"control": FIRST, "weights": True} | changed
    return prove(4, SAID, **given)


def test_engines_that_say_the_same_are_equal() -> None:
    found = proof()
    assert not found.problems
    assert found.equal == {"one": True, "two": True}
    assert (found.prompts, found.logprobs, found.control) == (2, 4, 1)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"answers": {"one": SAID, "two": FIRST}}, "two does not answer as a fresh engine of version 4"),
        ({"answers": {"one": [([5, 9], [-0.5, -0.25]), SAID[1]], "two": SAID}}, "one does not answer"),
        ({"answers": {"one": SAID[:1], "two": SAID}}, "one does not answer"),
        ({"held": {"one": "4", "two": "3"}}, "two holds version 3, and not 4"),
        ({"weights": False}, "version 4 has other cells than the trainer"),
        ({"control": SAID}, "the comparison says nothing"),
    ],
)
def test_each_difference_is_a_problem(changed: dict[str, Any], problem: str) -> None:
    [found] = proof(**changed).problems
    assert problem in found
