"""What streams tell of workers: whoever applies the events knows the list, and thousands of workers cost no more."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_schemas.api import WorkerBody, WorkerChanges, WorkerList, WorkerReport, WorkerSummary
from pulse_server.runs.reports import Reports
from pulse_server.runs.roster import MOST, MOST_BYTES, Roster
from tests.support.records import RUN, DictStore, chain
from tests.unit.server.edges import Clock

PUSH_BYTES = 20_000


def worker(name: str, version: int, **changes: Any) -> WorkerBody:
    body = WorkerBody(
        worker=name,
        version=version,
        digest="f" * 32,
        phases={"fetch": 0.5, "apply": 0.01},
        nbytes=100,
        reported_at="2030-01-01T00:00:00.000Z",
        staleness=0,
        digest_matches=True,
    )
    return body.model_copy(update=changes)


def summary(workers: int, newest: int = 0) -> WorkerSummary:
    return WorkerSummary(workers=workers, differing=0, oldest=0, newest=newest, at_newest=workers)


class Follower:
    """A stream's reader, as the page is one; ``number``: up to which all was sent to it."""

    def __init__(self) -> None:
        self.number = -1
        self.told: dict[tuple[str, str], WorkerBody] = {}
        self.summary: WorkerSummary | None = None
        self.nbytes = 0
        self.kinds: list[str] = []

    def read(self, roster: Roster) -> None:
        sent = roster.since(self.number)
        roster.readers += self.number < 0
        self.number = roster.number
        self.nbytes += len(sent)
        for event in sent.decode().split("\n\n")[:-1]:
            kind, data = (line.partition(": ")[2] for line in event.split("\n"))
            self.kinds.append(kind)
            self.apply(kind, data)

    def apply(self, kind: str, data: str) -> None:
        if kind == "workers":
            self.told = {}
            listed = WorkerList.model_validate_json(data)
            changes = WorkerChanges(run=RUN, summary=listed.summary, workers=listed.workers, gone=())  # type: ignore[arg-type]
        else:
            changes = WorkerChanges.model_validate_json(data)
        self.summary = changes.summary
        for gone in changes.gone:
            del self.told[gone.worker, gone.token]
        self.told |= {(one.worker, one.token): one for one in changes.workers}


STEPS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)), st.sets(st.integers(0, 2))), max_size=30
)


@given(STEPS)
def test_whoever_applies_the_events_knows_the_list_however_rarely_it_reads(
    steps: list[tuple[dict[str, int], set[int]]],
) -> None:
    clock = Clock()
    roster, followers = Roster(RUN, clock.monotonic), [Follower() for _ in range(3)]
    for versions, readers in steps:
        clock.seconds += 60
        wanted = {(name, ""): worker(name, version) for name, version in versions.items()}
        assert roster.follow(summary(len(wanted)), wanted.values())
        for reader in readers:
            followers[reader].read(roster)
            assert followers[reader].told == wanted
            assert followers[reader].summary == summary(len(wanted))
    for follower in followers:
        follower.read(roster)
        follower.read(roster)
        assert len(follower.told) == (len(steps[-1][0]) if steps else 0)


def test_what_did_not_change_is_told_no_second_time() -> None:
    roster, follower = Roster(RUN, Clock().monotonic), Follower()
    names = [worker(f"w{number}", 3) for number in range(9)]
    assert roster.follow(summary(9), names)
    follower.read(roster)
    number, nbytes = roster.number, follower.nbytes
    assert roster.follow(summary(9), [one.model_copy(update={"staleness": 1}) for one in names])  # a version came
    follower.read(roster)
    assert (roster.number, follower.nbytes) == (number, nbytes)
    roster.follow(summary(9), [worker("w0", 4), *names[1:]])
    follower.read(roster)
    assert follower.nbytes - nbytes < 600
    assert follower.kinds == ["workers", "worker_changes"]


def test_what_there_is_no_room_for_is_told_later_and_the_newest_of_it_alone() -> None:
    clock = Clock()
    roster, follower = Roster(RUN, clock.monotonic), Follower()
    follower.read(roster)
    wanted = {(f"w{number:02d}", ""): worker(f"w{number:02d}", 1) for number in range(80)}
    assert not roster.follow(summary(80), wanted.values())
    assert not roster.follow(summary(80), wanted.values())
    follower.read(roster)
    assert 0 < len(follower.told) < 80
    assert follower.summary == summary(80)
    newer = {name: one.model_copy(update={"version": 2}) for name, one in wanted.items()}
    looks = 0
    while not roster.follow(summary(80, 2), newer.values()):
        clock.seconds += 2
        looks += 1
        follower.read(roster)
    follower.read(roster)
    assert follower.told == newer
    assert follower.nbytes < 5_000 + 2_000 + 2 * looks * 1024


def test_the_first_stream_is_sent_the_whole_list_at_once_and_what_nobody_read_costs_no_allowance() -> None:
    roster = Roster(RUN, Clock().monotonic)
    for version in range(20):
        assert roster.follow(summary(25), [worker(f"w{number}", version) for number in range(25)])
    first, second = Follower(), Follower()
    first.read(roster)
    assert len(first.told) == 25
    assert roster.follow(summary(25), [worker(f"w{number}", 20 if number < 9 else 19) for number in range(25)])
    second.read(roster)
    first.read(roster)
    assert (first.told, first.kinds, second.kinds) == (second.told, ["workers", "worker_changes"], ["workers"])


def test_a_stream_that_fell_behind_is_sent_the_list_and_no_queue() -> None:
    clock = Clock()
    roster, slow = Roster(RUN, clock.monotonic), Follower()
    slow.read(roster)
    for version in range(100):
        clock.seconds += 60
        roster.follow(summary(20, version), [worker(f"w{number}", version) for number in range(20)])
    clock.seconds += 60
    assert roster.follow(summary(20, 99), [worker(f"w{number}", 99) for number in range(20)])
    before = slow.nbytes
    slow.read(roster)
    assert (slow.kinds, len(slow.told)) == (["workers", "workers"], 20)
    assert slow.nbytes - before < MOST_BYTES
    assert roster.since(0) is roster.since(1)  # made once for all of them


@pytest.mark.parametrize("workers", [40, 400, 4_000])
def test_a_push_and_all_its_reports_cost_a_stream_no_more_the_more_workers_there_are(workers: int) -> None:
    clock, state = Clock(), chain(12).state
    reports = Reports(
        DictStore(), replica="one", now=clock.now, share_s=5, keep_s=900, clock=clock.monotonic, max_workers=10_000
    )
    roster, follower = Roster(RUN, clock.monotonic), Follower()
    phases = {"route": 0.01, "fetch": 0.8, "decode": 0.7, "verify": 0.7, "apply": 0.02}
    for version in (10, 11):
        for number in range(workers):
            report = WorkerReport(version=version, digest="f" * 32, phases=phases, nbytes=81_000_000)
            reports.take(RUN, f"{'a' * 12}:rollout-{number:04d}", report)
            if number % max(1, workers // 4) == 0 or number == workers - 1:  # as it is announced: all 2 s of it
                clock.seconds += 2
                roster.follow(*reports.standing(state, MOST, MOST_BYTES))
                follower.read(roster)
        while not roster.follow(*reports.standing(state, MOST, MOST_BYTES)):
            clock.seconds += 2
        follower.read(roster)
        if version == 10:
            clock.seconds += 60
            follower.nbytes = 0
    assert 0 < follower.nbytes <= PUSH_BYTES
    assert follower.summary is not None
    assert (follower.summary.workers, follower.summary.at_newest) == (workers, workers)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ef")), max_size=12), st.integers(1, 8))
def test_those_furthest_behind_are_shown_and_all_are_counted(told: list[tuple[int, str]], most: int) -> None:
    clock, state = Clock(), chain(4).state
    reports = Reports(DictStore(), replica="one", now=clock.now, share_s=5, keep_s=900, clock=clock.monotonic)
    for number, (version, digit) in enumerate(told):
        reports.take(RUN, f"w{number:02d}", WorkerReport(version=version, digest=digit * 32))
    found, shown = reports.standing(state, most, 10**9)
    every = reports.listed(state).workers
    worst = sorted(every, key=lambda one: (one.digest_matches is not False, one.version, one.worker))
    assert shown == worst[:most]
    newest = max((one.version for one in every), default=None)
    assert found == WorkerSummary(
        workers=len(every),
        differing=sum(one.digest_matches is False for one in every),
        oldest=min((one.version for one in every), default=None),
        newest=newest,
        at_newest=sum(one.version == newest for one in every),
    )
    for max_bytes in (0, 400, 2_000):
        _, fitting = reports.standing(state, most, max_bytes)
        assert fitting == shown[: len(fitting)]
        assert sum(len(one.model_dump_json()) for one in fitting) <= max_bytes


def test_of_workers_that_one_token_invents_none_pushes_those_of_another_out_of_the_list() -> None:
    clock, state = Clock(), chain(4).state
    reports = Reports(DictStore(), replica="one", now=clock.now, share_s=5, keep_s=900, clock=clock.monotonic)
    honest = {f"{'b' * 12}:w{number}" for number in range(3)}
    for name in (*honest, *(f"{'a' * 12}:w{number}" for number in range(100))):
        reports.take(RUN, name, WorkerReport(version=3 if name in honest else 0, digest="f" * 32))
    _, shown = reports.standing(state, 10, MOST_BYTES)
    assert {f"{one.token}:{one.worker}" for one in shown} > honest


def test_the_list_of_the_longest_reports_is_bounded() -> None:
    clock, state = Clock(), chain(3).state
    reports = Reports(DictStore(), replica="one", now=clock.now, share_s=5, keep_s=900, clock=clock.monotonic)
    long = WorkerReport(
        version=1,
        digest="f" * 32,
        phases={f"{number:_<64}": math.pi for number in range(16)},
        avoided=("objects/" + "x" * 900,),
    )
    for number in range(100):
        reports.take(RUN, f"w{number}", long)
    roster, follower = Roster(RUN, clock.monotonic), Follower()
    while not roster.follow(*reports.standing(state, MOST, MOST_BYTES)):
        clock.seconds += 10
    follower.read(roster)
    assert 2 < len(follower.told) < 6
    assert follower.nbytes < MOST_BYTES + 1_000
    assert json.loads(roster.since(-1).decode().split("data: ")[1])["summary"]["workers"] == 100
