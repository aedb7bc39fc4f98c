"""A run's state as a snapshot of segments, and back: what the document says beside them, and all of it checked.

The columns are checked as a whole, by numpy: no row is read. What only a row's JSON says is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format.keys import is_object_key
from pulse_registry.log.segments import Content, Ids, Segment, joined, live_ids, runs_of
from pulse_registry.log.state import RunState
from pulse_registry.log.tables import CODERS, MOST, Tables, id_of
from pulse_schemas import NextIds, Retired, SegmentedSnapshot, SegmentRef, SegmentRows


def snapshot_of(state: RunState, segments: Sequence[Segment]) -> SegmentedSnapshot:
    """Return a state as a document, whose live rows are those of segments that are stored, and no others.

    Raises:
        NotFound: the run has no record yet, so that there is nothing to write down.
    """
    if state.last is None:
        raise NotFound(f"run {state.run!r} has no record yet")
    tables = state.tables
    live = live_ids(tables)
    return SegmentedSnapshot(
        run=state.run,
        seq=state.seq,
        last=state.last,
        epoch=state.epoch,
        count=len(state.versions),
        segments=tuple(_with_dead(segment, live) for segment in segments),
        next_ids=NextIds(
            versions=tables.versions.next_id, patches=tables.patches.next_id, keyframes=tables.keyframes.next_id
        ),
        retired=tuple(_retired(state)),
        tags=dict(state.tags),
        home=state.home,
        shared_bases=dict(state.bases),
    )


def state_of(snapshot: SegmentedSnapshot, contents: Sequence[Content]) -> RunState:
    """Return the state that a snapshot and its segments say.

    Raises:
        CorruptObject: they contradict themselves, so that no fold can have made them.
    """
    tables = joined(snapshot.segments, contents, snapshot.next_ids)
    wrong = violation(snapshot, tables)
    if wrong is not None:
        raise CorruptObject(f"snapshot {snapshot.seq}: {wrong}")
    versions = {
        version: retired.seq
        for retired in snapshot.retired
        for first, count in retired.versions
        for version in range(first, first + count)
    }
    return RunState.of(
        tables,
        run=snapshot.run,
        seq=snapshot.seq,
        last=snapshot.last,
        epoch=snapshot.epoch,
        count=snapshot.count,
        tags=snapshot.tags,
        retired_versions=dict(sorted(versions.items())),
        retired_keys=dict(sorted((key, retired.seq) for retired in snapshot.retired for key in retired.keys)),
        home=snapshot.home,
        bases=dict(sorted(snapshot.shared_bases.items())),
    )


def violation(snapshot: SegmentedSnapshot, tables: Tables) -> str | None:
    """Return in words the first thing in which a snapshot of segments contradicts itself, or None."""
    return (
        _versions(snapshot, tables)
        or _patches(snapshot, tables)
        or _keyframes(tables)
        or _bases(snapshot, tables)
        or _retired_things(snapshot, tables)
        or _tags(snapshot, tables)
        or _home(snapshot)
    )


def _with_dead(segment: Segment, live: Ids) -> SegmentRef:
    def rows(name: str) -> SegmentRows:
        ids, alive = segment.ids[name], live[name]
        dead = np.flatnonzero(~np.isin(ids, alive, assume_unique=True))
        return SegmentRows(rows=len(ids), dead=runs_of(dead.tolist()))

    return segment.ref.model_copy(
        update={"versions": rows("versions"), "patches": rows("patches"), "keyframes": rows("keyframes")}
    )


def _retired(state: RunState) -> Iterator[Retired]:
    versions: dict[int, list[int]] = {}
    keys: dict[int, list[str]] = {}
    for version, seq in sorted(state.retired_versions.items()):
        versions.setdefault(seq, []).append(version)
    for key, seq in sorted(state.retired_keys.items()):
        keys.setdefault(seq, []).append(key)
    for seq in sorted({*versions, *keys}):
        yield Retired(seq=seq, versions=runs_of(versions.get(seq, ())), keys=tuple(keys.get(seq, ())))


def _live(tables: Tables, table: str, *names: str) -> tuple[npt.NDArray[np.int64], ...]:
    found = getattr(tables, table)
    return tuple(found.column(name)[found.alive] for name in names)


def _known(tables: Tables, *columns: npt.NDArray[np.int64]) -> str | None:
    (versions,) = _live(tables, "versions", "version")
    for column in columns:
        unknown = column[~np.isin(column, versions)]
        if len(unknown):
            return f"it names version {unknown[0]}, which is not in it"
    return None


def _versions(snapshot: SegmentedSnapshot, tables: Tables) -> str | None:
    """Versions rise, and so do the records that committed them; the newest is there."""
    version, seq = _live(tables, "versions", "version", "seq")
    if (version[1:] <= version[:-1]).any() or (version < 0).any() or (version >= snapshot.count).any():
        return "its versions are out of their places"
    if (seq[1:] <= seq[:-1]).any() or (seq < 0).any() or (seq > snapshot.seq).any():
        return "its versions were committed by records which can't be"
    newest = int(version[-1]) if len(version) else -1
    return "its newest version is missing" if newest != snapshot.count - 1 else None


def _patches(snapshot: SegmentedSnapshot, tables: Tables) -> str | None:
    """Patches join two versions of one layout, are named once, and were not retired."""
    base, target, nbytes, objects, coder, changed, key = _live(tables, "patches", *tables.patches.kind.columns)
    unknown = _known(tables, base, target)
    if unknown is not None:
        return unknown
    if (base >= target).any() or not ((objects == 1) | (objects == 2)).all() or (changed < 0).any():
        return "it has patches that can't be"
    if (nbytes < 0).any() or (nbytes > MOST).any() or (coder < 0).any() or (coder >= len(CODERS)).any():
        return "it has patches that can't be"
    version, layout = _live(tables, "versions", "version", "layout")
    if (layout[np.searchsorted(version, base)] != layout[np.searchsorted(version, target)]).any():
        return "it has a patch between two layouts"
    retired = [id_of(key) for entry in snapshot.retired for key in entry.keys]
    if len(np.unique(key)) != len(key) or np.isin(key, np.array(retired, np.int64)).any():
        return "it names a patch twice, or though it was retired"
    return None


def _keyframes(tables: Tables) -> str | None:
    version, nbytes, objects = _live(tables, "keyframes", *tables.keyframes.kind.columns)
    if (nbytes < 0).any() or (nbytes > MOST).any() or (objects < 2).any():
        return "it has keyframes that can't be"
    return _known(tables, version)


def _bases(snapshot: SegmentedSnapshot, tables: Tables) -> str | None:
    """The bases that keyframes are, and no others, are those that the run names and has not retired."""
    named = [keyframe.base for keyframe in tables.keyframes if keyframe.base is not None]
    live = {base for base, seq in snapshot.shared_bases.items() if seq is None}
    if len(set(named)) != len(named) or set(named) != live:
        return "its keyframes are not the shared bases that it says it names"
    if any(seq is not None and seq > snapshot.seq for seq in snapshot.shared_bases.values()):
        return "it lists as retired a shared base that no record which it folds has retired"
    return None


def _retired_things(snapshot: SegmentedSnapshot, tables: Tables) -> str | None:
    """What was retired is listed once, in order, with a record that the snapshot folds; versions are known."""
    seqs = [entry.seq for entry in snapshot.retired]
    if seqs != sorted(set(seqs)) or (seqs and seqs[-1] > snapshot.seq):
        return "it lists as retired what no record that it folds has retired, or out of order"
    runs = [run for entry in snapshot.retired for run in entry.versions]
    if sum(count for _, count in runs) > tables.versions.live or any(sum(run) > snapshot.count for run in runs):
        return "it names more versions as retired than it has"  # told before they are numbered
    keys = [key for entry in snapshot.retired for key in entry.keys]
    if len(set(keys)) != len(keys) or any([*entry.keys] != sorted(entry.keys) for entry in snapshot.retired):
        return "it lists what was retired out of order"
    outside = next((key for key in keys if not is_object_key(key)), None)
    if outside is not None:
        return f"it names {outside!r} as an object, which is outside the folder of objects"
    numbers = np.array([number for first, count in runs for number in range(first, first + count)], np.int64)
    if len(np.unique(numbers)) != len(numbers) or any(not _rise(entry.versions) for entry in snapshot.retired):
        return "it lists what was retired out of order"
    if len(numbers) and numbers.max() == snapshot.count - 1:
        return f"it names version {snapshot.count - 1}, its newest, as retired"
    return _known(tables, numbers)


def _rise(runs: Sequence[tuple[int, int]]) -> bool:
    """Tell whether runs rise and do not touch: there is one way to say the same."""
    return all(first + count < following for (first, count), (following, _) in pairwise(runs))


def _tags(snapshot: SegmentedSnapshot, tables: Tables) -> str | None:
    tagged = np.array([*snapshot.tags.values()], np.int64)
    unknown = _known(tables, tagged)
    if unknown is not None:
        return unknown
    retired = {v for entry in snapshot.retired for first, count in entry.versions for v in range(first, first + count)}
    name = next((name for name, version in snapshot.tags.items() if version in retired), None)
    return None if name is None else f"its tag {name!r} is that of a version that was retired"


def _home(snapshot: SegmentedSnapshot) -> str | None:
    """A record that the snapshot folds moved the run, and none moves one at its first."""
    home = snapshot.home
    if home is None or 0 < home.seq <= snapshot.seq:
        return None
    return f"it says that record {home.seq} moved the run, which can't be"
