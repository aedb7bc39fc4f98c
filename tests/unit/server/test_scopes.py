"""Every operation of the API opens to those tokens, and to no others, that its declared scope says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from pulse_registry import Registry
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_server import create_app
from pulse_server.settings import Settings
from pulse_server.tokens import TokenSet, new_token
from tests.support.operations import api
from tests.unit.server.calling import Call, calling
from tests.unit.server.edges import NOW

RUN = "math-7b"
OPENS: dict[str, tuple[str, ...]] = {
    "none": ("wrong run", "read", "publish", "mirror", "admin"),
    "any": ("wrong run", "read", "publish", "mirror", "admin"),
    "read": ("read", "publish", "mirror", "admin"),
    "publish": ("publish", "admin"),
    "mirror": ("mirror", "admin"),
    "admin": ("admin",),
}
"""To whose tokens each need opens."""
HOLDERS = {
    "no token": None,
    "bad": None,
    "expired": ("admin", "*"),
    "wrong run": ("admin", "other-*"),
    "read": ("read", "math-*"),
    "publish": ("publish", "math-*"),
    "mirror": ("mirror", "math-*"),
    "admin": ("admin", "*"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """An operation with an example of each thing that it takes."""

    method: str
    path: str
    target: str
    needs: str
    body: bytes

    @property
    def of_a_run(self) -> bool:
        return "{run}" in self.path


def cases() -> Iterator[Case]:
    """Make a case of every operation that the API's own description has."""
    for path, methods in api()["paths"].items():
        for method, operation in methods.items():
            target, queries = path, []
            for parameter in operation.get("parameters", ()):
                example = parameter.get("example", parameter["schema"].get("example"))
                if parameter["in"] == "path":
                    value = RUN if parameter["name"] == "run" else str(example)
                    target = target.replace(f"{{{parameter['name']}}}", value)
                elif parameter.get("required"):
                    queries.append(f"{parameter['name']}={example}")
            target += f"?{'&'.join(queries)}" if queries else ""
            yield Case(method.upper(), path, target, operation["x-pulse-scope"], body_of(operation))


def body_of(operation: dict[str, Any]) -> bytes:
    for content in operation.get("requestBody", {}).get("content", {}).values():
        example = content.get("example")
        return example.encode() if isinstance(example, str) else json.dumps(example or {}).encode()
    return b""


CASES = {f"{case.method} {case.path}": case for case in cases()}


@dataclass(frozen=True, slots=True)
class Service:
    call: Call
    tokens: dict[str, str | None]

    def headers(self, holder: str) -> dict[str, str]:
        token = self.tokens[holder]
        return {"content-type": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    store = MemoryStore(uuid.uuid4().hex)
    with Registry(store, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry:
        registry.push(0, {"w": np.zeros((4, 25), np.float32)})
    entries, tokens = [], dict[str, str | None](HOLDERS.fromkeys(HOLDERS))
    for holder, allowed in HOLDERS.items():
        if allowed is not None:
            expires_at = NOW - timedelta(days=365 * 20) if holder == "expired" else None
            tokens[holder], entry = new_token("x", allowed[0], (allowed[1],), now=NOW, expires_at=expires_at)
            entries.append(entry)
    tokens["bad"] = f"pulse_{entries[0].id}_{'A' * 43}"
    settings = Settings.read(root="memory://unused", tokens=TokenSet(tokens=tuple(entries)))
    with calling(create_app(settings, store)) as call:
        yield Service(call, tokens)


def refusal(case: Case, holder: str) -> int | None:
    """Return the status that must refuse a request, None where it must not be refused."""
    if case.needs == "none":
        return None
    if holder in ("no token", "bad", "expired"):
        return 401
    if holder == "wrong run":
        return 403 if case.of_a_run else None
    return None if holder in OPENS[case.needs] else 403


def test_every_kind_of_need_is_there() -> None:
    assert {case.needs for case in CASES.values()} == set(OPENS)


@pytest.mark.parametrize("name", CASES)
def test_an_operation_opens_to_the_tokens_that_its_scope_says(name: str, service: Service) -> None:
    case = CASES[name]
    for holder in HOLDERS:
        status = service.call(case.method, case.target, headers=service.headers(holder), body=case.body).status
        expected = refusal(case, holder)
        assert status == expected if expected else status not in (401, 403), f"{name} with {holder}: {status}"
        assert status < 500, f"{name} with {holder}: {status}"


def test_a_run_that_a_token_may_not_read_answers_the_same_whether_it_is_there_or_not(service: Service) -> None:
    def ask(run: str) -> tuple[int, bytes]:
        answer = service.call("GET", f"/v1/runs/{run}", headers=service.headers("wrong run"))
        return answer.status, answer.body.replace(run.encode(), b"")

    assert ask(RUN) == ask("math-8b")


def test_a_list_of_runs_has_those_that_the_token_may_read(service: Service) -> None:
    def names(holder: str) -> list[str]:
        answer = service.call("GET", "/v1/runs", headers=service.headers(holder))
        return [run["run"] for run in json.loads(answer.body)["runs"]]

    assert names("read") == [RUN]
    assert names("wrong run") == []
