"""The board counts how old the weights were that made each token, and knows what each engine serves."""

from __future__ import annotations

from pulse_registry.demo.vllm.board import Board
from pulse_registry.demo.vllm.events import Committed, Completed, Followed, Serving, Span, Stepped


def board() -> Board:
    """Versions 0 to 2 come at 10, 20 and 30 s; an engine serves 0 from 12 s on, and 2 from 35 s on."""
    found = Board()
    for version in range(3):
        found.add(Committed(version, version, "patch", 1, 8, 9, 10.0 * (version + 1)))
    found.add(Serving("engine", 0, 2.0, 12.0))
    return found


def test_tokens_are_as_old_as_the_version_that_made_them() -> None:
    found = board()
    found.add(Completed("engine", 13.0, [15.0, 25.0, 36.0, 37.0], [Span(0, 0, 2), Span(2, 2, 4)]))
    found.add(Completed("engine", 13.0, [31.0], [Span(0, 0, 1)]))
    assert found.staleness() == {0: 3, 1: 1, 2: 1}
    assert found.crossing() == 1


def test_a_token_that_came_before_its_version_was_heard_of_is_not_stale() -> None:
    found = board()
    found.add(Completed("engine", 13.0, [19.9], [Span(1, 0, 1)]))
    assert found.staleness() == {0: 1}


def test_an_engine_holds_what_it_was_loaded_from_or_changed_to() -> None:
    found = board()
    assert found.holds("other") is None
    assert found.holds("engine") == 0
    found.add(Followed("engine", 2, 0, 1.0, 0.02, 35.0))
    assert found.holds("engine") == 2
    found.add(Stepped(2, 0.5, 36.0))
    assert found.rewards == {2: 0.5}
    assert found.newest == 2


def test_the_longest_gap_is_between_two_tokens() -> None:
    assert Completed("engine", 0.0, [1.0, 1.5, 4.0, 4.1], []).longest_gap == 2.5
    assert Completed("engine", 0.0, [1.0], []).longest_gap == 0.0
