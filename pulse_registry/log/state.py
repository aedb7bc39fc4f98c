"""The state of a run: what its records say, folded one by one. No I/O.

The fold is the only place where a record gets its meaning; a snapshot is this state, written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import TypeVar

from blake3 import blake3

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.log.rules import is_void, keyframes_of, patches_of, violation
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    EpochRecord,
    KeyframeRef,
    PatchRef,
    Record,
    RetireRecord,
    Snapshot,
    VersionEntry,
)

T = TypeVar("T", PatchRef, KeyframeRef)


class Effect(StrEnum):
    """What a record did to a state."""

    APPLIED = "applied"
    VOID = "void"


class RunState:
    """The fold of a run's records up to ``seq``; empty (``seq == -1``) before record 0.

    Attributes:
        run: the run's name.
        seq: number of the last record folded, or -1.
        last: BLAKE3 (hex) of that record's sealed bytes, None when empty.
        epoch: the newest term that began, 0 before the first.
    """

    def __init__(self, run: str) -> None:
        """Make the state of a run without records."""
        self.run = run
        self.seq = -1
        self.last: str | None = None
        self.epoch = 0
        self._versions: list[VersionEntry] = []
        self._by_step: dict[int, int] = {}
        # Live objects in the order of the log, by key (a keyframe's: that of its index) and by version. The
        # values are never changed in place, so that shallow copies of the dicts are a copy of the state.
        self._patches: dict[str, PatchRef] = {}
        self._into: dict[int, tuple[PatchRef, ...]] = {}
        self._from: dict[int, tuple[PatchRef, ...]] = {}
        self._keyframes: dict[str, KeyframeRef] = {}
        self._keyframes_of: dict[int, tuple[KeyframeRef, ...]] = {}
        self._keyframe_file: dict[str, str] = {}
        self._retired_versions: set[int] = set()
        self._retired_keys: set[str] = set()

    @property
    def versions(self) -> Sequence[VersionEntry]:
        """Every committed version, retired ones too: ``versions[n]`` is version n."""
        return self._versions

    @property
    def latest(self) -> VersionEntry | None:
        """The newest version, None before the first commit."""
        return self._versions[-1] if self._versions else None

    @property
    def patches(self) -> Iterable[PatchRef]:
        """Every live patch, in the order of the log."""
        return self._patches.values()

    @property
    def keyframes(self) -> Iterable[KeyframeRef]:
        """Every live keyframe, in the order of the log."""
        return self._keyframes.values()

    @property
    def retired_versions(self) -> AbstractSet[int]:
        """Versions that readers must no longer ask for."""
        return self._retired_versions

    @property
    def retired_keys(self) -> AbstractSet[str]:
        """Keys of all objects that were ever retired."""
        return self._retired_keys

    def version(self, number: int) -> VersionEntry:
        """Return one version, retired or not.

        Raises:
            NotFound: it was never committed.
        """
        if not 0 <= number < len(self._versions):
            newest = f"the newest is {len(self._versions) - 1}" if self._versions else "it has none yet"
            raise NotFound(f"run {self.run!r} has no version {number}; {newest}")
        return self._versions[number]

    def by_step(self, step: int) -> VersionEntry | None:
        """Return the newest version that carries the trainer's label ``step``, or None."""
        number = self._by_step.get(step)
        return None if number is None else self._versions[number]

    def patches_into(self, version: int) -> tuple[PatchRef, ...]:
        """Return the live patches whose target is ``version``, in the order of the log."""
        return self._into.get(version, ())

    def patches_from(self, version: int) -> tuple[PatchRef, ...]:
        """Return the live patches whose base is ``version``, in the order of the log."""
        return self._from.get(version, ())

    def keyframe(self, version: int) -> KeyframeRef | None:
        """Return the newest live keyframe of ``version``, or None; always None for a retired version."""
        found = self._keyframes_of.get(version, ())
        return found[-1] if found and version not in self._retired_versions else None

    def is_retired(self, version: int) -> bool:
        """Tell whether readers must no longer ask for ``version``."""
        return version in self._retired_versions

    def is_live(self, key: str) -> bool:
        """Tell whether a record names the object ``key`` and none has retired it."""
        return key in self._patches or key in self._keyframe_file

    def copy(self) -> RunState:
        """Return a state that can be advanced without changing this one."""
        other = RunState(self.run)
        other.seq, other.last, other.epoch = self.seq, self.last, self.epoch
        other._versions = self._versions.copy()
        other._by_step = self._by_step.copy()
        other._patches = self._patches.copy()
        other._into = self._into.copy()
        other._from = self._from.copy()
        other._keyframes = self._keyframes.copy()
        other._keyframes_of = self._keyframes_of.copy()
        other._keyframe_file = self._keyframe_file.copy()
        other._retired_versions = self._retired_versions.copy()
        other._retired_keys = self._retired_keys.copy()
        return other

    def advance(self, record: Record, sealed_hash: str) -> Effect:
        """Fold the next record, in place, in time that depends on the record alone.

        Args:
            record: record ``seq + 1``.
            sealed_hash: BLAKE3 (hex) of the record's sealed bytes.

        Returns:
            VOID for a commit of a fenced writer, which takes its place in the log but counts for nothing.

        Raises:
            CorruptObject: the record breaks a rule of the log; the state is unchanged.
        """
        wrong = violation(self, record)
        if wrong is not None:
            raise CorruptObject(f"run {self.run!r}: record {record.seq} is not valid: {wrong}")
        void = is_void(self, record)
        if not void:
            match record:
                case EpochRecord():
                    self.epoch = record.epoch
                case CommitRecord():
                    self._add_version(_entry(record))
                    self._add_objects(patches_of(record), keyframes_of(record))
                case AttachRecord():
                    self._add_objects(patches_of(record), keyframes_of(record))
                case RetireRecord():
                    self._retire(record)
        self.seq, self.last = record.seq, sealed_hash
        return Effect.VOID if void else Effect.APPLIED

    def to_snapshot(self) -> Snapshot:
        """Return this state as a document; the same state gives the same bytes.

        Raises:
            NotFound: the run has no record yet, so that there is nothing to write down.
        """
        if self.last is None:
            raise NotFound(f"run {self.run!r} has no record yet")
        return Snapshot(
            run=self.run,
            seq=self.seq,
            last=self.last,
            epoch=self.epoch,
            versions=tuple(self._versions),
            patches=tuple(self._patches.values()),
            keyframes=tuple(self._keyframes.values()),
            retired_versions=tuple(sorted(self._retired_versions)),
            retired_keys=tuple(sorted(self._retired_keys)),
        )

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> RunState:
        """Return the state that ``to_snapshot`` wrote down.

        Raises:
            CorruptObject: the snapshot contradicts itself, so that no fold can have made it.
        """
        state = cls(snapshot.run)
        state.seq, state.last, state.epoch = snapshot.seq, snapshot.last, snapshot.epoch
        for number, entry in enumerate(snapshot.versions):
            if entry.version != number:
                raise CorruptObject(f"snapshot {snapshot.seq}: version {entry.version} in the place of {number}")
            state._add_version(entry)
        known = len(state._versions)
        highest = [p.target for p in snapshot.patches] + [k.version for k in snapshot.keyframes]
        if max([*highest, *snapshot.retired_versions], default=-1) >= known:
            raise CorruptObject(f"snapshot {snapshot.seq}: it names versions over its newest, {known - 1}")
        state._add_objects(snapshot.patches, snapshot.keyframes)
        state._retired_versions.update(snapshot.retired_versions)
        state._retired_keys.update(snapshot.retired_keys)
        return state

    def _add_version(self, entry: VersionEntry) -> None:
        self._versions.append(entry)
        self._by_step[entry.step] = entry.version

    def _add_objects(self, patches: Iterable[PatchRef], keyframes: Iterable[KeyframeRef]) -> None:
        for patch in patches:
            self._patches[patch.object.key] = patch
            self._into[patch.target] = (*self.patches_into(patch.target), patch)
            self._from[patch.base] = (*self.patches_from(patch.base), patch)
        for keyframe in keyframes:
            self._keyframes[keyframe.index.key] = keyframe
            self._keyframes_of[keyframe.version] = (*self._keyframes_of.get(keyframe.version, ()), keyframe)
            for item in (keyframe.index, *keyframe.shards):
                self._keyframe_file[item.key] = keyframe.index.key

    def _retire(self, record: RetireRecord) -> None:
        self._retired_versions.update(record.versions)
        for key in record.keys:
            if key in self._patches:
                patch = self._patches.pop(key)
                _drop(self._into, patch.target, patch)
                _drop(self._from, patch.base, patch)
                self._retired_keys.add(key)
            elif key in self._keyframe_file:
                # A keyframe without one of its files is no keyframe: the whole of it goes.
                keyframe = self._keyframes.pop(self._keyframe_file[key])
                _drop(self._keyframes_of, keyframe.version, keyframe)
                for item in (keyframe.index, *keyframe.shards):
                    del self._keyframe_file[item.key]
                    self._retired_keys.add(item.key)


def fold(run: str, records: Iterable[Record]) -> RunState:
    """Return the state that ``records``, from record 0 on, make.

    Raises:
        CorruptObject: a record breaks a rule of the log.
    """
    state = RunState(run)
    for record in records:
        state.advance(record, sealed_hash(record.seal()))
    return state


def sealed_hash(sealed: bytes) -> str:
    """Return the hash by which the next record names a record's sealed bytes."""
    return blake3(sealed).hexdigest()


def _entry(record: CommitRecord) -> VersionEntry:
    return VersionEntry(
        version=record.version,
        seq=record.seq,
        step=record.step,
        layout=record.layout,
        digest=record.digest,
        changed=record.changed,
        cells=record.cells,
        created_at=record.created_at,
        metadata=record.metadata,
    )


def _drop(index: dict[int, tuple[T, ...]], version: int, item: T) -> None:
    rest = tuple(other for other in index[version] if other is not item)
    if rest:
        index[version] = rest
    else:
        del index[version]
