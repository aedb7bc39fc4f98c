"""The stream of all runs over a real socket: what changed, to whom it is allowed, from where it broke off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pulse_schemas import Home
from pulse_server.routes import fleet as routes
from pulse_server.runs import fleet
from pulse_server.tokens import TokenFile, new_token
from tests.support.apps import LAYOUT, Running, app_over, fill, run_of, running, store_record
from tests.support.records import DictStore, Script
from tests.support.waiting import HANG_S, until
from tests.unit.server.edges import NOW, Clock, bearer
from tests.unit.server.test_events import Event, events_of

RUNS = ("code-1b", "code-7b", "math-1b", "math-7b")


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def scripts(store: DictStore) -> dict[str, Script]:
    return {run: fill(store, run_of(3, run)) for run in RUNS}


@pytest.fixture
def served(store: DictStore, scripts: dict[str, Script]) -> Iterator[Running]:
    with running(app_over(store)) as served:
        yield served


class Stream:
    """A stream that is read as the page reads it: ``told`` has each run as it was last told."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.told: dict[str, Any] = {}
        self.seen: list[Event] = []
        self._events = events

    def next(self) -> Event:
        """Read the next event."""
        event = next(event for event in self._events if event.kind != ":")
        assert event.kind == "runs"
        if event.data["whole"]:
            self.told = {}
        self.told |= {run["run"]: run for run in event.data["runs"]}
        self.seen.append(event)
        return event

    def until_all(self, *runs: str) -> None:
        """Read until these runs were told."""
        while self.told.keys() != set(runs):
            self.next()

    def newest(self, run: str) -> int:
        """Return a run's newest version as it was told."""
        version: int = self.told[run]["latest"]["version"]
        return version


@contextmanager
def following(served: Running, **headers: str) -> Iterator[Stream]:
    with httpx.stream("GET", f"{served.url}/v1/events", headers=headers, timeout=HANG_S) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(events_of(answer.iter_lines()))


def push(store: DictStore, script: Script, **changes: Any) -> None:
    store_record(store, script.commit(layout=LAYOUT.id, **changes).records[-1])


def test_a_stream_begins_with_all_runs_and_goes_on_with_what_changes(
    served: Running, store: DictStore, scripts: dict[str, Script]
) -> None:
    with following(served) as stream:
        assert stream.next().data["whole"]
        stream.until_all(*RUNS)
        assert [event.data["whole"] for event in stream.seen[1:]] == [False] * (len(stream.seen) - 1)
        assert {event.data["total"] for event in stream.seen} == {4}
        told = stream.told["math-7b"]
        listed = httpx.get(f"{served.url}/v1/runs/math-7b", timeout=HANG_S).json()
        assert told["latest"] == {name: listed["latest"][name] for name in told["latest"]}
        assert [told[name] for name in ("seq", "versions", "full_nbytes", "summary", "stale")] == [
            *(listed[name] for name in ("seq", "versions", "full_nbytes", "summary")),
            False,
        ]
        for number in (3, 4):
            push(store, scripts["math-7b"])
            event = stream.next()
            assert [run["run"] for run in event.data["runs"]] == ["math-7b"]
            assert stream.newest("math-7b") == number


@pytest.mark.slow
def test_workers_tags_and_notes_are_told(served: Running, store: DictStore, scripts: dict[str, Script]) -> None:
    with following(served) as stream:
        stream.until_all(*RUNS)
        report = {"version": 1, "digest": "f" * 32, "phases": {"apply": 0.125}, "nbytes": 9, "avoided": ["objects/x"]}
        httpx.put(f"{served.url}/v1/runs/code-7b/workers/w-1", json=report, timeout=HANG_S).raise_for_status()
        stream.next()
        summary = stream.told["code-7b"]["summary"]
        assert summary["workers"] == {"workers": 1, "differing": 0, "oldest": 1, "newest": 1, "at_newest": 1}
        assert (summary["pause_s"], summary["avoided"]) == (0.125, 1)
        store_record(store, scripts["code-7b"].tag("best", 2).records[-1])
        stream.next()
        assert stream.told["code-7b"]["summary"]["tags"] == {"best": 2}
        push(store, scripts["code-7b"], metadata={"note": "rewards look odd"})
        stream.next()
        assert stream.told["code-7b"]["summary"]["note"] == {"version": 3, "text": "rewards look odd"}


def test_a_run_that_lives_elsewhere_is_told_with_its_home_until_it_is_back(
    served: Running, store: DictStore, scripts: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_CHOOSE_S", 0.05)
    monkeypatch.setattr(fleet, "_SAME_RECORD_S", 0.0)
    script = scripts["math-7b"]
    with following(served) as stream:
        stream.until_all(*RUNS)
        assert {line["home"] for line in stream.told.values()} == {None}
        store_record(store, script.move("s3://eu/" + "x" * 500).records[-1])
        stream.next()
        assert stream.told["math-7b"]["home"] == "s3://eu/" + "x" * 91 + "…"
        store_record(store, script.move("s3://here/policies").records[-1])
        while stream.told["math-7b"]["home"] != "s3://here/policies":  # nothing proves that it is here
            stream.next()
        assert script.state.home is not None
        store.put("math-7b/home", Home(run="math-7b", move=script.state.home.move).seal())
        stream.next()
        assert stream.told["math-7b"]["home"] is None
        assert stream.told["math-7b"]["seq"] == script.state.seq


def test_a_stream_goes_on_where_it_broke_off(served: Running, store: DictStore, scripts: dict[str, Script]) -> None:
    with following(served) as stream:
        stream.until_all(*RUNS)
        last = stream.seen[-1].id
        assert last is not None
    push(store, scripts["code-1b"])
    with following(served, **{"last-event-id": last}) as again:
        event = again.next()
        assert not event.data["whole"]
        assert [run["run"] for run in event.data["runs"]] == ["code-1b"]
    with following(served, **{"last-event-id": "ffffffff-3"}) as anew:
        assert anew.next().data["whole"]


def test_a_run_that_is_new_is_told_and_one_that_is_gone_is_told_no_more(
    served: Running, store: DictStore, scripts: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_CHOOSE_S", 0.05)
    monkeypatch.setattr("pulse_server.service._LIST_S", 0.02)
    with following(served) as stream:
        stream.until_all(*RUNS)
        fill(store, run_of(1, "art-1b"))
        stream.until_all("art-1b", *RUNS)
        for key in [*store.list("math-1b/")]:
            store.delete(key)
        stream.until_all("art-1b", "code-1b", "code-7b", "math-7b")
        until(lambda: len(served.service.fleet) == 4)


def test_a_run_whose_log_can_not_be_read_is_told_as_such(store: DictStore, scripts: dict[str, Script]) -> None:
    store.put("broken/log/000000000000.json", b"{")
    with running(app_over(store)) as served, following(served) as stream:
        stream.until_all("broken", *RUNS)
        told = stream.told["broken"]
        assert (told["seq"], told["latest"], told["summary"], told["stale"]) == (-1, None, None, True)


def test_a_folder_that_holds_no_run_is_counted_no_more_until_it_does(
    store: DictStore, scripts: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_CHOOSE_S", 0.05)
    store.put("backups/a-file", b"")
    with running(app_over(store)) as served, following(served) as stream:
        stream.until_all(*RUNS)
        while stream.seen[-1].data["total"] != 4:
            stream.next()
        fill(store, run_of(1, "backups"))
        stream.until_all("backups", *RUNS)
        assert stream.seen[-1].data["total"] == 5


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


def issue(tokens: TokenFile, *runs: str) -> tuple[str, str]:
    """Return a token for runs, and its id."""
    token, entry = new_token("reader", "read", runs, now=NOW)
    tokens.add(entry)
    return token, entry.id


def guarded(store: DictStore, tokens: TokenFile, clock: Clock) -> Any:
    return app_over(store, clock=clock.monotonic, insecure_open=False, tokens_file=tokens.path, report_seconds=600)


@pytest.mark.slow
def test_a_stream_tells_only_of_runs_that_its_token_may_read(
    store: DictStore, scripts: dict[str, Script], tokens: TokenFile
) -> None:
    (math, _), (every, _) = issue(tokens, "math-*"), issue(tokens, "*")
    clock = Clock()
    with running(guarded(store, tokens, clock)) as served:
        assert httpx.get(f"{served.url}/v1/events", timeout=HANG_S).status_code == 401
        with following(served, **bearer(every)) as stream, following(served, **bearer(math)) as narrow:
            until(lambda: len(served.service.fleet) == 4)
            clock.seconds += 0.5
            stream.until_all(*RUNS)
            narrow.until_all("math-1b", "math-7b")
            push(store, scripts["code-7b"])
            while stream.newest("code-7b") != 3:
                stream.next()
            push(store, scripts["math-7b"])
            while narrow.newest("math-7b") != 3:
                narrow.next()
            assert narrow.told.keys() == {"math-1b", "math-7b"}
            assert {run["run"] for event in narrow.seen for run in event.data["runs"]} == {"math-1b", "math-7b"}
            assert {event.data["total"] for event in narrow.seen} == {2}


@pytest.mark.parametrize("change", ["revoked", "narrowed"])
def test_what_a_token_may_is_checked_before_each_event(
    store: DictStore,
    scripts: dict[str, Script],
    tokens: TokenFile,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    monkeypatch.setattr(routes, "PING_S", 0.02)
    token, number = issue(tokens, "*")
    clock = Clock()
    with running(guarded(store, tokens, clock)) as served, following(served, **bearer(token)) as stream:
        stream.until_all(*RUNS)
        entry = next(entry for entry in tokens.read().tokens if entry.id == number)
        tokens.remove(number)
        if change == "narrowed":
            tokens.add(entry.model_copy(update={"runs": ("math-*",)}))
        clock.seconds += 1
        push(store, scripts["code-7b"])
        if change == "narrowed":
            event = stream.next()
            assert event.data["whole"]
            stream.until_all("math-1b", "math-7b")
            assert event.data["total"] == 2
        else:
            with pytest.raises(StopIteration):
                stream.next()


def test_a_stream_of_a_token_that_was_changed_meanwhile_begins_anew(
    store: DictStore, scripts: dict[str, Script], tokens: TokenFile
) -> None:
    token, number = issue(tokens, "math-*")
    clock = Clock()
    with running(guarded(store, tokens, clock)) as served:
        with following(served, **bearer(token)) as stream:
            stream.until_all("math-1b", "math-7b")
            last = stream.seen[-1].id
        entry = next(entry for entry in tokens.read().tokens if entry.id == number)
        tokens.remove(number)
        tokens.add(entry.model_copy(update={"runs": ("code-*", "math-7b")}))
        clock.seconds += 1
        with following(served, **{"last-event-id": last or "", **bearer(token)}) as again:
            assert again.next().data["whole"]
            clock.seconds += fleet._CHOOSE_S  # runs that nobody has followed are looked for
            again.until_all("code-1b", "code-7b", "math-7b")


class CountedClock(Clock):
    """Time that a test moves, and how often it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return super().monotonic()


@pytest.mark.slow
def test_changes_have_an_allowance_in_bytes_and_none_is_lost(
    store: DictStore, scripts: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_BURST", 600)
    monkeypatch.setattr(fleet, "_TICK_S", 0.01)
    clock = CountedClock()

    def told_anew() -> int:
        """Return of how many runs news was told by now, once the fleet has had many turns."""
        before = clock.reads
        until(lambda: clock.reads >= before + 200)
        with following(served) as other:
            other.until_all(*RUNS)
            return sum(other.newest(run) > 2 for run in RUNS)

    with running(app_over(store, clock=clock.monotonic, report_seconds=600)) as served, following(served) as stream:
        stream.until_all(*RUNS)  # the first lines are free
        for _ in range(5):
            for script in scripts.values():
                push(store, script)
        until(lambda: all(len(feed.state.versions) == 8 for feed in served.service.feeds))
        assert 1 <= told_anew() <= 2
        clock.seconds += 0.01  # 328 bytes: of what was overspent, and a line
        assert told_anew() < 4
        while any(stream.newest(run) < 7 for run in RUNS):
            clock.seconds += 0.02  # 655 bytes
            stream.next()


def test_the_line_of_a_change_is_made_once_for_all_streams(
    served: Running, store: DictStore, scripts: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    whole = fleet.run_line

    def counted(body: Any, **how: Any) -> Any:
        made.append(body.run)
        return whole(body, **how)

    monkeypatch.setattr(fleet, "run_line", counted)
    with following(served) as one, following(served) as two, following(served) as three:
        for stream in (one, two, three):
            stream.until_all(*RUNS)
        assert sorted(made) == [*RUNS]
        push(store, scripts["math-1b"])
        for stream in (one, two, three):
            stream.next()
            assert stream.newest("math-1b") == 3
        assert sorted(made) == sorted([*RUNS, "math-1b"])


def test_runs_are_followed_while_somebody_reads_and_a_while_longer(
    store: DictStore, scripts: dict[str, Script]
) -> None:
    clock = Clock()
    with running(app_over(store, clock=clock.monotonic, report_seconds=600)) as served:
        assert len(served.service.fleet) == 0
        with following(served) as stream:
            stream.until_all(*RUNS)
            assert all(feed.in_use for feed in served.service.feeds)
        until(lambda: not served.service.fleet.readers)
        clock.seconds += 29
        assert len(served.service.fleet) == 4
        clock.seconds += 2
        until(lambda: len(served.service.fleet) == 0)
        assert not any(feed.in_use for feed in served.service.feeds)
        with following(served) as stream:
            stream.until_all(*RUNS)


def test_a_stream_tells_of_so_many_runs_and_says_that_there_are_more(
    store: DictStore, scripts: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_RUNS", 3)
    with running(app_over(store)) as served, following(served) as stream:
        stream.until_all(*RUNS[:3])
        assert (stream.seen[-1].data["total"], stream.seen[-1].data["more"]) == (3, True)
        assert len(served.service.fleet) == 3


def test_a_quiet_stream_says_that_it_lives_and_ends_when_the_service_stops(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PING_S", 0.02)
    with httpx.stream("GET", f"{served.url}/v1/events", timeout=HANG_S) as answer:
        events = events_of(answer.iter_lines())
        assert next(event.kind for event in events if event.kind != "runs") == ":"
        served.inside(served.service.stop_waiting)
        assert {event.kind for event in events} <= {":", "runs"}
