"""The state of a run: what its records say, and what each of them changes. No I/O.

A snapshot is this state, written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import assert_never

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format.keys import named_key, versions_of
from pulse_registry.log.cow import CowDict, CowLists, CowObject
from pulse_registry.log.graph import Ref, RouteGraph
from pulse_registry.log.history import History
from pulse_registry.log.keyframe_lag import KeyframeLag
from pulse_registry.log.named_objects import keyframes_of, patches_of
from pulse_registry.log.retirements import Retirement, Retirements
from pulse_registry.log.snapshot_checks import snapshot_violation
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    KeyframeRef,
    PatchRef,
    Record,
    RetiredKey,
    RetiredVersion,
    RetireRecord,
    Snapshot,
    TagRecord,
    VersionEntry,
)


class RunState(CowObject):
    """The fold of a run's records up to ``seq``; empty (``seq == -1``) before record 0.

    Every attribute is copy-on-write, or replaced and never changed in place, so that ``copy`` is a copy of the state.

    Attributes:
        run: the run's name.
        seq: number of the last record folded, or -1.
        last: BLAKE3 (hex) of that record's sealed bytes, None when empty.
        epoch: the newest term that began, 0 before the first.
        edges: the live objects as numbers, for searches.
    """

    def __init__(self, run: str) -> None:
        """Make the state of a run without records."""
        self.run = run
        self.seq = -1
        self.last: str | None = None
        self.epoch = 0
        self._versions = History(run)
        self._by_step = CowDict[int, int]()
        # Live objects in the order of the log, by key (a keyframe's: that of its index) and by version.
        self._patches = CowDict[str, PatchRef]()
        self._into, self._from = CowLists[PatchRef](_patch_key), CowLists[PatchRef](_patch_key)
        self._keyframes = CowDict[str, KeyframeRef]()
        self._keyframes_of = CowLists[KeyframeRef](_keyframe_key)
        self._keyframe_file = CowDict[str, str]()
        self._lag: KeyframeLag | None = None
        self._largest: int | None = 0  # bytes of the largest live keyframe; None: not known since one went
        self.edges = RouteGraph()
        # What was retired and is not forgotten, by the record that did.
        self._retired_versions = CowDict[int, int]()
        self._retired_keys = CowDict[str, int]()
        # The same by record, those that no delete record has told of yet. Keys that one has told of and that can be
        # named again are filed under their versions, to go with the first of them.
        self._retirements = Retirements()
        self._keys_of = CowLists[str](str)
        self._tags = CowDict[str, int]()
        self._tags_of = CowDict[int, int]()  # how many each version has

    @property
    def versions(self) -> Sequence[VersionEntry]:
        """Every committed version, retired ones too: ``versions[n]`` is version n; those forgotten raise Gone."""
        return self._versions

    def versions_since(self, number: int) -> Iterator[VersionEntry]:
        """Yield the versions from a number on, retired ones too, and not those forgotten."""
        return self._versions.since(number)

    @property
    def latest(self) -> VersionEntry | None:
        """The newest version, None before the first commit."""
        return self._versions.newest

    @property
    def patches(self) -> Iterable[PatchRef]:
        """Every live patch, in the order of the log."""
        return self._patches.values()

    @property
    def keyframes(self) -> Iterable[KeyframeRef]:
        """Every live keyframe, in the order of the log."""
        return self._keyframes.values()

    @property
    def retired_versions(self) -> Mapping[int, int]:
        """Versions that readers must no longer ask for: the record that retired each. Not the forgotten ones."""
        return self._retired_versions

    @property
    def retired_keys(self) -> Mapping[str, int]:
        """Keys of objects that must not be named again: the record that retired each. Not those forgotten."""
        return self._retired_keys

    @property
    def tags(self) -> Mapping[str, int]:
        """Names that stand for versions."""
        return self._tags

    def version(self, number: int) -> VersionEntry:
        """Return one version, retired or not.

        Raises:
            Gone: it is forgotten.
            NotFound: it was never committed.
        """
        entry = self._versions.find(number)
        if entry is not None:
            return entry
        count = len(self._versions)
        if not 0 <= number < count:
            newest = f"the newest is {count - 1}" if count else "it has none yet"
            raise NotFound(f"run {self.run!r} has no version {number}; {newest}")
        return self._versions[number]  # forgotten: it raises

    def find(self, number: int) -> VersionEntry | None:
        """Return one version, retired or not; None if it is forgotten or was never committed."""
        return self._versions.find(number)

    def by_step(self, step: int) -> VersionEntry | None:
        """Return the newest version that carries the trainer's label ``step``, or None."""
        number = self._by_step.get(step)
        return None if number is None else self._versions[number]

    def patches_into(self, version: int) -> tuple[PatchRef, ...]:
        """Return the live patches whose target is ``version``, in the order of the log."""
        return self._into.of(version)

    def patches_from(self, version: int) -> tuple[PatchRef, ...]:
        """Return the live patches whose base is ``version``, in the order of the log."""
        return self._from.of(version)

    def keyframe(self, version: int) -> KeyframeRef | None:
        """Return the newest live keyframe of ``version``, or None; always None for a retired version."""
        found = self._keyframes_of.of(version)
        return found[-1] if found and not self.is_retired(version) else None

    def keyframes_of(self, version: int) -> tuple[KeyframeRef, ...]:
        """Return the live keyframes of ``version``, in the order of the log."""
        return self._keyframes_of.of(version)

    @property
    def keyframe_lag(self) -> KeyframeLag | None:
        """How far the newest version is from the newest keyframe; None where there is no keyframe."""
        return self._lag

    @property
    def largest_keyframe(self) -> int:
        """Bytes of the largest live keyframe, 0 where there is none."""
        if self._largest is None:
            self._largest = max((keyframe.size for keyframe in self._keyframes.values()), default=0)
        return self._largest

    def direct_bytes(self, version: int) -> int:
        """Return the bytes of the live patches that lead to ``version`` from the one before it."""
        return sum(patch.size for patch in self.patches_into(version) if patch.base == version - 1)

    def has_tag(self, version: int) -> bool:
        """Tell whether a name stands for ``version``."""
        return version in self._tags_of

    def is_retired(self, version: int) -> bool:
        """Tell whether readers must no longer ask for ``version``, which exists."""
        return version in self._retired_versions or self._versions.find(version) is None

    def is_retired_key(self, key: str) -> bool:
        """Tell whether the key ``key`` was retired, so that it must not be named again.

        Keys of versions that are forgotten are no longer known one by one; no record can name one of these.
        """
        return named_key(key) in self._retired_keys

    def is_live(self, key: str) -> bool:
        """Tell whether a record names the object ``key``, or the patch of which it is a part, and none retired it."""
        return named_key(key) in self._patches or key in self._keyframe_file

    def apply(self, record: Record) -> None:
        """Change what a record says, in place, in time that depends on the record alone.

        Args:
            record: one that breaks no rule and is not void, which `log.fold.advance` sees to.
        """
        match record:
            case EpochRecord():
                self.epoch = record.epoch
            case CommitRecord():
                self._add_version(_entry(record, self.latest))
                self._name_objects(record)
            case AttachRecord():
                self._name_objects(record)
            case RetireRecord():
                self._retire(record)
            case DeleteRecord():
                self._forget(record)
            case TagRecord():
                self._tag(record.name, record.version)
            case _:
                assert_never(record)

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
            count=len(self._versions),
            versions=tuple(iter(self._versions)),  # its length counts those forgotten, too
            patches=tuple(self._patches.values()),
            keyframes=tuple(self._keyframes.values()),
            retired_versions=tuple(RetiredVersion(version=v, seq=s) for v, s in sorted(self._retired_versions.items())),
            retired_keys=tuple(RetiredKey(key=key, seq=seq) for key, seq in sorted(self._retired_keys.items())),
            tags=dict(self._tags),
        )

    def measure(self) -> int:
        """Return about how many bytes a snapshot of this state has: item by item, in no memory, and not in no time."""
        items = sum(len(item.canonical()) + 1 for item in chain(self._versions, self.patches, self.keyframes))
        retired = sum(len(key) + 30 for key in chain(self._retired_keys, self._tags))
        return items + retired + 30 * len(self._retired_versions)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> RunState:
        """Return the state that ``to_snapshot`` wrote down.

        Raises:
            CorruptObject: the snapshot contradicts itself, so that no fold can have made it.
        """
        wrong = snapshot_violation(snapshot)
        if wrong is not None:
            raise CorruptObject(f"snapshot {snapshot.seq}: {wrong}")
        state = cls(snapshot.run)
        state.seq, state.last, state.epoch = snapshot.seq, snapshot.last, snapshot.epoch
        for entry in snapshot.versions:
            state._versions.skip(entry.version)
            state._add_version(entry)
        state._add_objects(snapshot.patches, snapshot.keyframes)
        state._retired_versions.update((retired.version, retired.seq) for retired in snapshot.retired_versions)
        state._retired_keys.update((retired.key, retired.seq) for retired in snapshot.retired_keys)
        state._retirements = Retirements.of(snapshot)
        for name, version in snapshot.tags.items():
            state._tag(name, version)
        state.edges.drop((), tuple(state._retired_versions))
        state._find_lag()
        return state

    def _add_version(self, entry: VersionEntry) -> None:
        self._versions.append(entry)
        self._by_step[entry.step] = entry.version

    def _name_objects(self, record: CommitRecord | AttachRecord) -> None:
        keyframes = keyframes_of(record)
        self._add_objects(patches_of(record), keyframes)
        if keyframes and (self._lag is None or max(keyframe.version for keyframe in keyframes) > self._lag.version):
            self._find_lag()

    def _add_objects(self, patches: Iterable[PatchRef], keyframes: Iterable[KeyframeRef]) -> None:
        patches, keyframes = tuple(patches), tuple(keyframes)
        self.edges.add(patches, keyframes)
        for patch in patches:
            self._patches[patch.object.key] = patch
            self._into.add(patch.target, patch)
            self._from.add(patch.base, patch)
            self._count_bytes(patch, patch.size)
        for keyframe in keyframes:
            self._keyframes[keyframe.index.key] = keyframe
            self._keyframes_of.add(keyframe.version, keyframe)
            for item in (keyframe.index, *keyframe.shards):
                self._keyframe_file[item.key] = keyframe.index.key
            if self._largest is not None:
                self._largest = max(self._largest, keyframe.size)

    def _retire(self, record: RetireRecord) -> None:
        gone: list[Ref] = []
        files: list[str] = []
        for version in record.versions:
            if self._versions.find(version) is not None:
                self._retired_versions.setdefault(version, record.seq)
        retired = [named_key(key) for key in record.keys]  # a patch without one of its parts is no patch
        for key in retired:
            if key in self._patches:
                gone.append(self._patches[key])
                self._drop_patch(self._patches[key])
            elif key in self._keyframe_file:
                # A keyframe without one of its files is no keyframe: the whole of it goes.
                keyframe = self._keyframes[self._keyframe_file[key]]
                gone.append(keyframe)
                self._drop_keyframe(keyframe)
                files += (item.key for item in (keyframe.index, *keyframe.shards))
        keys = (*retired, *files)
        for key in keys:
            self._retired_keys.setdefault(key, record.seq)
        self._retirements.add(Retirement(record.seq, record.versions, keys))
        self.edges.drop(gone, record.versions)
        self._check_lag()

    def _drop_patch(self, patch: PatchRef) -> None:
        del self._patches[patch.object.key]
        self._into.remove(patch.target, patch)
        self._from.remove(patch.base, patch)
        self._count_bytes(patch, -patch.size)

    def _drop_keyframe(self, keyframe: KeyframeRef) -> None:
        del self._keyframes[keyframe.index.key]
        self._keyframes_of.remove(keyframe.version, keyframe)
        for item in (keyframe.index, *keyframe.shards):
            del self._keyframe_file[item.key]
        if keyframe.size == self._largest:
            self._largest = None

    def _count_bytes(self, patch: PatchRef, nbytes: int) -> None:
        lag = self._lag
        if lag is not None and patch.base == patch.target - 1 and patch.target > lag.version:
            self._lag = KeyframeLag(lag.version, lag.nbytes + nbytes)

    def _check_lag(self) -> None:
        """Look for the newest keyframe anew where the one that was it is offered no more."""
        if self._lag is not None and self.keyframe(self._lag.version) is None:
            self._find_lag()

    def _find_lag(self) -> None:
        """Look back for the newest keyframe, version by version."""
        nbytes = 0
        for entry in reversed(self._versions):
            if self.keyframe(entry.version) is not None:
                self._lag = KeyframeLag(entry.version, nbytes)
                return
            nbytes += self.direct_bytes(entry.version)
        self._lag = None

    def _tag(self, name: str, version: int | None) -> None:
        before = self._tags.pop(name, None)
        for number, more in ((before, -1), (version, 1)):
            if number is None:
                continue
            tags = self._tags_of.pop(number, 0) + more
            if tags:
                self._tags_of[number] = tags
        if version is not None:
            self._tags[name] = version

    def _forget(self, record: DeleteRecord) -> None:
        """Forget versions that are deleted, and keys that no record can name again, since they are of such versions.

        Objects of theirs that were never retired lead nowhere any more: they are live no longer.
        """
        gone: list[Ref] = []
        keys: list[str] = []
        for retired in self._retirements.take(record.until):
            keys += retired.keys
            for version in retired.versions:
                if self._retired_versions.pop(version, None) is not None:
                    gone += self._forget_version(version)
                    keys += self._keys_of.pop(version)
        self.edges.drop(gone, ())
        self._check_lag()
        for key in keys:
            if self._retired_keys.get(key, record.seq) > record.until:
                continue
            versions = versions_of(key)
            if not versions or any(v < len(self._versions) and self._versions.find(v) is None for v in versions):
                del self._retired_keys[key]
                continue
            for version in versions:
                self._keys_of.add(version, key)

    def _forget_version(self, version: int) -> list[Ref]:
        """Forget a version, and return the objects that are live no longer."""
        entry = self._versions.forget(version)
        if self._by_step.get(entry.step) == version:
            del self._by_step[entry.step]
        patches, keyframes = (*self.patches_into(version), *self.patches_from(version)), self.keyframes_of(version)
        for patch in patches:
            self._drop_patch(patch)
        for keyframe in keyframes:
            self._drop_keyframe(keyframe)
        return [*patches, *keyframes]


def _entry(record: CommitRecord, parent: VersionEntry | None) -> VersionEntry:
    files = parent.files if record.files is None and parent is not None else record.files
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
        files=files,
    )


def _patch_key(patch: PatchRef) -> str:
    return patch.object.key


def _keyframe_key(keyframe: KeyframeRef) -> str:
    return keyframe.index.key
