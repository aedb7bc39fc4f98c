"""A listener hears of pushes and pulls in their order, and nothing waits for it or fails because of it."""

from __future__ import annotations

import logging
import pickle
import threading

import numpy as np
import pytest

import pulse_registry
from pulse_registry.options import ComputeOptions
from pulse_registry.results import PullResult, PushResult
from pulse_registry.runtime.listening import Listening
from tests.support.waiting import HANG_S, NEVER_S

Result = PushResult | PullResult
REFERENCE = ComputeOptions(backend="reference")


def pushed(version: int) -> PushResult:
    return PushResult(
        version=version,
        step=version,
        kind="patch",
        changed=1,
        cells=2,
        nbytes=1,
        full_nbytes=4,
        digest="1" * 32,
        phases={},
    )


def test_pushes_and_pulls_are_told_as_they_return_them_and_what_changed_nothing_is_not() -> None:
    heard: list[Result] = []
    model, live = {"w": np.zeros(8, np.uint16)}, {"w": np.zeros(8, np.uint16)}
    with pulse_registry.open("memory://listening", run="run", compute=REFERENCE, on_result=heard.append) as registry:
        made: list[Result] = [registry.push(0, model)]
        made.append(registry.pull("latest", into=live))
        registry.pull("latest", into=live)  # nothing to do
        model["w"][3] = 1
        made.append(registry.push(1, model, wait=False).result())
        with registry.stage("latest", into=live) as staged:
            made.append(staged.apply())
    assert heard == made
    assert [result.cells for result in heard] == [8] * 4


def test_nobody_waits_for_a_listener_that_does_not_return() -> None:
    entered, release = threading.Event(), threading.Event()

    def listen(result: Result) -> None:
        entered.set()
        release.wait(HANG_S)

    model = {"w": np.zeros(8, np.uint16)}
    registry = pulse_registry.open("memory://listening-slow", run="run", compute=REFERENCE, on_result=listen)
    registry.push(0, model)
    assert entered.wait(HANG_S)
    model["w"][0] = 1
    assert registry.push(1, model).version == 1
    release.set()
    registry.close()


def test_of_what_a_listener_has_no_time_for_the_newest_is_kept_and_the_rest_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered, release, heard = threading.Event(), threading.Event(), list[int]()

    def listen(result: Result) -> None:
        entered.set()
        release.wait(HANG_S)
        heard.append(result.version)

    listening = Listening("run", listen, most=2, close_s=NEVER_S)
    listening.tell(pushed(0))
    assert entered.wait(HANG_S)
    for version in range(1, 6):
        listening.tell(pushed(version))
    release.set()
    listening.close()
    listening.close()
    listening.tell(pushed(9))
    assert heard == [0, 4, 5]
    assert [record.getMessage() for record in caplog.records] == [
        "run run: on_result is too slow: it is not told of all pushes and pulls"
    ]


def test_a_registry_that_is_closed_does_not_wait_for_ever_and_says_what_was_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered, release = threading.Event(), threading.Event()

    def listen(result: Result) -> None:
        entered.set()
        release.wait(HANG_S)

    listening = Listening("run", listen, close_s=0.0)
    listening.tell(pushed(0))
    assert entered.wait(HANG_S)
    listening.tell(pushed(1))
    listening.close()
    assert [record.getMessage() for record in caplog.records] == ["run run: on_result was not told of 1 results"]
    release.set()


def test_what_a_listener_raises_is_logged_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    def listen(result: Result) -> None:
        heard.append(result.version)
        raise RuntimeError("no such tracker")

    listening = Listening("run", listen, close_s=NEVER_S)
    for version in range(3):
        listening.tell(pushed(version))
    listening.close()
    assert heard == [0, 1, 2]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "run run: on_result raised")
    ]


def test_a_registry_that_is_opened_again_in_another_process_has_its_listener(tmp_path: object) -> None:
    with pulse_registry.open(str(tmp_path), run="run", compute=REFERENCE, on_result=len) as registry:  # type: ignore[arg-type]
        text = pickle.dumps(registry)
    assert b"on_result" in text
    with pickle.loads(text) as again:
        assert again.run == "run"
