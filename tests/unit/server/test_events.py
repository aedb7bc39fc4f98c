"""The stream of events over a real socket: versions and workers, from where it broke off, until the service stops."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pulse_registry.log import RunState
from pulse_schemas import VersionEntry
from pulse_schemas.api import VersionBody
from pulse_server.routes import events
from pulse_server.runs.bodies import version_body
from pulse_server.tokens import TokenFile, new_token
from tests.support.apps import LAYOUT, Running, app_over, fill, run_of, running, store_record
from tests.support.records import RUN, DictStore, Script
from tests.support.waiting import HANG_S, until
from tests.unit.server.edges import NOW, Clock, bearer

URL = f"/v1/runs/{RUN}"


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    data: Any
    id: str | None


def events_of(lines: Iterator[str]) -> Iterator[Event]:
    """Read a stream as the standard says; comments have the kind ``:``."""
    kind, data, number = "", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line.startswith(":"):
            yield Event(":", value, None)
        elif not line:
            if kind:
                yield Event(kind, json.loads(data), number)
            kind, data, number = "", "", None
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
        elif name == "id":
            number = value


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def script(store: DictStore) -> Script:
    return fill(store, run_of(5))


@pytest.fixture
def served(store: DictStore, script: Script) -> Iterator[Running]:
    with running(app_over(store)) as served:
        yield served


@contextmanager
def following(served: Running, query: str = "", **headers: str) -> Iterator[Iterator[Event]]:
    with httpx.stream("GET", f"{served.url}{URL}/events{query}", headers=headers, timeout=HANG_S) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "no-" in answer.headers["cache-control"]
        yield events_of(answer.iter_lines())


def versions_of(found: Iterator[Event], count: int) -> list[int]:
    seen: list[int] = []
    for event in found:
        if event.kind == "version":
            assert event.id == str(event.data["version"])
            seen.append(event.data["version"])
        if len(seen) == count:
            break
    return seen


def test_new_versions_come_as_they_are_pushed(served: Running, store: DictStore, script: Script) -> None:
    with following(served) as found:
        assert next(found).kind == "workers"
        for number in range(5, 8):
            store_record(store, script.commit(layout=LAYOUT.id).records[-1])
            event = next(found)
            assert (event.kind, event.id) == ("version", str(number))
            assert event.data == httpx.get(f"{served.url}{URL}/versions/{number}", timeout=HANG_S).json()


def test_a_stream_begins_after_the_version_that_is_named(served: Running) -> None:
    with following(served, "?after=1") as found:
        assert versions_of(found, 3) == [2, 3, 4]
    with following(served, "?after=-1") as found:
        assert versions_of(found, 5) == [0, 1, 2, 3, 4]


def test_the_event_of_a_version_is_made_once_for_all_streams(
    served: Running, store: DictStore, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(state: RunState, entry: VersionEntry) -> VersionBody:
        made.append(entry.version)
        return version_body(state, entry)

    monkeypatch.setattr(events, "version_body", counted)
    with ExitStack() as streams:
        found = [streams.enter_context(following(served, "?after=3")) for _ in range(8)]
        assert [versions_of(one, 1) for one in found] == [[4]] * 8
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        assert [versions_of(one, 1) for one in found] == [[5]] * 8
    assert sorted(made) == [4, 5]


@pytest.mark.parametrize("piece_bytes", [0, 900, 1 << 20])
def test_many_versions_are_told_in_pieces_that_are_made_beside_the_event_loop(
    store: DictStore, script: Script, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(events, "_PIECE", 3)
    monkeypatch.setattr(events, "_PIECE_BYTES", piece_bytes)
    for _ in range(7):
        store_record(store, script.commit(layout=LAYOUT.id).records[-1])
    store_record(store, script.retire(versions=(3, 4, 5, 6)).records[-1])
    made: list[tuple[int, int]] = []

    def noted(state: RunState, entry: VersionEntry) -> VersionBody:
        made.append((entry.version, threading.get_ident()))
        return version_body(state, entry)

    monkeypatch.setattr(events, "version_body", noted)
    with running(app_over(store)) as served:
        with following(served, "?after=-1") as found:
            assert versions_of(found, 8) == [0, 1, 2, 7, 8, 9, 10, 11]
        loop = served.inside(threading.get_ident)
    assert [version for version, _ in made] == [0, 1, 2, 7, 8, 9, 10, 11]
    assert loop not in [thread for version, thread in made if version < 11]  # the newest, all streams share


def test_who_has_missed_too_many_versions_is_told_which_and_sent_the_newest(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_MAX_TOLD", 2)
    for last, query in ({"last-event-id": "0"}, ""), ({}, "?after=0"):
        with following(served, query, **last) as found:
            assert next(found) == Event("missed", {"first": 1, "last": 2}, "2")
            assert versions_of(found, 2) == [3, 4]
    with following(served, **{"last-event-id": "2"}) as found:
        assert next(found).kind == "version"
    missed = {"first": 1, "last": 2}
    after, newest = missed["first"] - 1, missed["last"]
    page = httpx.get(f"{served.url}{URL}/versions?after={after}&limit={newest - after}", timeout=HANG_S).json()
    assert [version["version"] for version in page["versions"]] == [1, 2]


def test_a_stream_goes_on_where_it_broke_off(served: Running, store: DictStore, script: Script) -> None:
    with following(served, "?after=0") as found:
        last = versions_of(found, 2)[-1]
    store_record(store, script.commit(layout=LAYOUT.id).records[-1])
    with following(served, "?after=0", **{"last-event-id": str(last)}) as found:
        assert versions_of(found, 3) == [3, 4, 5]


@pytest.mark.parametrize("bad", ["x", "1.5", "-2", "1\t2"])
def test_a_last_event_id_that_is_none_of_ours_is_refused(served: Running, bad: str) -> None:
    answer = httpx.get(f"{served.url}{URL}/events", headers={"last-event-id": bad}, timeout=HANG_S)
    assert answer.status_code == 422


def test_workers_come_when_one_reports(served: Running) -> None:
    with following(served) as found:
        none = {"workers": 0, "differing": 0, "oldest": None, "newest": None, "at_newest": 0}
        assert next(found) == Event("workers", {"run": RUN, "workers": [], "summary": none}, None)
        report = {"version": 4, "digest": "f" * 32, "phases": {"apply": 0.1}}
        assert httpx.put(f"{served.url}{URL}/workers/w-1", json=report, timeout=HANG_S).status_code == 204
        event = next(found)
        assert (event.kind, event.id) == ("worker_changes", None)
        assert [(w["worker"], w["staleness"], w["digest_matches"]) for w in event.data["workers"]] == [("w-1", 0, True)]
        assert event.data["summary"] == {"workers": 1, "differing": 0, "oldest": 4, "newest": 4, "at_newest": 1}
        assert httpx.delete(f"{served.url}{URL}/workers/w-1", timeout=HANG_S).status_code == 204
        event = next(found)
        assert (event.kind, event.data["gone"]) == ("worker_changes", [{"worker": "w-1", "token": ""}])
    with following(served) as found:
        assert next(found).data["workers"] == []


def test_a_report_is_told_at_once_by_the_replica_that_heard_it(store: DictStore, script: Script) -> None:
    with running(app_over(store, report_seconds=600)) as served, following(served) as found:
        assert next(found).data["workers"] == []
        for number in range(3):
            report = {"version": 4, "digest": "f" * 32}
            httpx.put(f"{served.url}{URL}/workers/w-{number}", json=report, timeout=HANG_S).raise_for_status()
            assert [w["worker"] for w in next(found).data["workers"]] == [f"w-{number}"]
        roster = next(iter(served.service.feeds)).roster
        with following(served) as late:
            assert [w["worker"] for w in next(late).data["workers"]] == ["w-0", "w-1", "w-2"]
            assert roster.readers == 2
        until(lambda: roster.readers == 1)


def test_a_report_is_told_while_the_others_can_not_be_read(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_FIRST_LIST_S", 0.02)

    class Unlisted(DictStore):
        hanging = threading.Event()

        def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
            if "/reports/" in prefix:
                self.hanging.wait(HANG_S)
            return super().list(prefix, after)

    store = Unlisted()
    fill(store, script)
    try:
        with running(app_over(store, report_seconds=600)) as served, following(served) as found:
            assert next(found).data["workers"] == []
            report = {"version": 4, "digest": "f" * 32}
            httpx.put(f"{served.url}{URL}/workers/w-1", json=report, timeout=HANG_S).raise_for_status()
            assert [w["worker"] for w in next(found).data["workers"]] == ["w-1"]
            store.hanging.set()
    finally:
        store.hanging.set()


def test_a_quiet_stream_says_that_it_lives(store: DictStore, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_S", 0.02)
    with running(app_over(store)) as served, following(served) as found:
        assert next(event.kind for event in found if event.kind != "workers") == ":"


def test_a_stream_ends_when_the_service_stops(served: Running) -> None:
    with following(served) as found:
        assert next(found).kind == "workers"
        served.inside(served.service.stop_waiting)
        assert [event for event in found if event.kind != ":"] == []


@pytest.mark.parametrize("news", [True, False], ids=["with news", "quiet"])
def test_a_stream_whose_token_was_revoked_ends_and_tells_nothing_more(
    store: DictStore, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, news: bool
) -> None:
    monkeypatch.setattr(events, "PING_S", 0.02)
    clock, file = Clock(), TokenFile(tmp_path / "tokens.json")
    token, entry = new_token("reader", "read", ("*",), now=NOW)
    file.add(entry)
    app = app_over(store, clock=clock.monotonic, insecure_open=False, tokens_file=file.path, report_seconds=600)
    with running(app) as served, following(served, **bearer(token)) as found:
        assert next(event.kind for event in found if event.kind != ":") == "workers"
        file.remove(entry.id)
        clock.seconds += 1
        if news:
            store_record(store, script.commit(layout=LAYOUT.id).records[-1])
        assert [event for event in found if event.kind != ":"] == []
