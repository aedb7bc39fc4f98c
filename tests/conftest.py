"""Settings and servers that all tests share."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import uuid
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from pulse_kernels import get_backend
from pulse_registry.weights.backend import what_compiles
from tests.support import servers
from tests.support.servers import S3Bucket, S3Server

# A slow shared machine is no failure: the time a test may take is the run's limit, not hypothesis' deadline.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
hypothesis.settings.register_profile("sweep", deadline=None, print_blob=True, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where GPU kernels are tested: cpu (interpreted) or cuda")


def pytest_configure(config: pytest.Config) -> None:
    # Triton reads these when it is first imported, which a test of something else may do.
    if config.getoption("--device") == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # or 3.9 warns; the kernels have no floating point


def pytest_sessionstart(session: pytest.Session) -> None:
    # Once and not in each test process, where they are not on disk yet: `open` tells its users of that.
    if not hasattr(session.config, "workerinput") and what_compiles("auto") is not None:
        get_backend("numba").warm_up(2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what is imported and collected, which stays to the end: a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _draw_nothing()  # hypothesis looks at its first property for what refers to its generator: not among the frozen
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries that count their objects at the end would miss some
        if "triton.runtime.interpreter" in sys.modules:
            importlib.import_module("tests.support.interpreter").quicken()


@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(hypothesis.strategies.none())
def _draw_nothing(nothing: None) -> None:
    pass


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """SeaweedFS, one for each test process; it takes some three seconds to start."""
    with servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """moto, in this process."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[S3Server]:
    """`rclone serve s3`, whose conditional writes all win."""
    with servers.rclone() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs_bucket(seaweedfs: S3Server) -> S3Bucket:
    """One bucket of SeaweedFS for all tests: the first write to each new one takes it a quarter of a second."""
    return seaweedfs.new_bucket()


@pytest.fixture(scope="session")
def moto_bucket(moto: S3Server) -> S3Bucket:
    """One bucket of moto for all tests."""
    return moto.new_bucket()


@pytest.fixture(scope="session")
def rclone_bucket(rclone: S3Server) -> S3Bucket:
    """One bucket of rclone for all tests."""
    return rclone.new_bucket()


@pytest.fixture
def seaweedfs_url(seaweedfs_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty root on SeaweedFS, with the credentials in the environment."""
    return _empty_root(seaweedfs_bucket, monkeypatch)


@pytest.fixture
def moto_url(moto_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty root on moto, with the credentials in the environment."""
    return _empty_root(moto_bucket, monkeypatch)


@pytest.fixture
def rclone_url(rclone_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty root on rclone, with the credentials in the environment."""
    return _empty_root(rclone_bucket, monkeypatch)


def _empty_root(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in bucket.server.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.url(uuid.uuid4().hex[:12])  # short: the longest keys of the suites leave room for 14 bytes
