"""How fast a run is copied through a far link: ``pulse mirror`` beside boto3, each in a process of its own.

boto3 copies all keys of the run as its users do: its transfer manager fetches an object in parallel parts into a file,
and stores that in parallel parts; some objects at a time, so that one is stored while the next is fetched. Link and
servers are the same; the copies go to buckets of their own, and nothing lies between them and their store.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal, get_args

from tests.support.servers import S3Bucket

Way = Literal["pulse mirror", "boto3"]
WAYS: tuple[Way, ...] = get_args(Way)
OBJECTS_AT_ONCE = 4
"""Of boto3's copy; each takes the transfer manager's own ten requests at a time."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What a copy took: seconds without the start of its process, and the peak of its process's memory."""

    seconds: float
    peak_bytes: int


def copy_run(way: Way, source: S3Bucket, destination: S3Bucket, prefix: str) -> Copy:
    """Copy all runs below a prefix to another bucket."""
    command = [sys.executable, "-m", "benchmarks.mirror.copies", way, prefix]
    command += [source.server.endpoint, source.name, destination.server.endpoint, destination.name]
    done = subprocess.run(
        command,
        env=os.environ | dict(source.server.environment),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{way} failed: {done.stderr}")
    return Copy(**json.loads(done.stdout))


def contents(bucket: S3Bucket, prefix: str) -> Mapping[str, tuple[int, str]]:
    """Return the size and the hash of all bytes below a prefix, by key; parts of uploads hide none."""
    from blake3 import blake3

    client, found = bucket.server.client(), {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", ()):
            hasher = blake3()
            for chunk in client.get_object(Bucket=bucket.name, Key=entry["Key"])["Body"].iter_chunks(1 << 20):
                hasher.update(chunk)
            found[entry["Key"]] = (entry["Size"], hasher.hexdigest())
    return found


def _pulse_mirror(prefix: str, source: S3Bucket, destination: S3Bucket) -> float:
    from pulse_registry.cli import main

    began = time.perf_counter()
    with redirect_stdout(StringIO()) as out:
        code = main(["mirror", source.url(prefix), destination.url(prefix), "--json"])
    seconds = time.perf_counter() - began
    if code:
        raise RuntimeError(f"pulse mirror ended with {code}: {out.getvalue()}")
    return seconds


def _boto3(prefix: str, source: S3Bucket, destination: S3Bucket) -> float:
    sender, receiver = source.server.client(), destination.server.client()

    def copy(key: str) -> None:
        with tempfile.NamedTemporaryFile() as file:
            sender.download_file(source.name, key, file.name)
            receiver.upload_file(file.name, destination.name, key)

    began = time.perf_counter()
    pages = sender.get_paginator("list_objects_v2").paginate(Bucket=source.name, Prefix=f"{prefix}/")
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    with ThreadPoolExecutor(OBJECTS_AT_ONCE) as pool:
        list(pool.map(copy, keys))
    return time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Copy all runs below a prefix, and print what it took.")
    parser.add_argument("way", choices=WAYS)
    for name in ("prefix", "source", "source_bucket", "destination", "destination_bucket"):
        parser.add_argument(name)
    given = parser.parse_args(arguments)
    buckets = [
        _bucket(given.source, given.source_bucket),
        _bucket(given.destination, given.destination_bucket),
    ]
    ways: dict[Way, Any] = {"pulse mirror": _pulse_mirror, "boto3": _boto3}
    seconds = ways[given.way](given.prefix, *buckets)
    print(json.dumps({"seconds": seconds, "peak_bytes": _peak_bytes()}))


def _peak_bytes() -> int:
    """Return the most memory that this process had; `getrusage` would tell that of the one which started it."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


def _bucket(endpoint: str, name: str) -> S3Bucket:
    from tests.support.servers import S3Server

    return S3Bucket(S3Server("seaweedfs", endpoint), name)


if __name__ == "__main__":
    main()
