"""A bucket that does not answer is asked again while the client still waits."""

from __future__ import annotations

import pytest

from pulse_server import create_app
from pulse_server.settings import Settings
from tests.support.misbehaving_s3 import Request, misbehaving
from tests.unit.server.calling import calling


def test_a_request_that_the_bucket_leaves_without_an_answer_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    asked: list[str] = []

    def answer(request: Request) -> None:
        if "/snapshots/000000000003" in request.path:
            asked.append(request.path)
            if len(asked) == 1:
                request.hold()
                return
        request.error(404, "NoSuchKey")

    with misbehaving(answer) as server:
        root = f"s3://bucket?endpoint_url={server.url}&addressing_style=path"
        settings = Settings.read(root=root, insecure_open=True, store_answer_s=1)
        with calling(create_app(settings)) as call:
            assert (
                call("GET", "/v1/runs/math/snapshots/2").status == 404
            )  # the client below is made, which takes a while
            assert call("GET", "/v1/runs/math/snapshots/3").status == 404
    assert len(asked) == 2
