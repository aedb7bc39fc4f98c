"""The comparison of S3 clients runs, on an object too small for its times to mean anything."""

from __future__ import annotations

import pytest

from benchmarks.s3_clients import measure
from tests.support.servers import S3Bucket

# s3fs and its event loop leave sockets to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_every_client_gets_and_puts_the_same_bytes_and_has_one_winner(
    moto_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto_bucket.server.environment.items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    found = measure(moto_bucket, size=20 << 20, rounds=1, races=1, say=said.append)
    assert set(found["clients"]) == {"S3Store", "boto3", "boto3 transfer", "obstore", "s3fs"}
    for row in found["clients"].values():
        assert set(row) == {f"{verb}_{what}" for verb in ("get", "put") for what in _FIGURES}
        assert all(value > 0 for value in row.values())
    assert found["winners"]["S3Store"] == [1]
    assert set(found["winners"]) == {"S3Store", "boto3", "obstore", "s3fs"}
    assert len(said) == 2


_FIGURES = ("mb_per_s", "best_mb_per_s", "cpu_s_per_gb")
