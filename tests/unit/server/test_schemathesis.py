"""Whatever schemathesis makes of the API's description, valid or not, is answered as it says, and with no 5xx."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from pulse_registry import Registry
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_server import create_app
from pulse_server.settings import Settings
from tests.support.operations import api
from tests.unit.server.calling import Call, calling
from tests.unit.server.edges import bearer, one_token

RUN = "math-7b"
TOKEN, TOKENS = one_token("admin")
SHORT, LONG = 12, 600
API: dict[str, Any] = api()
SCHEMA = schemathesis.openapi.from_dict(copy.deepcopy(API))
OPERATIONS = [f"{method.upper()} {path}" for path, methods in API["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    store = MemoryStore(uuid.uuid4().hex)
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry:
        weights = {"w": np.zeros((4, 25), np.float32)}
        registry.push(0, weights)
        weights["w"][0] = 1.0
        registry.push(1, weights)
    settings = Settings.read(root="memory://unused", tokens=TOKENS, wait_max_s=0.01, rate_per_s=0)
    with calling(create_app(settings, store)) as call:
        yield call


def request_of(case: Any, run: bool) -> requests.PreparedRequest:
    """Return what a case sends; ``run`` sends it to a run that is there."""
    if run and "run" in (case.path_parameters or {}):
        case.path_parameters["run"] = RUN
    arguments = case.as_transport_kwargs(base_url="http://127.0.0.1")
    allowed = {
        name: arguments[name] for name in ("method", "url", "params", "data", "json", "cookies") if name in arguments
    }
    return requests.Request(**allowed, headers=dict(arguments.get("headers") or {})).prepare()


def check(name: str, examples: int, call: Call) -> None:
    method, path = name.split(" ", 1)
    operation = SCHEMA[path][method]
    told = {int(status) for status in API["paths"][path][method.lower()]["responses"] if status.isdigit()}
    strategies = [
        operation.as_strategy(generation_mode=mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    ]

    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.one_of(strategies), st.booleans())
    def ask(case: Any, run: bool) -> None:
        request = request_of(case, run)
        body = request.body if isinstance(request.body, bytes) else (request.body or "").encode()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "authorization"}
        answer = call(method, request.path_url, headers=headers | bearer(TOKEN), body=body)
        assert answer.status in told | {404, 405}, (
            f"{method} {request.path_url} {body!r}: {answer.status} {answer.body!r}"
        )
        assert answer.status < 500

    ask()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_answers_whatever_it_is_sent(name: str, call: Call) -> None:
    check(name, SHORT, call)


@pytest.mark.sweep
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_answers_whatever_it_is_sent_for_long(name: str, call: Call) -> None:
    check(name, LONG, call)
