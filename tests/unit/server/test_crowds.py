"""What fails for everybody at once is one line, and then one a while that says how many there were."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_server.telemetry.crowds import Crowds
from tests.support.apps import LAYOUT, app_over
from tests.support.records import DictStore


class Clockwork:
    """Calls that wait for their time, which a test brings."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == 10
        self.due.append(call)

    def pass_time(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def test_the_first_of_a_kind_is_told_at_once_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    time = Clockwork()
    crowds = Crowds(logging.getLogger("test"), 10, time.later)
    for number in range(5):
        crowds.tell("StoreUnavailable", f"request {number} failed")
    crowds.tell("CorruptObject", "an object is damaged")
    assert caplog.messages == ["request 0 failed", "an object is damaged"]
    time.pass_time()
    assert caplog.messages[2:] == ["4 more of StoreUnavailable in 10 s, the last: request 4 failed"]
    crowds.tell("StoreUnavailable", "request 5 failed")
    time.pass_time()
    assert caplog.messages[3:] == ["1 more of StoreUnavailable in 10 s, the last: request 5 failed"]
    time.pass_time()
    assert time.due == []
    crowds.tell("StoreUnavailable", "request 6 failed")
    assert caplog.messages[4:] == ["request 6 failed"]


def test_without_a_free_descriptor_requests_are_one_line_and_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    class Full(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if "/layouts/" in key:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().get(key, byte_range, max_bytes=max_bytes)

    with TestClient(app_over(Full())) as client:
        answers = [client.get(f"/v1/runs/math-7b/layouts/{LAYOUT.id}") for _ in range(20)]
    assert {answer.status_code for answer in answers} == {503}
    assert answers[0].headers["retry-after"] == "1"
    assert "no file descriptor" in answers[0].json()["detail"]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "raise ulimit -n" in line


def test_while_the_bucket_is_down_requests_are_one_line_and_say_what_is_down(caplog: pytest.LogCaptureFixture) -> None:
    class Down(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if "/layouts/" in key:
                error = StoreUnavailable("could not get s3://secret-bucket: connection refused")
                error.lasting = True
                raise error
            return super().get(key, byte_range, max_bytes=max_bytes)

    with TestClient(app_over(Down())) as client:
        answers = [client.get(f"/v1/runs/math-7b/layouts/{LAYOUT.id}") for _ in range(20)]
    assert {answer.status_code for answer in answers} == {503}
    detail = answers[0].json()["detail"]
    assert "the service's store can't be reached" in detail
    assert "load" not in detail
    lines = [record.getMessage() for record in caplog.records if record.name == "pulse_server.transport.problems"]
    assert len(lines) == 1
    assert "connection refused" in lines[0]
