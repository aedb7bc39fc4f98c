"""Lines of runs: whoever applies the events of a stream knows every line, however rarely it reads or breaks off."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulse_server.runs.run_lines import EVENT_BYTES, Place, RunLines, View

NAMES = "abcdef"
ALL = View(frozenset(NAMES))


class Follower:
    """A stream's reader, as the page is one; it keeps the id of the last event that came."""

    def __init__(self, view: View = ALL) -> None:
        self.view, self.id = view, ""
        self.told: dict[str, Any] = {}
        self.sizes: list[int] = []

    def read(self, lines: RunLines) -> None:
        """Begin a stream where the last one broke off, and read until it has no more to tell."""
        place = Place.of(self.id)
        while True:
            place, event = lines.read(place, self.view)
            if not event:
                return
            kind, number, data = self._fields(event)
            self.sizes.append(len(event))
            assert (kind, number) == ("runs", str(place))
            self.id = number
            body = json.loads(data)
            if body["whole"]:
                self.told = {}
            self.told |= {line["run"]: line for line in body["runs"]}

    def _fields(self, event: bytes) -> tuple[str, str, str]:
        fields = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
        return fields["event"], fields["id"], fields["data"]


def line(run: str, number: int, more: str = "") -> str:
    return json.dumps({"run": run, "seq": number, "more": more})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "drop", "clear", "read"]), st.sampled_from(NAMES), st.integers(0, 2)
    ),
    max_size=60,
)


@given(STEPS, st.sets(st.sampled_from(NAMES)))
def test_whoever_applies_the_events_knows_the_lines(steps: list[tuple[str, str, int]], some: set[str]) -> None:
    lines, plain = RunLines(), dict[str, Any]()
    followers = [Follower(), Follower(View(frozenset(some)))]
    for what, run, number in steps:
        if what == "put":
            text = line(run, number)
            assert lines.put(run, text) == (plain.get(run) != json.loads(text))
            plain[run] = json.loads(text)
        elif what == "drop":
            lines.drop(run)
            plain.pop(run, None)
        elif what == "clear":
            lines.clear()
            plain.clear()
        else:
            for follower in followers[: number or None]:
                follower.read(lines)
        assert len(lines) == len(plain)
    for follower in followers:
        follower.read(lines)
        assert follower.told == {run: told for run, told in plain.items() if run in follower.view.runs}
        before = follower.id, len(follower.sizes)
        follower.read(lines)
        assert (follower.id, len(follower.sizes)) == before  # nothing is told twice


def test_a_change_is_told_alone_and_once_however_often_it_changed() -> None:
    lines, follower = RunLines(), Follower()
    for run in NAMES:
        lines.put(run, line(run, 0))
    follower.read(lines)
    for number in range(1, 50):
        lines.put("c", line("c", number))
    place, event = lines.read(Place.of(follower.id), ALL)
    assert b'"whole":false' in event
    assert event.count(b'"run"') == 1
    assert b'"seq": 49' in event
    assert lines.read(place, ALL) == (place, b"")


def test_many_lines_come_in_several_events_and_a_stream_may_break_off_between_them() -> None:
    names = [f"run-{number:03d}" for number in range(200)]
    lines, view = RunLines(), View(frozenset(names), more=True)
    for run in names:
        lines.put(run, line(run, 0, "x" * 1000))
    place, event = lines.read(Place(), view)
    assert EVENT_BYTES < len(event) < EVENT_BYTES + 2000
    assert b'"whole":true,"total":200,"more":true' in event
    follower = Follower(view)
    follower.read(lines)
    assert len(follower.sizes) == 7
    again = Follower(view)
    again.id, again.told = (
        str(place),
        {entry["run"]: entry for entry in json.loads(event.decode().split("data: ")[1])["runs"]},
    )
    again.read(lines)
    assert len(again.sizes) == 6
    assert again.told == follower.told


def test_a_place_of_another_replica_or_of_nobody_begins_anew() -> None:
    lines, other = RunLines(), RunLines()
    for number in range(3):
        lines.put("a", line("a", number))
        other.put("b", line("b", number))
    place, _ = other.read(Place(), ALL)
    ours, whole = lines.read(Place(), ALL)
    ahead = Place(ours.term, ours.number + 1)
    for text in (
        str(place),
        str(ahead),
        "",
        "x",
        "-",
        f"{ours.term}-",
        f"{ours.term}-{ours.number}",
        f"{ours.term}-{ours.number}-6-6",
        f"{ours.term}-١",
        f"{ours.term}-1e3",
        "9" * 5000,
    ):
        assert lines.read(Place.of(text), ALL) == (ours, whole), text
    assert lines.read(Place.of(str(ours)), ALL) == (ours, b"")


def test_whoever_comes_back_with_another_view_begins_anew() -> None:
    lines, mine = RunLines(), View.of(("*",), NAMES, more=False)
    for run in NAMES:
        lines.put(run, line(run, 0))
    place, _ = lines.read(Place(), mine)
    assert lines.read(place, View.of(("*",), NAMES, more=False)) == (place, b"")
    for other in (View.of(("a*", "b*"), "ab", more=False), View.of(("*",), NAMES, more=True)):
        _, event = lines.read(place, other)
        assert b'"whole":true' in event
        assert event.count(b'"run"') == len(other.runs)
    first = View.of(("*",), "abc", more=True)
    place, _ = lines.read(Place(), first)
    _, event = lines.read(place, View.of(("*",), "abd", more=True))  # the line of d is an old one
    assert b'"whole":true' in event
    assert b'"run": "d"' in event


def test_how_many_runs_there_are_is_told_once_though_no_line_changed() -> None:
    lines, view = RunLines(), View.of(("*",), "ab", more=False)
    lines.put("a", line("a", 0))
    place, event = lines.read(Place(), view)
    assert b'"total":2' in event
    place, event = lines.read(place, View.of(("*",), "a", more=False))
    assert b'"whole":false,"total":1,"more":false,"runs":[]' in event
    assert lines.read(Place.of(str(place)), View.of(("*",), "a", more=False)) == (place, b"")


def test_a_root_without_runs_is_told_as_such() -> None:
    place, event = RunLines().read(Place(), View())
    assert b'"whole":true,"total":0,"more":false,"runs":[]' in event
    assert place.number == 0
