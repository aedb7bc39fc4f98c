"""Small valid records and objects for tests of the log."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pulse_registry.format import keys
from pulse_registry.log import CommitDraft, LogReader, LogWriter, RunState, sealed_hash
from pulse_registry.log.fold import advance
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store, body_views, check_key, check_prefix
from pulse_registry.store.checks import already_exists, check_range, check_whole, not_found, too_short
from pulse_schemas import (
    AttachRecord,
    Coder,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    Home,
    KeyframeRef,
    MoveRecord,
    ObjectRef,
    PatchRef,
    Record,
    RetireRecord,
    TagRecord,
)

RUN = "math"
LAYOUT, OTHER_LAYOUT = "a" * 64, "b" * 64
WHEN = "2026-01-02T03:04:05.678Z"


class DictStore(Store):
    """A store in one dict: the smallest thing that keeps the contract.

    Stateful tests make thousands of stores, where MemoryStore, whose instances share one name space that is
    searched on every miss, would take minutes.
    """

    url = "dict://"

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, datetime] = {}
        self._now = now
        self._lock = threading.Lock()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        data = self._found(key)
        if byte_range is None:
            check_whole(key, self.url, len(data), max_bytes)
            return data
        check_range(key, byte_range)
        if byte_range[1] > len(data):
            raise too_short(key, self.url, byte_range, len(data))
        return data[slice(*byte_range)]

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        check_key(key)
        content = b"".join(body_views(data))
        with self._lock:
            if if_absent and key in self.objects:
                raise already_exists(key, self.url)
            self.objects[key], self.times[key] = content, self._now()

    def modified(self, key: str) -> datetime:
        self._found(key)
        return self.times[key]

    def size(self, key: str) -> int:
        return len(self._found(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        check_prefix(prefix)
        with self._lock:
            return iter(sorted(key for key in self.objects if key.startswith(prefix) and key > (after or "")))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self.objects.pop(key, None)

    def _found(self, key: str) -> bytes:
        check_key(key)
        try:
            return self.objects[key]
        except KeyError:
            raise not_found(key, self.url) from None


def new_store() -> DictStore:
    """Return an empty store."""
    return DictStore()


def write_id(number: int) -> str:
    return f"{number:032x}"


def ids(prefix: int = 0) -> Callable[[], str]:
    counter = itertools.count(prefix * 10**9 + 1)
    return lambda: write_id(next(counter))


def clock() -> Callable[[], datetime]:
    start, ticks = datetime(2026, 1, 2, tzinfo=UTC), itertools.count()
    return lambda: start + timedelta(milliseconds=next(ticks))


def patch(base: int, target: int, *, size: int = 100, coder: Coder = "gap", tag: int = 0) -> PatchRef:
    key = keys.patch_key(base, target, write_id(tag))
    return PatchRef(
        base=base,
        target=target,
        coder=coder,
        changed=1,
        object=ObjectRef(key=key, size=size, blake3="c" * 64),
        head_size=min(size, 10),
        head_blake3="d" * 64,
    )


def keyframe(version: int, *, size: int = 1000, shards: int = 1, tag: int = 0) -> KeyframeRef:
    def ref(name: str, nbytes: int) -> ObjectRef:
        return ObjectRef(key=keys.keyframe_key(version, write_id(tag), name), size=nbytes, blake3="e" * 64)

    names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    return KeyframeRef(
        version=version,
        index=ref("model.safetensors.index.json", 10),
        shards=tuple(ref(name, size) for name in names),
    )


class Script:
    """Builds a chain of valid records, each to follow those before it."""

    def __init__(self, run: str = RUN) -> None:
        self.run = run
        self.state = RunState(run)
        self.records: list[Record] = []

    def shared(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "run": self.run,
            "seq": self.state.seq + 1,
            "epoch": self.state.epoch,
            "write_id": write_id(1000 + self.state.seq),
            "previous": self.state.last,
            "created_at": WHEN,
        }
        return fields | changes

    def add(self, record: Record) -> Script:
        self.records.append(record)
        state = self.state.copy()  # who has the old one goes on with it
        advance(state, record, sealed_hash(record.seal()))
        self.state = state
        return self

    def epoch(self, **changes: Any) -> Script:
        return self.add(self.make_epoch(**changes))

    def commit(self, **changes: Any) -> Script:
        return self.add(self.make_commit(**changes))

    def attach(self, **changes: Any) -> Script:
        return self.add(self.make_attach(**changes))

    def retire(self, **changes: Any) -> Script:
        return self.add(self.make_retire(**changes))

    def delete(self, **changes: Any) -> Script:
        return self.add(self.make_delete(**changes))

    def tag(self, name: str, version: int | None) -> Script:
        return self.add(self.make_tag(name=name, version=version))

    def make_epoch(self, **changes: Any) -> EpochRecord:
        return EpochRecord(**(self.shared(epoch=self.state.epoch + 1, writer="test") | changes))

    def make_commit(self, **changes: Any) -> CommitRecord:
        number = changes.get("version", len(self.state.versions))
        latest = self.state.latest
        layout = changes.get("layout", latest.layout if latest else LAYOUT)
        first = latest is None or layout != latest.layout
        fields = self.shared(
            version=number,
            step=10 * number,
            parent=number - 1 if number else None,
            layout=layout,
            patch=None if first or not number else patch(number - 1, number),
            keyframe=keyframe(number) if first or not number else None,
            digest="f" * 32,
            changed=1,
            cells=100,
        )
        return CommitRecord(**(fields | changes))

    def make_attach(self, **changes: Any) -> AttachRecord:
        return AttachRecord(**self.shared(**changes))

    def make_retire(self, **changes: Any) -> RetireRecord:
        return RetireRecord(**self.shared(**changes))

    def make_delete(self, **changes: Any) -> DeleteRecord:
        return DeleteRecord(**(self.shared(until=self.state.seq) | changes))

    def make_tag(self, **changes: Any) -> TagRecord:
        return TagRecord(**self.shared(**changes))

    def move(self, to: str = "s3://bucket/eu") -> Script:
        return self.add(self.make_move(to=to))

    def make_move(self, **changes: Any) -> MoveRecord:
        return MoveRecord(**(self.shared(epoch=self.state.epoch + 1, to="s3://bucket/eu") | changes))

    def store_in(self, store: Store) -> Store:
        """Store the records, at the root where the run lives."""
        if self.state.home is not None:
            store.put(keys.HOME, Home(run=self.run, move=self.state.home.move).seal())
        for record in self.records:
            store.put(keys.record_key(record.seq), record.seal(), if_absent=True)
        return store


def chain(versions: int) -> Script:
    """Return a script with one epoch and ``versions`` commits."""
    script = Script().epoch()
    for number in range(versions):
        script.records.append(script.make_commit(version=number))
        record = script.records[-1]
        advance(script.state, record, sealed_hash(record.seal()))
    return script


def every_kind(run: str = RUN, *, moved: bool = True) -> Script:
    """Return a log with every kind of record in it; a new kind goes before the last commits, which attacks change.

    With ``moved`` false there is no move: then its state is one that earlier releases can read.
    """
    made = Script(run).epoch().commit().commit().commit().commit()
    made.attach(patches=(patch(0, 2, tag=7),), keyframes=(keyframe(2, shards=2, tag=8),))
    made.tag("best", 2).tag("old", 1).tag("old", None)
    orphan = keys.patch_key(2, 3, write_id(99))
    made.retire(versions=(0,), keys=(patch(0, 1).object.key, patch(0, 2, tag=7).object.key, orphan))
    made.delete(until=made.state.seq).epoch().retire(versions=(1,))
    if moved:
        made.move().epoch()
    return made.commit(layout="b" * 64).commit(metadata={"reward": 0.1, "nested": {"z": [1, None, True], "é": "é"}})


def writer(store: Store, number: int = 1, *, snapshot_every: int = 64) -> LogWriter:
    reader = LogReader(store, RUN)
    return LogWriter(store, RUN, reader, clock(), ids(number), f"w{number}", snapshot_every=snapshot_every)


APPENDS: dict[str, Callable[[LogWriter], object]] = {
    "epoch": lambda term: term.begin(),
    "attach": lambda term: term.attach(patches=[patch(0, 1, tag=9)]),
    "retire": lambda term: term.retire(versions=[0]),
    "delete": lambda term: term.deleted(0),
    "tag": lambda term: term.tag("best", 1),
    "move": lambda term: term.move("s3://bucket/eu", write_id(77)),
}
"""Appends one record of a kind to a run of two versions or more. No commit is among them: it needs a term first."""


def draft(version: int, tag: int = 0, *, step: int | None = None) -> CommitDraft:
    """Return a version to commit; drafts of one version differ by tag."""
    return CommitDraft(
        version=version,
        step=version if step is None else step,
        layout=LAYOUT,
        digest=write_id(tag),
        changed=1,
        cells=100,
        write_id=write_id(10**15 + version * 1000 + tag),
        patch=patch(version - 1, version, tag=10**15 + tag) if version else None,
        keyframe=None if version else keyframe(0, tag=10**15 + tag),
    )
