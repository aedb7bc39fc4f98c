"""``python -m benchmarks.signatures``: what it costs to sign, to verify, and to read a log whose records are verified.

Times are of the processor, but for what waits for the disk; each is the least of several, since other work on the
machine only ever adds to it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash
from pulse_registry.signing import PinGuard, SigningKey, Trust
from pulse_registry.signing.last_seen import Memory
from pulse_registry.store import MemoryStore
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    EpochRecord,
    KeyframeRef,
    ObjectRef,
    PatchRef,
    Record,
    open_sealed,
    unseal_record,
)

TITLE = "Signatures"
LIMIT_US = 1_000.0
RUN, _WHEN, _HASH = "signed", "2026-01-01T00:00:00.000Z", "a" * 64
RECORDS = 400
_ATTACHED = 100
app = typer.Typer(add_completion=False)


def epoch() -> EpochRecord:
    """Return the record that begins a run."""
    return EpochRecord(run=RUN, seq=0, epoch=1, write_id="0" * 32, previous=None, created_at=_WHEN, writer="host:1")


def commit(seq: int, previous: str) -> CommitRecord:
    """Return the record of version ``seq - 1``, as a chain of patches has them."""
    version = seq - 1
    return CommitRecord(
        **_shared(seq, previous),
        version=version,
        step=version,
        parent=version - 1 if version else None,
        layout=_HASH,
        patch=_patch(version - 1, version) if version else None,
        keyframe=None if version else _keyframe(),
        digest="b" * 32,
        changed=80_000_000,
        cells=7_600_000_000,
        metadata={"reward": 0.5, "learning_rate": 1e-6},
    )


def attach(previous: str) -> AttachRecord:
    """Return a long record."""
    return AttachRecord(**_shared(3, previous), patches=tuple(_patch(0, 1 + n, f"{n:032x}") for n in range(_ATTACHED)))


def measure(folder: Path, repeats: int, records: int = RECORDS) -> list[Row]:
    """Measure single records, and a log of many."""
    key = SigningKey.generate()
    rows = []
    single: dict[str, Record] = {"commit": commit(2, _HASH), f"attach of {_ATTACHED} patches": attach(_HASH)}
    for name, record in single.items():
        rows += _one(name, record, key, repeats)
    return rows + _log(key, folder, repeats, records)


def _one(name: str, record: Record, key: SigningKey, repeats: int) -> list[Row]:
    body, sealed, signed = record.canonical(), record.seal(), record.seal(key)
    guard = PinGuard(Trust([key.public]), "memory://", RUN)
    sign = least(lambda: key.sign(body), repeats)
    verify = least(lambda: guard.check_signature(record, signed), repeats)
    read = least(lambda: unseal_record(sealed), repeats)
    size = f"{name} ({len(open_sealed(signed).body):,} bytes)"
    return [
        Row(f"{name}.sign", f"sign a record: {size}", sign * 1e6, "us"),
        Row(f"{name}.verify", f"verify a record: {size}", verify * 1e6, "us", "at most", LIMIT_US),
        Row(f"{name}.ratio", f"verify it, against unsealing and parsing it: {name}", verify / read, "x"),
    ]


def _log(key: SigningKey, folder: Path, repeats: int, records: int) -> list[Row]:
    store = MemoryStore(folder.name)
    sealed = epoch().seal(key)
    for seq in range(records):
        store.put(keys.record_key(seq), sealed)
        sealed = commit(seq + 1, sealed_hash(sealed)).seal(key)

    def read(pinned: bool) -> None:
        guard = PinGuard(Trust([key.public]), store.url, RUN) if pinned else None
        if LogReader(store, RUN, guard).refresh().seq != records - 1:
            raise RuntimeError("the log was not read to its end")

    believed, verified = least(lambda: read(False), repeats), least(lambda: read(True), repeats)
    memory, newest = Memory(folder, store.url, RUN), store.get(keys.record_key(records - 1))
    turns = iter(range(1, 10**9))
    kept = least(lambda: memory.advance(next(turns), newest), repeats, time.perf_counter)
    found = least(memory.newest, repeats, time.perf_counter)
    what = f"read a log of {records} records"
    return [
        Row("log.believed", f"{what}, a record", believed / records * 1e6, "us"),
        Row("log.verified", f"{what} and verify them, a record", verified / records * 1e6, "us"),
        Row("log.ratio", f"{what}: with verification against without", verified / believed, "x"),
        Row("seen.found", "read what was seen last, once a look at the log", found * 1e6, "us"),
        Row("seen.kept", "keep what is the newest now, synced, once a look that found something", kept * 1e6, "us"),
    ]


def least(act: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Return the least time of a call, after one that does not count."""
    act()
    found = []
    for _ in range(repeats):
        began = clock()
        act()
        found.append(clock() - began)
    return min(found)


def _shared(seq: int, previous: str) -> dict[str, Any]:
    return {
        "run": RUN,
        "seq": seq,
        "epoch": 1,
        "write_id": f"{seq:032x}",
        "previous": previous,
        "created_at": _WHEN,
    }


def _patch(base: int, target: int, write_id: str = "0" * 32) -> PatchRef:
    item = ObjectRef(key=keys.patch_key(base, target, write_id), size=80_000_000, blake3=_HASH)
    return PatchRef(
        base=base, target=target, coder="gap", changed=80_000_000, object=item, head_size=80_000, head_blake3=_HASH
    )


def _keyframe() -> KeyframeRef:
    def ref(name: str) -> ObjectRef:
        return ObjectRef(key=keys.keyframe_key(0, "0" * 32, name), size=10_000, blake3=_HASH)

    return KeyframeRef(version=0, index=ref("model.safetensors.index.json"), shards=(ref("model.safetensors"),))


@app.command()
def signatures(
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 25,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "signatures.json",
) -> None:
    """Measure signing and verifying; print them, and write a result file."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), repeats)
    console.print(rows_table(TITLE, found))
    document = {
        "kind": "signatures",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {"repeats": repeats, "records": RECORDS},
        "rows": [row.document() for row in found],
    }
    write_result(out, document)
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
