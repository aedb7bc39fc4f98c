"""The state of a run: what its records say, and what each of them changes. No I/O.

A snapshot is this state, written down.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import assert_never

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format.keys import named_key, versions_of
from pulse_registry.log.cow import CowDict, CowLists, CowObject
from pulse_registry.log.graph import RouteGraph
from pulse_registry.log.history import History
from pulse_registry.log.keyframe_lag import KeyframeLag, direct_bytes
from pulse_registry.log.named_objects import files_of, keyframes_of, patches_of
from pulse_registry.log.retirements import Retirement, Retirements
from pulse_registry.log.snapshot_checks import snapshot_violation
from pulse_registry.log.table import Table
from pulse_registry.log.tables import KEYFRAMES, MOST, PATCHES, VERSIONS, Tables, id_of
from pulse_registry.log.tags import Tags
from pulse_registry.process.cycle_collector import cycles_kept
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    HomeEntry,
    KeyframeRef,
    MoveRecord,
    PatchRef,
    Record,
    RetiredKey,
    RetiredVersion,
    RetireRecord,
    Snapshot,
    TagRecord,
    VersionEntry,
    base_of,
)


class RunState(CowObject):
    """The fold of a run's records up to ``seq``; empty (``seq == -1``) before record 0.

    Every attribute is copy-on-write, or replaced and never changed in place, so that ``copy`` is a copy of the state.

    Attributes:
        run: the run's name.
        seq: number of the last record folded, or -1.
        last: BLAKE3 (hex) of that record's sealed bytes, None when empty.
        epoch: the newest term that began, 0 before the first.
        home: where the run lives since its last move; None: it has never moved.
    """

    def __init__(self, run: str, tables: Tables | None = None, count: int = 0) -> None:
        """Make the state of a run: without records; or of what tables have, of ``count`` versions."""
        self.run = run
        self.seq = -1
        self.last: str | None = None
        self.epoch = 0
        self.home: HomeEntry | None = None
        tables = tables or Tables()
        self._versions = History(run, tables.versions, count)
        # Live objects, and beside them the rows of keyframes by the keys of their files.
        self._patches, self._keyframes = tables.patches, tables.keyframes
        self._keyframe_ids = CowDict[str, int]()
        ids: list[int] = self._keyframes.ids[self._keyframes.alive].tolist()
        for row_id, keyframe in zip(ids, self._keyframes, strict=True):
            self._see_files(keyframe, row_id)
        self._lag: KeyframeLag | None = None
        self._edges: RouteGraph | None = None
        # What was retired and is not forgotten, by the record that did.
        self._retired_versions = CowDict[int, int]()
        self._retired_keys = CowDict[str, int]()
        # The same by record, those that no delete record has told of yet. Keys that one has told of and that can be
        # named again are filed under their versions, to go with the first of them.
        self._retirements = Retirements()
        self._keys_of = CowLists[str](str)
        self._tags = Tags()
        # Shared bases that the run has ever named, and the record that retired each: never forgotten.
        self._bases = CowDict[str, int | None]()

    @property
    def tables(self) -> Tables:
        """The rows of what is not forgotten: for who stores them, or looks at all of them. Not to be changed."""
        return Tables(self._versions.table, self._patches, self._keyframes)

    @property
    def edges(self) -> RouteGraph:
        """The live objects as numbers, for searches; made once for a state."""
        if self._edges is None:
            self._edges = RouteGraph(self.tables, self._retired_versions)
        return self._edges

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
        return self._patches

    @property
    def keyframes(self) -> Iterable[KeyframeRef]:
        """Every live keyframe, in the order of the log."""
        return self._keyframes

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
        return self._tags.versions

    @property
    def bases(self) -> Mapping[str, int | None]:
        """Shared bases that the run has named, by id: the record that retired each, None while none has.

        A base that was retired is never named again, so that its reference can go.
        """
        return self._bases

    @property
    def spent_bases(self) -> frozenset[str]:
        """Those of them that were retired."""
        return frozenset(base for base, seq in self._bases.items() if seq is not None)

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
        rows = self._versions.table.where("step", step)
        return self._versions.table.row(rows[-1]) if rows else None

    def by_digest(self, layout: str, digest: str) -> VersionEntry | None:
        """Return the newest version of a layout that has a state digest, or None."""
        table = self._versions.table
        found = table.rows(table.saying(f'"digest":"{digest}"'.encode()))
        return next((entry for entry in found if (entry.layout, entry.digest) == (layout, digest)), None)

    def patches_into(self, version: int) -> tuple[PatchRef, ...]:
        """Return the live patches whose target is ``version``, in the order of the log."""
        return tuple(self._patches.rows(self._patches.where("target", version)))

    def patches_from(self, version: int) -> tuple[PatchRef, ...]:
        """Return the live patches whose base is ``version``, in the order of the log."""
        return tuple(self._patches.rows(self._patches.where("base", version)))

    def keyframe(self, version: int) -> KeyframeRef | None:
        """Return the newest live keyframe of ``version``, or None; always None for a retired version."""
        rows = self._keyframes.where("version", version)
        return self._keyframes.row(rows[-1]) if rows and not self.is_retired(version) else None

    def keyframes_of(self, version: int) -> tuple[KeyframeRef, ...]:
        """Return the live keyframes of ``version``, in the order of the log."""
        return tuple(self._keyframes.rows(self._keyframes.where("version", version)))

    @property
    def keyframe_lag(self) -> KeyframeLag | None:
        """How far the newest version is from the newest keyframe; None where there is no keyframe."""
        return self._lag

    @property
    def largest_keyframe(self) -> int:
        """Bytes of the largest live keyframe, 0 where there is none."""
        return int(self._keyframes.column("nbytes")[self._keyframes.alive].max(initial=0))

    def direct_bytes(self, version: int) -> int:
        """Return the bytes of the live patches that lead to ``version`` from the one before it."""
        return direct_bytes(self._patches, version, version)

    def has_tag(self, version: int) -> bool:
        """Tell whether a name stands for ``version``."""
        return version in self._tags

    def is_retired(self, version: int) -> bool:
        """Tell whether readers must no longer ask for ``version``, which exists."""
        return version in self._retired_versions or not self._versions.knows(version)

    def is_retired_key(self, key: str) -> bool:
        """Tell whether the key ``key`` was retired, so that it must not be named again.

        Keys of versions that are forgotten are no longer known one by one; no record can name one of these.
        """
        base = base_of(key)
        return named_key(key) in self._retired_keys if base is None else self._bases.get(base) is not None

    def is_live(self, key: str) -> bool:
        """Tell whether a record names the object ``key``, or the patch of which it is a part, and none retired it."""
        return self._patch_row(named_key(key)) is not None or key in self._keyframe_ids

    def apply(self, record: Record) -> None:
        """Change what a record says, in place, in time that depends on the record alone.

        Args:
            record: one that breaks no rule and is not void, which `log.fold.advance` sees to.
        """
        self._edges = None
        match record:
            case EpochRecord():
                self.epoch = record.epoch
            case CommitRecord():
                self._versions.append(_entry(record, self.latest))
                self._name_objects(record)
            case AttachRecord():
                self._name_objects(record)
            case RetireRecord():
                self._retire(record)
            case DeleteRecord():
                self._forget(record)
            case TagRecord():
                self._tags.set(record.name, record.version)
            case MoveRecord():
                self.epoch = record.epoch
                self.home = HomeEntry(move=record.write_id, to=record.to, seq=record.seq)
            case _:
                assert_never(record)

    def to_snapshot(self) -> Snapshot:
        """Return this state as a document; the same state gives the same bytes.

        Raises:
            NotFound: the run has no record yet, so that there is nothing to write down.
            UnsupportedFormat: it has moved or named shared bases, which a document of these formats can't say.
        """
        if self.last is None:
            raise NotFound(f"run {self.run!r} has no record yet")
        if self.home is not None or self._bases:
            raise UnsupportedFormat(
                f"run {self.run!r} has moved or named shared bases, which only a snapshot of segments says"
            )
        return Snapshot(
            run=self.run,
            seq=self.seq,
            last=self.last,
            epoch=self.epoch,
            count=len(self._versions),
            versions=tuple(iter(self._versions)),  # its length counts those forgotten, too
            patches=tuple(self._patches),
            keyframes=tuple(self._keyframes),
            retired_versions=tuple(RetiredVersion(version=v, seq=s) for v, s in sorted(self._retired_versions.items())),
            retired_keys=tuple(RetiredKey(key=key, seq=seq) for key, seq in sorted(self._retired_keys.items())),
            tags=dict(self.tags),
        )

    def measure(self) -> int:
        """Return about how many bytes a snapshot of this state has, as one document."""
        retired = sum(len(key) + 30 for key in chain(self._retired_keys, self.tags))
        return self.tables.nbytes + retired + 30 * len(self._retired_versions) + 80 * len(self._bases)

    @classmethod
    @cycles_kept()
    def from_snapshot(cls, snapshot: Snapshot) -> RunState:
        """Return the state that ``to_snapshot`` wrote down.

        Raises:
            CorruptObject: the snapshot contradicts itself, so that no fold can have made it.
        """
        wrong = snapshot_violation(snapshot)
        if wrong is not None:
            raise CorruptObject(f"snapshot {snapshot.seq}: {wrong}")
        tables = Tables(
            Table.holding(VERSIONS, snapshot.versions),
            Table.holding(PATCHES, snapshot.patches),
            Table.holding(KEYFRAMES, snapshot.keyframes),
        )
        return cls.of(
            tables,
            run=snapshot.run,
            seq=snapshot.seq,
            last=snapshot.last,
            epoch=snapshot.epoch,
            count=snapshot.count,
            tags=snapshot.tags,
            retired_versions={retired.version: retired.seq for retired in snapshot.retired_versions},
            retired_keys={retired.key: retired.seq for retired in snapshot.retired_keys},
        )

    @classmethod
    def of(
        cls,
        tables: Tables,
        *,
        run: str,
        seq: int,
        last: str,
        epoch: int,
        count: int,
        tags: Mapping[str, int],
        retired_versions: Mapping[int, int],
        retired_keys: Mapping[str, int],
        home: HomeEntry | None = None,
        bases: Mapping[str, int | None] = MappingProxyType({}),
    ) -> RunState:
        """Return the state that has these rows, unchecked; no version and no patch is read.

        Args:
            tables: what is not forgotten.
            run, seq, last, epoch, home: as the attributes.
            count: versions, those that are forgotten too.
            tags, retired_versions, retired_keys, bases: as the properties; versions rise.
        """
        state = cls(run, tables, count)
        state.seq, state.last, state.epoch, state.home = seq, last, epoch, home
        state._retired_versions.update(retired_versions)
        state._retired_keys.update(retired_keys)
        state._retirements = Retirements.of(retired_versions, retired_keys)
        for name, version in tags.items():
            state._tags.set(name, version)
        state._bases.update(bases)
        state._find_lag()
        return state

    def _name_objects(self, record: CommitRecord | AttachRecord) -> None:
        for patch in patches_of(record):
            self._patches.append(patch)
            self._count_bytes(patch.base, patch.target, min(patch.size, MOST))
        keyframes = keyframes_of(record)
        for keyframe in keyframes:
            self._see_files(keyframe, self._keyframes.next_id)
            self._keyframes.append(keyframe)
            if keyframe.base is not None:
                self._bases[keyframe.base] = None
        if keyframes and (self._lag is None or max(keyframe.version for keyframe in keyframes) > self._lag.version):
            self._find_lag()

    def _see_files(self, keyframe: KeyframeRef, row_id: int) -> None:
        for item in files_of(keyframe):
            self._keyframe_ids[item.key] = row_id

    def _patch_row(self, key: str) -> int | None:
        """Return the row of the live patch with a key, None where there is none."""
        found = self._patches.where("key", id_of(key))
        return next((row for row in found if self._patches.glance(row).object.key == key), None)

    def _keyframe_row(self, key: str) -> int | None:
        """Return the row of the live keyframe of which a key is a file's, None where there is none."""
        row_id = self._keyframe_ids.get(key)
        return None if row_id is None else bisect_left(self._keyframes.ids.data, row_id)

    def _retire(self, record: RetireRecord) -> None:
        patches, keyframes = dict[int, None](), dict[int, None]()
        files: list[str] = []
        for version in record.versions:
            if self._versions.knows(version):
                self._retired_versions.setdefault(version, record.seq)
        retired = [named_key(key) for key in record.keys]  # a patch without one of its parts is no patch
        for key in retired:
            if (row := self._patch_row(key)) is not None:
                patches[row] = None
            elif (row := self._keyframe_row(key)) is not None and row not in keyframes:
                # A keyframe without one of its files is no keyframe: the whole of it goes.
                keyframes[row] = None
                files += (item.key for item in files_of(self._keyframes.row(row)))
        self._drop(patches, keyframes, record.seq)
        keys = tuple(key for key in (*retired, *files) if not self._retire_base(key, record.seq))
        for key in keys:
            self._retired_keys.setdefault(key, record.seq)
        self._retirements.add(Retirement(record.seq, record.versions, keys))
        self._check_lag()

    def _retire_base(self, key: str, seq: int) -> bool:
        """Note that record ``seq`` retires the shared base that a key is a file's of; tell whether it is one's."""
        base = base_of(key)
        if base is not None and self._bases.get(base) is None:
            self._bases[base] = seq
        return base is not None

    def _drop(self, patches: Collection[int], keyframes: Collection[int], seq: int) -> None:
        """Take the objects of rows for dead, as record ``seq`` says."""
        columns = [self._patches.column(name).data for name in ("base", "target", "nbytes")]
        for row in patches:
            base, target, nbytes = (column[row] for column in columns)
            self._count_bytes(base, target, -nbytes)
        for keyframe in self._keyframes.rows(keyframes):
            self._retire_base(keyframe.index.key, seq)
            for item in files_of(keyframe):
                del self._keyframe_ids[item.key]
        self._patches.drop(patches)
        self._keyframes.drop(keyframes)

    def _count_bytes(self, base: int, target: int, nbytes: int) -> None:
        if self._lag is not None:
            self._lag = self._lag.with_patch(base, target, nbytes)

    def _check_lag(self) -> None:
        """Look for the newest keyframe anew where the one that was it is offered no more."""
        if self._lag is None:
            return
        if self.is_retired(self._lag.version) or not self._keyframes.where("version", self._lag.version):
            self._find_lag()

    def _find_lag(self) -> None:
        self._lag = KeyframeLag.of(self._patches, self._keyframes, len(self._versions) - 1, self.is_retired)

    def _forget(self, record: DeleteRecord) -> None:
        """Forget versions that are deleted, and keys that no record can name again, since they are of such versions.

        Objects of theirs that were never retired lead nowhere any more: they are live no longer.
        """
        versions: list[int] = []
        keys: list[str] = []
        for retired in self._retirements.take(record.until):
            keys += retired.keys
            versions += (v for v in retired.versions if self._retired_versions.pop(v, None) is not None)
        patches, keyframes = dict[int, None](), dict[int, None]()
        for version in versions:
            keys += self._keys_of.pop(version)
            for side in ("base", "target"):
                patches.update(dict.fromkeys(self._patches.where(side, version)))
            keyframes.update(dict.fromkeys(self._keyframes.where("version", version)))
        self._drop(patches, keyframes, record.seq)
        self._versions.forget(versions)
        self._check_lag()
        for key in keys:
            if self._retired_keys.get(key, record.seq) > record.until:
                continue
            of = versions_of(key)
            if not of or any(v < len(self._versions) and not self._versions.knows(v) for v in of):
                del self._retired_keys[key]
                continue
            for version in of:
                self._keys_of.add(version, key)


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
