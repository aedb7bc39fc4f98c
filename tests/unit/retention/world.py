"""A run in a small store with a clock of its own; with writers, readers' leases and a collector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from pulse_registry.format import keys
from pulse_registry.log import CommitDraft, LogReader, LogWriter, RunState
from pulse_registry.retention import Collector, GcResult, RetentionPolicy
from pulse_registry.store import Store
from pulse_schemas import KeyframeRef, Lease, PatchRef
from tests.support.records import LAYOUT, RUN, DictStore, ids, keyframe, patch, write_id

HOUR, DAY = 3600.0, 86_400.0
SOON = RetentionPolicy(keep_last=2, keep_seconds=0, grace_seconds=HOUR, orphan_seconds=DAY)


class World:
    """A store whose clock goes on when it is told to, and writers whose own clocks are off by ``skew`` seconds."""

    def __init__(self, skew: float = 0.0) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self.skew = timedelta(seconds=skew)
        self.store = DictStore(lambda: self.now)
        self.numbers = itertools.count(1)
        self.trainer = self.writer()
        self.trainer.begin()

    def writer(self, store: Store | None = None) -> LogWriter:
        store = store or self.store
        new_id = ids(next(self.numbers))
        return LogWriter(store, RUN, LogReader(store, RUN), self.skewed, new_id, "test", snapshot_every=4)

    def copy(self) -> World:
        """A world with the same store at the same time; its trainer has no term."""
        other = World.__new__(World)
        other.now, other.skew, other.numbers = self.now, self.skew, itertools.count(10**6)
        other.store = DictStore(lambda: other.now)
        other.store.objects, other.store.times = self.store.objects.copy(), self.store.times.copy()
        other.trainer = other.writer()
        return other

    def skewed(self) -> datetime:
        return self.now + self.skew

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def state(self) -> RunState:
        return LogReader(self.store, RUN).refresh()

    def put(self, *refs: PatchRef | KeyframeRef) -> None:
        for ref in refs:
            for item in (ref.object,) if isinstance(ref, PatchRef) else (ref.index, *ref.shards):
                self.store.put(item.key, bytes(item.size))

    def draft(self, version: int, *, whole: bool = False, size: int = 100, tag: int = 0) -> CommitDraft:
        step = patch(version - 1, version, size=size, tag=tag) if version else None
        frame = keyframe(version, tag=tag) if whole or not version else None
        return CommitDraft(
            version=version,
            step=version,
            layout=LAYOUT,
            digest=write_id(version),
            changed=1,
            cells=100,
            write_id=write_id(10**20 + next(self.numbers)),
            patch=step,
            keyframe=frame,
        )

    def commit(self, *, whole: bool = False, size: int = 100) -> None:
        draft = self.draft(len(self.state.versions), whole=whole, size=size)
        self.put(*(ref for ref in (draft.patch, draft.keyframe) if ref is not None))
        self.trainer.commit(draft)

    def commits(self, count: int, *, whole_every: int = 4) -> World:
        for _ in range(count):
            self.commit(whole=len(self.state.versions) % whole_every == 0)
        return self

    def attach(self, patches: Sequence[PatchRef] = (), keyframes: Sequence[KeyframeRef] = ()) -> None:
        self.put(*patches, *keyframes)
        self.writer().attach(patches, keyframes)

    def lease(self, reader: str, version: int, seconds: int = 3600) -> None:
        lease = Lease(run=RUN, reader=reader, version=version, seconds=seconds)
        self.store.put(keys.lease_key(reader), lease.seal())

    def collect(
        self,
        policy: RetentionPolicy = SOON,
        *,
        dry_run: bool = False,
        through: Callable[[DictStore], Store] | None = None,
    ) -> GcResult:
        store = self.store if through is None else through(self.store)
        reader = LogReader(store, RUN)
        writer = LogWriter(store, RUN, reader, self.skewed, ids(next(self.numbers)), "gc", snapshot_every=4)
        return Collector(store, RUN, reader, writer, ids(next(self.numbers))).collect(policy, dry_run=dry_run)

    def objects(self) -> set[str]:
        """The keys of all objects in the store."""
        return {key for key in self.store.objects if key.startswith(keys.OBJECTS)}

    def versions(self) -> list[int]:
        """The versions that can be asked for."""
        state = self.state
        return [entry.version for entry in state.versions if not state.is_retired(entry.version)]
