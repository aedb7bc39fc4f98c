"""Services for the client's tests: over memory, files, and real S3 servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.sampling import slow_but
from tests.support.service import Service, serving

SWEPT = [pytest.param(root, marks=pytest.mark.sweep) for root in ("memory", "moto")]
ROOTS = slow_but(["file"], ["file", "seaweedfs", *SWEPT])
SMALL_PIECES = {"PULSE_SINGLE_PUT_BYTES": "4096", "PULSE_PART_BYTES": str(5 << 20)}
"""So that a keyframe of a few MB goes in parts, and a patch in one piece."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[dict[str, Service]]:
    """Services that the tests of a file share, by kind of root, each started when it is first asked for.

    They look for news all the time, and so end with these tests, not with the last of all.
    """
    with ExitStack() as stack:

        class Started(dict[str, Service]):
            def __missing__(self, kind: str) -> Service:
                folder = tmp_path_factory.mktemp(kind)
                environment = dict(SMALL_PIECES)
                if kind == "memory":
                    root = "memory://runs"
                elif kind == "file":
                    root = str(folder / "root")
                else:
                    bucket = request.getfixturevalue(f"{kind}_bucket")
                    root = bucket.url(f"root-{uuid.uuid4().hex[:12]}")
                    environment |= bucket.server.environment
                self[kind] = stack.enter_context(serving(root, folder, environment))
                return self[kind]

        yield Started()


@pytest.fixture(params=ROOTS)
def service(request: pytest.FixtureRequest, services: dict[str, Service]) -> Service:
    """A service over each kind of root in turn, shared with other tests."""
    return services[request.param]


@pytest.fixture
def file_service(services: dict[str, Service]) -> Service:
    """The service over files, shared with other tests."""
    return services["file"]


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    """A service over files that a test may stop."""
    with serving(str(tmp_path / "root"), tmp_path) as service:
        yield service


@pytest.fixture
def run() -> str:
    """A run's name that no other test has."""
    return f"run-{uuid.uuid4().hex[:12]}"
