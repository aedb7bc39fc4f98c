"""What lists say of a run: medians of its newest versions, its tags and notes, how its workers stand; in few bytes."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log import RunState
from pulse_registry.results import describe
from pulse_schemas.api import RunSummary, WorkerReport, WorkerSummary
from pulse_server.runs.bodies import run_body
from pulse_server.runs.reports import Reports
from pulse_server.runs.summary import Recent, run_line, run_summary
from tests.support.records import RUN, DictStore, Script, chain, keyframe, patch
from tests.unit.server.edges import Clock

NOBODY = WorkerSummary(workers=0, differing=0, oldest=None, newest=None, at_newest=0)


def summary_of(state: RunState, recent: Recent | None = None) -> RunSummary:
    recent = recent or Recent()
    recent.take(state)
    return run_summary(state, recent, NOBODY, None, 0)


def plain(state: RunState) -> tuple[float | None, int | None]:
    """Say what is usual by looking at all versions."""
    newest = [describe(state, entry) for entry in state.versions_since(len(state.versions) - 50)]
    times = [datetime.fromisoformat(version.created_at).timestamp() for version in newest]
    sizes = [version.nbytes for version in newest if version.kind == "patch"]
    between = [max(0.0, after - before) for before, after in pairwise(times)]
    return (round(median(between), 3) if between else None), (int(median(sizes)) if sizes else None)


@cache
def states() -> list[RunState]:
    """The states of a run, by how many versions it has."""
    script = Script(RUN).epoch()
    found = [script.state.copy()]
    for number in range(90):
        second = number * number % 59  # clocks of trainers may go back
        changes: dict[str, Any] = {"created_at": f"2030-01-01T00:{number % 60:02d}:{second:02d}.000Z"}
        if number % 7 == 0:
            changes |= {"patch": None, "keyframe": keyframe(number)}
        else:
            changes["patch"] = patch(number - 1, number, size=100 + number * 37 % 50)
        script.commit(**changes)
        found.append(script.state.copy())
    return found


@pytest.mark.slow
@given(st.sets(st.integers(0, 90), min_size=1, max_size=12))
def test_what_is_usual_is_the_median_of_the_newest_versions_however_they_came(counts: set[int]) -> None:
    recent = Recent()
    for count in sorted(counts):
        found = summary_of(states()[count], recent)
        assert (found.usual_s, found.usual_nbytes) == plain(states()[count])


def test_a_run_without_versions_has_nothing_usual() -> None:
    found = summary_of(Script(RUN).epoch().state)
    assert (found.usual_s, found.usual_nbytes, found.note, found.tags, found.tagged) == (None, None, None, {}, 0)


def test_versions_are_looked_at_once() -> None:
    script, recent = chain(80), Recent()
    looked: list[int] = []

    class Watched(RunState):
        def versions_since(self, number: int):  # type: ignore[no-untyped-def]
            for entry in super().versions_since(number):
                looked.append(entry.version)
                yield entry

    state = Watched.__new__(Watched)
    state.__dict__.update(script.state.__dict__)
    recent.take(state)
    assert looked == [*range(30, 80)]
    recent.take(state)
    script.commit()
    state.__dict__.update(script.state.__dict__)
    recent.take(state)
    assert looked == [*range(30, 81)]


def test_the_newest_note_is_told_until_it_is_old() -> None:
    script, recent = Script(RUN).epoch().commit(metadata={"note": "begun from math-1b"}), Recent()
    for metadata in ({"note": 7}, {"note": "  "}, {"reward": 0.5}):
        script.commit(metadata=metadata)
    note = summary_of(script.state, recent).note
    assert note is not None
    assert (note.version, note.text) == (0, "begun from math-1b")
    script.commit(metadata={"note": "n" * 5000})
    note = summary_of(script.state, recent).note
    assert note is not None
    assert (note.version, note.text) == (4, "n" * 199 + "…")
    for _ in range(50):
        script.commit()
    assert summary_of(script.state, recent).note is None


def test_the_tags_of_the_newest_versions_are_told_and_all_are_counted() -> None:
    script = chain(12)
    for version in range(10):
        script.tag(f"tag-{version}", version)
    found = summary_of(script.state)
    assert found.tags == {f"tag-{version}": version for version in range(5, 10)}
    assert found.tagged == 10


def test_a_line_has_less_than_a_kilobyte_and_a_half_whatever_a_run_says_of_itself() -> None:
    script = Script("r" * 128).epoch()
    for _ in range(60):
        script.commit()
    for number in range(20):
        script.tag(f"{'t' * 60}{number}", number)
    script.commit(metadata={"note": "é" * 5000, "other": "x" * 5000})
    body = run_body(script.state, 2**62, summary_of(script.state))
    assert len(run_line(body, stale=True).model_dump_json().encode()) < 1500
    assert body.latest is not None
    assert body.latest.metadata["other"] == "x" * 5000


def test_how_workers_stand_is_told_with_the_longest_pause_and_who_avoided_an_object() -> None:
    clock, state = Clock(), chain(4).state
    reports = Reports(DictStore(), replica="r", now=clock.now, share_s=5, keep_s=60, clock=clock.monotonic)
    assert reports.overview(state) == (NOBODY, None, 0)
    digest = state.version(3).digest
    for name, version, phases, avoided in (
        ("a", 3, {"fetch": 9.0, "apply": 0.25}, ()),
        ("b", 3, {"apply": 0.5}, ("objects/x",)),
        ("c", 1, {}, ()),
    ):
        told = WorkerReport(
            version=version, digest="0" * 32 if name == "c" else digest, phases=phases, nbytes=1, avoided=avoided
        )
        reports.take(RUN, name, told)
    summary, pause_s, avoided_by = reports.overview(state)
    assert summary == reports.standing(state, 25, 8192)[0]
    assert summary.model_dump() == {"workers": 3, "differing": 1, "oldest": 1, "newest": 3, "at_newest": 2}
    assert (pause_s, avoided_by) == (0.5, 1)


def test_who_serves_a_version_that_is_forgotten_is_not_said_to_differ_from_it() -> None:
    clock, script = Clock(), chain(4)
    script.retire(versions=(0, 1)).delete()
    state = script.state
    assert state.find(1) is None
    reports = Reports(DictStore(), replica="r", now=clock.now, share_s=5, keep_s=60, clock=clock.monotonic)
    reports.take(RUN, "old", WorkerReport(version=1, digest="0" * 32))
    reports.take(RUN, "wrong", WorkerReport(version=2, digest="0" * 32))
    summary, shown = reports.standing(state, 25, 8192)
    assert (summary.workers, summary.differing, reports.overview(state)[0]) == (2, 1, summary)
    assert [(one.worker, one.digest_matches) for one in shown] == [("wrong", False), ("old", None)]
