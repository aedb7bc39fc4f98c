"""Snapshots of a log as it grows: bytes that are written over its life, and what it takes to open it."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.growth.curve import Curve, curve_of
from pulse_registry.format import keys
from pulse_registry.log import LogReader, RunState, Snapshotter, sealed_hash
from pulse_registry.log.snapshot_writer import SnapshotWriter
from pulse_registry.log.tables import Tables
from pulse_registry.store import Body, FileStore, Store, WrapperStore, body_views
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    Head,
    KeyframeRef,
    ObjectRef,
    PatchRef,
    Record,
    RetireRecord,
    VersionEntry,
)

RUN = "grown"
KEPT = 2_000
"""Versions that the collector leaves, where it runs."""
_WHEN, _LAYOUT = "2026-01-01T00:00:00.000Z", "a" * 64
_LADDER = 4


class PutBytes(WrapperStore):
    """Counts the bytes of what is put."""

    def __init__(self, store: Store) -> None:
        """Wrap a store."""
        super().__init__(store)
        self.nbytes = 0

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object: see Store.put."""
        content = b"".join(body_views(data))
        self.nbytes += len(content)
        super().put(key, content, if_absent=if_absent)


def _spans(version: int) -> list[int]:
    """Return how many versions the patches into one reach back: 1, and merged ones 4, 16, ..."""
    return [span for span in (_LADDER**n for n in range(10)) if version and version % span == 0]


class Growing:
    """Makes the records of a run: a patch a version, merged ones of 4, 16, ...; old versions are retired if asked."""

    def __init__(self, reader: LogReader, *, collect: bool = False, metadata: int = 0, seed: int = 0) -> None:
        """Begin with what a reader has; it folds each record, which is stored nowhere."""
        self._reader = reader
        self._random = random.Random(seed)
        self._collect, self._metadata = collect, metadata

    @property
    def state(self) -> RunState:
        """The state that the next record follows."""
        return self._reader.seen or RunState(RUN)

    def records(self, versions: int) -> Iterator[tuple[Record, bytes]]:
        """Yield the records that follow, up to so many versions, and their sealed bytes, each folded."""
        if self.state.seq < 0:
            yield self._folded(EpochRecord(**self.shared(epoch=1), writer="benchmark"))
        while (version := len(self.state.versions)) < versions:
            yield self._folded(self._commit(version))
            bases = [version - span for span in _spans(version)[1:] if not self.state.is_retired(version - span)]
            if bases:
                merged = tuple(self.patch(base, version) for base in bases)
                yield self._folded(AttachRecord(**self.shared(), patches=merged))
            if self._collect and version % KEPT == 0 and version > KEPT:
                yield from map(self._folded, self._collected(version - KEPT))

    def patch(self, base: int, target: int) -> PatchRef:
        """Return a patch whose key and hashes are like no other's."""
        return PatchRef(
            base=base,
            target=target,
            coder="gap",
            changed=self._random.randrange(10**9),
            object=self._object(keys.patch_key(base, target, self._hex(32))),
            head_size=1000,
            head_blake3=self._hex(64),
        )

    def entry(self, version: int) -> VersionEntry:
        """Return a version whose digest is like no other's."""
        return VersionEntry(
            version=version,
            seq=version + 1,
            step=10 * version,
            layout=_LAYOUT,
            digest=self._hex(32),
            changed=self._random.randrange(10**9),
            cells=10**9,
            created_at=_WHEN,
        )

    def keyframe(self, version: int) -> KeyframeRef:
        """Return a keyframe of one shard."""
        names = [keys.keyframe_key(version, self._hex(32), name) for name in ("index.json", "model.safetensors")]
        return KeyframeRef(version=version, index=self._object(names[0]), shards=(self._object(names[1]),))

    def _commit(self, version: int) -> CommitRecord:
        return CommitRecord(
            **self.shared(),
            version=version,
            step=10 * version,
            parent=version - 1 if version else None,
            layout=_LAYOUT,
            patch=self.patch(version - 1, version) if version else None,
            keyframe=None if version % 1000 else self.keyframe(version),
            digest=self._hex(32),
            changed=self._random.randrange(10**9),
            cells=10**9,
            metadata={"note": self._hex(self._metadata)} if self._metadata else {},
        )

    def _collected(self, until: int) -> Iterator[Record]:
        """Retire all versions before one, but for each hundredth, and forget them."""
        old = [entry.version for entry in self.state.versions[:until] if entry.version % 100]
        for at in range(0, len(old), 500):
            gone = old[at : at + 500]
            objects = {
                item.object.key
                for version in gone
                for item in (*self.state.patches_into(version), *self.state.patches_from(version))
            }
            yield RetireRecord(**self.shared(), versions=tuple(gone), keys=tuple(sorted(objects)))
        yield DeleteRecord(**self.shared(), until=self.state.seq)

    def _folded(self, record: Record) -> tuple[Record, bytes]:
        sealed = record.seal()
        self._reader.accept(sealed)
        return record, sealed

    def shared(self, **changes: Any) -> dict[str, Any]:
        """Return the fields that all records have; some may be other ones."""
        fields: dict[str, Any] = {
            "run": RUN,
            "seq": self.state.seq + 1,
            "epoch": self.state.epoch,
            "write_id": self._hex(32),
            "previous": self.state.last,
            "created_at": _WHEN,
        }
        return fields | changes

    def _object(self, key: str) -> ObjectRef:
        return ObjectRef(key=key, size=self._random.randrange(10**9), blake3=self._hex(64))

    def _hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"


def grown(
    store: Store, sizes: Sequence[int], *, collect: bool = False, metadata: int = 0
) -> Iterator[tuple[int, float]]:
    """Grow a run in a store, and yield at each size the bytes of its snapshots so far by those of its records."""
    counted = PutBytes(store)
    reader = LogReader(counted, RUN)
    snapshotter = Snapshotter(counted, reader)
    growing = Growing(reader, collect=collect, metadata=metadata)
    records = 0
    for versions in sizes:
        for record, sealed in growing.records(versions):
            records += len(sealed)
            snapshotter.appended(record)
        store.put(keys.record_key(record.seq), sealed)
        yield versions, counted.nbytes / records


def stored_at_once(store: Store, versions: int) -> None:
    """Store a snapshot of so many versions, as a run of releases before segments leaves it, and its last record."""
    growing = Growing(LogReader(store, RUN))
    tables = Tables()
    tables.versions.extend(map(growing.entry, range(versions)))
    spans = [(version - span, version) for version in range(1, versions) for span in _spans(version)]
    tables.patches.extend(growing.patch(base, target) for base, target in spans)
    tables.keyframes.extend(growing.keyframe(version) for version in range(0, versions, 1000))
    last = EpochRecord(**growing.shared(seq=versions, epoch=1, previous=_LAYOUT), writer="benchmark").seal()
    store.put(keys.record_key(versions), last)
    state = RunState.of(
        tables,
        run=RUN,
        seq=versions,
        last=sealed_hash(last),
        epoch=1,
        count=versions,
        tags={},
        retired_versions={},
        retired_keys={},
    )
    SnapshotWriter(store, RUN, None, lambda sealed: True).write(state)
    store.put(keys.HEAD, Head(seq=versions, snapshot=versions).seal())


def opening(url: str) -> tuple[float, float]:
    """Return what a process takes to open the run: milliseconds of processor time, and MB of memory that it keeps."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth.snapshots", url], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    return found["ms"], found["mb"]


def _open(folder: str) -> None:
    """Print what `opening` returns; run in a fresh process."""
    store = FileStore(folder)
    LogReader(FileStore(f"{folder}/nothing"), RUN).refresh()  # all code is loaded
    gc.collect()
    before = _resident()
    began = time.process_time()
    reader = LogReader(store, RUN, None, ThreadPoolExecutor)
    state = reader.refresh()
    spent = time.process_time() - began
    gc.collect()
    sys.stdout.write(json.dumps({"ms": 1e3 * spent, "mb": (_resident() - before) / 1e6, "seq": state.seq}))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def curves(quick: bool) -> list[Curve]:
    """Return the curves of this section."""
    sizes = (50, 200, 500) if quick else (100, 1_000, 10_000, 100_000)
    found: list[Curve] = []
    with tempfile.TemporaryDirectory(prefix="pulse-growth-") as folder:
        plain = FileStore(f"{folder}/plain")
        for name, what, options, store in (
            ("plain", "", {}, plain),
            ("collected", ", old versions deleted", {"collect": True}, FileStore(f"{folder}/collected")),
            ("metadata", ", 1 KiB of metadata a version", {"metadata": 1024}, FileStore(f"{folder}/metadata")),
        ):
            costs = grown(store, sizes if store is plain else sizes[:-1], **options)
            label = f"bytes of snapshots over a run's life by its records'{what}"
            found.append(curve_of(f"snapshots.bytes.{name}", label, "versions", "x", costs, limit=4))
        large = sizes[-1] if quick else 1_000_000
        took: list[tuple[int, float]] = []
        kept: list[tuple[int, float]] = []
        for versions in sorted({*sizes, large}):
            at = f"{folder}/open-{versions}"
            stored_at_once(FileStore(at), versions)
            ms, mb = opening(at)
            took.append((versions, ms))
            kept.append((versions, mb))
        opened, held = "open a run, its ladder complete", "memory that an open run keeps"
        found += [
            Curve("snapshots.open", opened, "versions", "ms", tuple(took[: len(sizes)]), limit=500),
            Curve("snapshots.memory", held, "versions", "MB", tuple(kept[: len(sizes)]), limit=60),
        ]
        if large not in sizes:
            found += [
                Curve("snapshots.open.vast", opened, "versions", "ms", tuple(took[-1:])),
                Curve("snapshots.memory.vast", held, "versions", "MB", tuple(kept[-1:])),
            ]
    return found


if __name__ == "__main__":
    _open(sys.argv[1])
