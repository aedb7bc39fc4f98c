"""The judgement of the demo of outer rounds finds whatever differs, and what was to happen and has not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pulse_registry.demo.outer.board import Board
from pulse_registry.demo.outer.events import Changed, Ended, Joined, Pulled, Trained
from pulse_registry.demo.outer.report import make_report
from pulse_registry.demo.outer.settings import KILLED, LATE, STOPPED, TRAINERS, WORKERS, Settings
from pulse_registry.demo.outer.verdict import problems

SETTINGS = Settings("tiny", 9, 10, 2, 1e-3, 7.0, 1.0, Path("nowhere"))
ABSENT = {STOPPED: {3, 4}, KILLED: {6}, LATE: {1}}
"""Rounds that each has missed."""


def ended(name: str, number: int) -> Ended:
    members = [one for one in TRAINERS if number not in ABSENT.get(one, ())]
    return Ended(
        trainer=name,
        round=number,
        members=members,
        late=[one for one in TRAINERS if one not in members],
        counts=True,
        entries=10,
        nbytes=8,
        cells=100,
        reward=0.5,
        inner_s=1.0,
        outer_s=1.0,
        sha256=f"bf16-{number}",
        rss=1,
        at=number,
    )


def board() -> Board:
    """Return a run in which all is well."""
    made = Board()
    for name in TRAINERS:
        made.add(Changed(name, "started", 1.5 if name == LATE else 0.0))
        made.add(Joined(name, 1 if name == LATE else 0, 0, 100, 0.5))
        for number in range(1, 10):
            if number not in ABSENT.get(name, ()):
                made.add(ended(name, number))
        made.add(Trained(name, 9, "theta", "momentum", "bf16-9", 10.0))
    made.add(Changed(STOPPED, "resumed", 4.5))
    made.add(Changed(KILLED, "returned", 6.5))
    made.add(Joined(KILLED, 6, 5, 100, 6.6))
    for name in WORKERS:
        for number in range(10):
            made.add(Pulled(name, number, 8, 0.1, f"bf16-{number}", number + 0.5))
    return made


def test_a_run_in_which_all_is_well_has_no_problem_and_is_reported() -> None:
    found = problems(board())
    assert found == []
    report = make_report(SETTINGS, board(), found)
    assert report["ok"]
    assert report["rounds"] == 9
    assert report["by_round"][2] == {"round": 3, "members": ["trainer-1", "trainer-3", "trainer-4"], "late": [STOPPED]}
    sent = 4 * 9 - 4
    assert (report["sent_bytes"], report["sent_bytes_dense"]) == (8 * sent, 400 * sent)
    assert report["bits_per_entry"] == 6.4


@pytest.mark.parametrize("what", ["theta", "momentum", "sha256"])
@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_with_other_bits_is_found(name: str, what: str) -> None:
    made = board()
    made.trained[name] = dataclasses.replace(made.trained[name], **{what: "other"})
    assert any(what in one and "is not that of" in one for one in problems(made))


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.parametrize("version", [4, 9])
def test_a_worker_with_other_cells_is_found(name: str, version: int) -> None:
    made = board()
    made.pulls[name][version] = dataclasses.replace(made.pulls[name][version], sha256="other")
    assert any(f"round {version}: " in one and "different cells" in one for one in problems(made))


def test_a_trainer_that_held_other_cells_after_a_round_is_found() -> None:
    made = board()
    made.rounds[KILLED][0] = dataclasses.replace(made.rounds[KILLED][0], sha256="other")
    assert any("round 1: " in one and "different cells" in one for one in problems(made))


def test_rounds_that_changed_nothing_are_found() -> None:
    made = board()
    for name, rounds in made.rounds.items():
        made.rounds[name] = [dataclasses.replace(one, sha256="same") for one in rounds]
    for name, pulls in made.pulls.items():
        made.pulls[name] = [dataclasses.replace(one, sha256="same") for one in pulls]
    assert "two rounds have the same cells: nothing was trained" in problems(made)


def test_who_is_away_has_missed_rounds_until_it_is_back() -> None:
    made = board()
    made.changes = [Changed(STOPPED, "stopped", 2.5)]
    assert made.missed(STOPPED) == 2
    assert not made.is_back(STOPPED, "resumed")
    made.add(Changed(STOPPED, "resumed", 4.5))
    assert made.is_back(STOPPED, "resumed")
    assert made.rounds_of(STOPPED) == {1, 2, 5, 6, 7, 8, 9}
    assert made.has_just_ended(STOPPED)
    made.rounds[STOPPED].pop()
    assert not made.has_just_ended(STOPPED)


def test_what_did_not_end_or_did_not_happen_is_found() -> None:
    made = board()
    del made.trained[LATE]
    assert f"{LATE}: did not finish" in problems(made)
    made = board()
    made.pulls[WORKERS[0]].pop()
    assert f"{WORKERS[0]} does not hold the last round's version" in problems(made)
    made = board()
    made.joined[KILLED].pop()
    assert f"{KILLED} did not come back" in problems(made)
    made = board()
    made.joined[LATE] = [dataclasses.replace(made.joined[LATE][0], round=0)]
    assert any("which is not late" in one for one in problems(made))
    made = board()
    made.rounds[STOPPED] = [one for one in made.rounds[STOPPED] if one.round < 3]
    assert f"{STOPPED} was in no round after it was resumed" in problems(made)
