"""The simulator's tables in docs/reliability.md of the result files: ``python -m tests.scenarios.simulator report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS

FOLDER = RESULTS / "reliability"
RUNS, JOBS, MUTANTS = FOLDER / "simulator.json", FOLDER / "jobs.json", FOLDER / "mutants.json"
ROUNDS, OTHERS, REGIONS = FOLDER / "rounds.json", FOLDER / "rounds-others.json", FOLDER / "regions.json"
PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"
BEGIN, END = "<!-- simulator: begin (python -m tests.scenarios.simulator report) -->", "<!-- simulator: end -->"


def with_tables(page: str) -> str:
    """Return the page with what lies between its marks renewed.

    Raises:
        ValueError: the page has not both marks.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs {BEGIN!r} and {END!r} once each")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{_tables()}\n\n{END}{rest.split(END)[1]}"


def update_page() -> None:
    """Renew the page."""
    PAGE.write_text(with_tables(PAGE.read_text()))


def _tables() -> str:
    files = (RUNS, JOBS, ROUNDS, OTHERS, REGIONS, MUTANTS)
    runs, jobs, rounds, others, regions, mutants = (json.loads(path.read_text()) for path in files)
    with_jobs = f"With jobs of two to {jobs['ranks']} ranks in place of trainers:"
    with_rounds = f"With {rounds['members']} members of outer rounds in place of trainers:"
    with_regions = "With two regions, between which the run moves; most records, versions and deletions happen in both:"
    with_others = "The same, where somebody else pushes now and then, and lets the rounds begin anew:"
    tables = [_runs(runs), with_jobs, _runs(jobs), with_rounds, _runs(rounds), with_others, _runs(others)]
    tables += [with_regions, _runs(regions), _mutants(mutants)]
    return "\n\n".join(tables)


def _runs(document: dict[str, Any]) -> str:
    seeds, counts = document["seeds"], document["counts"]
    last = seeds["first"] + seeds["count"] - 1
    broken = len(document["violations"]) or "none"
    said_of = _SAID | (_OF_JOBS if document.get("ranks") else {})
    if document.get("members"):
        said_of = _OF_ROUNDS
    elif document.get("regions"):
        said_of = _OF_REGIONS
    lines = [
        f"**{document['operations']:,} store operations** of seeds {seeds['first']} to {last}, "
        f"{seeds['operations_each']:,} each and what follows; {document['virtual_hours']:,.0f} hours of virtual time "
        f"in {document['seconds'] / 60:,.0f} minutes, {document['processes']} processes. Invariants broken: {broken}.",
        "",
        "| what happened | times |",
        "| --- | ---: |",
        *(
            f"| {said} | {counts.get(what, 0):,} |"
            for what, said in said_of.items()
            if what in counts or what not in _ELSE
        ),
    ]
    return "\n".join(lines)


def _mutants(document: dict[str, Any]) -> str:
    lines = [
        "| safeguard taken away | found by | store operations until then: fewest, median | quickest seed |",
        "| --- | --- | --- | ---: |",
    ]
    for row in document["mutants"]:
        counts = "-" if row["fewest"] is None else f"{row['fewest']:,}, {row['median']:,}"
        seed = "-" if row["seed"] is None else row["seed"]
        lines.append(f"| {row['safeguard']} | {row['found_by']} of {row['seeds']} seeds | {counts} | {seed} |")
    return "\n".join(lines)


_SAID = {
    "crashes": "a process dies",
    "epoch": "a trainer takes the run over",
    "commit": "versions are committed",
    "void": "commits of fenced trainers land, and are void",
    "attach": "records attach merged patches or keyframes",
    "retired": "versions are retired",
    "orphans": "objects of crashed or stalled writers are retired unnamed",
    "deleted": "objects are deleted",
    "delete": "records let the log forget",
    "tag": "versions get a name, or lose it",
}
_ELSE = {"others push", "found others' push", "outer restart"}
"""What happens only where somebody else pushes."""
_OF_ROUNDS = {
    "crashes": "a process dies",
    "rounds": "rounds end",
    "outer close": "a round is closed at its quorum, after somebody's grace",
    "late": "a member that was waited for is late",
    "outer contribute": "members contribute",
    "outer join": "members join, or come back",
    "outer leave": "members leave",
    "quorum lost": "a member hears that too many have left for its round to end",
    "twins fenced": "a process hears that a younger one has its name",
    "saved": "members save their state",
    "restored": "what was not sent is restored from it",
    "weights that fell over": "a bit of a member's weights falls over",
    "diverged": "a member finds that its weights have changed, and stops",
    "NaN refused": "a pseudo-gradient with NaN is refused",
    "others push": "somebody else pushes a version",
    "found others' push": "a member finds that the newest version is not of its rounds, and stops",
    "outer restart": "rounds begin anew from the newest version",
    "outer rates": "the rates of later rounds are changed",
    "outer checkpoint": "checkpoints of rounds are named",
    "commit": "versions are committed",
    "epoch": "a member takes over the writing of versions",
}
_OF_REGIONS = {
    "promoted": "the run moves, as planned",
    "lost": "a region is lost, the run goes on at the other, and the lost one is fenced once it is back",
    "forks": "it had versions or records that are given up",
    "intruded": "somebody writes into a copy's log",
    "absent": "a copy's record names what was retired and deleted since",
    "commit": "versions are committed, or copied",
    "epoch": "a trainer takes the run over",
    "attach": "records attach merged patches or keyframes",
    "retired": "versions are retired",
    "deleted": "objects are deleted",
    "crashes": "a process dies",
}
_OF_JOBS = {
    "pushes of ranks": "pushes by ranks together",
    "mistakes": "what is wrong on one rank is refused on all",
}
