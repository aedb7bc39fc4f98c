"""Commands that follow: what they show on terminals of any width, and what they do while a store is away."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from rich.console import Console

from pulse_registry.cli.log import followed
from pulse_registry.cli.output import line_of
from pulse_registry.cli.patience import PAUSE_S, patiently
from pulse_registry.cli.worker_views import COLUMNS, WorkerLines, WorkerScreen, furthest_first, standing
from pulse_registry.cli.workers import EVERY_S, watch
from pulse_registry.errors import AccessDenied, StoreUnavailable
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import MemoryStore
from pulse_registry.testing import Fault, FaultStore
from pulse_schemas.api import WorkerBody
from tests.support.command_line import Pulse, Run


def worker(name: str, version: int = 41, behind: int = 0, *, matches: bool = True, **told: object) -> WorkerBody:
    return WorkerBody(
        worker=name,
        version=version,
        digest="0" * 32,
        phases={"apply": 0.0031},
        nbytes=1_200_000,
        reported_at="2026-01-01T00:00:00.000Z",
        staleness=behind,
        digest_matches=matches,
        **told,  # type: ignore[arg-type]
    )


# -- the log ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_log_that_is_followed_goes_on_after_what_it_has_told_when_the_store_is_back() -> None:
    store, weights = MemoryStore("test"), {"w": np.zeros(8, np.uint16)}
    away, pauses = False, list[float]()
    faults = FaultStore(store, [Fault("fail_before", verb="get", matches=lambda verb, key: away)])
    once = Dependencies(retrying=lambda one: one)  # the store's own patience is told of elsewhere

    def pause(seconds: float) -> None:
        nonlocal away
        pauses.append(seconds)
        away = len(pauses) % 2 == 1

    with (
        Registry(store, "math", Options(compute=ComputeOptions(backend="reference"))) as trainer,
        Registry(faults, "math", dependencies=once) as registry,
    ):
        versions = followed(registry, pause)
        for step in range(4):
            weights["w"][step] = 1
            trainer.push(step, weights)
            assert next(versions).version == step
            away = True
    assert pauses == [PAUSE_S] * 6
    assert len(faults.fired) == 6


@pytest.mark.parametrize("failures", [0, 1, 5])
def test_a_store_that_is_away_is_asked_again_after_a_pause_and_said_to_be(
    failures: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, pauses, left = 0, list[float](), failures

    def news() -> Iterator[int]:
        nonlocal seen, left
        while seen < 3:
            seen += 1
            yield seen
            if left:
                left -= 1
                raise StoreUnavailable("the bucket is away")

    assert [*patiently(news, pauses.append)] == [1, 2, 3]
    assert pauses == [PAUSE_S] * min(failures, 3)
    err = capsys.readouterr().err
    assert err.count("the bucket is away") == min(failures, 3)


def test_what_no_patience_mends_ends_a_command_that_follows() -> None:
    def news() -> Iterator[int]:
        yield 1
        raise AccessDenied("revoked")

    found = patiently(news, lambda _: pytest.fail("it waits"))
    assert next(found) == 1
    with pytest.raises(AccessDenied):
        next(found)


def test_the_log_tells_how_large_a_share_changed(pulse: Pulse, run: Run) -> None:
    versions = pulse("log", "--json").json
    told = pulse("log").out
    for one in versions:
        assert f"{100 * one['changed'] / one['cells']:.3g} %" in told


@pytest.mark.parametrize(("columns", "shown"), [(1, 1), (10, 1), (12, 2), (200, 3)])
def test_a_line_leaves_out_what_a_terminal_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch, columns: int, shown: int
) -> None:
    fields = ("version 1", "a", "digest 0")
    assert line_of(fields) == "version 1  a  digest 0"  # a pipe has room for all
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda **_: os.terminal_size((columns, 24)))
    assert line_of(fields) == "  ".join(fields[:shown])


# -- workers ------------------------------------------------------------------------------------------------


def test_a_bucket_has_no_workers_to_tell_of(pulse: Pulse, run: Run) -> None:
    answer = pulse("workers")
    assert answer.code == 2
    assert "is no service" in answer.err


def test_those_whose_cells_differ_come_first_then_those_furthest_behind() -> None:
    workers = [worker("a"), worker("b", 39, 2), worker("c", 31, 10), worker("d", matches=False)]
    assert [one.worker for one in furthest_first(workers)] == ["d", "c", "b", "a"]
    assert standing("math", workers) == (
        "math: 1 DIFFER from their version's cells; version 41; 4 workers, 2 of them at it, the last one 10 behind"
    )
    assert standing("math", ()) == "math: no worker has reported of late"


def drawn(workers: list[WorkerBody], width: int, height: int, *, away: bool = False) -> list[str]:
    """Return the lines that a screen has at the end."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=False, highlight=False)
    with WorkerScreen("math", console) as screen:
        screen.show(tuple(workers))
        if away:
            screen.away(StoreUnavailable("no connection in time"))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(20, 9), (40, 12), (80, 24), (250, 60)])
def test_a_screen_shows_what_it_has_room_for(width: int, height: int) -> None:
    workers = [worker(f"node-{n:04}.rank-{n % 8}-of-8", 41 - n % 20, n % 20) for n in range(1000)]
    workers.append(worker("w" * 120, matches=False))
    lines = drawn(workers, width, height, away=True)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("math: 1 DIFFER")
    cells = [line.split() for line in lines]
    head = next(n for n, line in enumerate(cells) if line[:1] == ["worker"])
    rows = [line for line in cells[head + 1 :] if line and line[0].startswith(("www", "node-"))]
    assert rows[0][0].startswith("www")
    assert len(rows) == max(1, height - 8)
    assert [*map(" ".join, [cells[head]])] == [" ".join(COLUMNS[: {20: 1, 40: 2, 80: 5, 250: 10}[width]])]
    assert any(line.startswith(f"and {len(workers) - len(rows):,} more, no"[: width - 1]) for line in lines)
    assert lines[-1].startswith("no answer, and this"[: width - 1])


def test_lines_tell_what_is_new_of_a_worker_and_when_it_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = WorkerLines(json_output=True)
    said: Callable[[], list[tuple[str, int, bool]]] = lambda: [  # noqa: E731
        (one["worker"], one["version"], one["gone"]) for one in map(json.loads, capsys.readouterr().out.splitlines())
    ]
    lines.show((worker("a"), worker("b", 40, 1)))
    assert said() == [("a", 41, False), ("b", 40, False)]
    lines.show((worker("a", 41, 1), worker("b", 42)))  # the run went on, and b with it
    assert said() == [("b", 42, False)]
    lines.show((worker("b", 42),))
    assert said() == [("a", 41, True)]
    lines.show((worker("b", 42, token="0" * 12),))  # another token's, of the same name
    assert said() == [("b", 42, True), ("b", 42, False)]


def test_lines_for_people_say_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    WorkerLines(json_output=False).show((worker("a", 39, 2, matches=False),))
    assert capsys.readouterr().out == (
        "2026-01-01T00:00:00.000Z  a: version 39, 2 behind, paused 3.1 ms, its cells DIFFER from that version's\n"
    )


def test_workers_are_shown_again_when_the_service_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[tuple[WorkerBody, ...] | Exception] = [
        (worker("a"),),
        StoreUnavailable("away"),
        (worker("a", 42),),
        AccessDenied("revoked"),
    ]

    def ask() -> tuple[WorkerBody, ...]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pauses: list[float] = []
    with pytest.raises(AccessDenied):
        for _ in watch(ask, WorkerLines(json_output=False), pauses.append):
            pass
    captured = capsys.readouterr()
    assert [line.split(": ")[1].split(",")[0] for line in captured.out.splitlines()] == ["version 41", "version 42"]
    assert "away" in captured.err
    assert pauses == [EVERY_S] * 4
