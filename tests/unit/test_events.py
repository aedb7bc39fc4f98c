"""Events reach everybody who listens, whatever one of them does."""

from __future__ import annotations

import logging

import pytest

from pulse_registry.errors import StoreUnavailable
from pulse_registry.events import Event, EventKind, Events

AVOIDED = Event(EventKind.OBJECT_AVOIDED, "run", "a detour", "objects/patch/x")
FROZEN = Event(EventKind.FROZEN, "run", "nothing new")


def test_a_listener_that_raises_stops_neither_who_tells_nor_the_other_listeners(caplog: pytest.LogCaptureFixture):
    heard: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("no such dashboard")

    events = Events(fail, heard.append)
    for event in (AVOIDED, AVOIDED, FROZEN):
        events.tell(event)
    assert heard == [AVOIDED, AVOIDED, FROZEN]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "run run: on_event raised at object_avoided",
        "run run: on_event raised at frozen",
    ], "once for each kind"
    assert all(record.exc_info is not None and record.exc_info[0] is RuntimeError for record in errors)


def test_the_log_has_the_traceback_of_a_cause_that_is_none_of_our_errors(caplog: pytest.LogCaptureFixture):
    events = Events()
    events.tell(AVOIDED, StoreUnavailable("down"))
    events.tell(AVOIDED, MemoryError())
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]
