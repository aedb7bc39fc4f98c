"""Consistency checks of a snapshot, before a reader begins with it: finds what no fold of records can have made."""

from __future__ import annotations

from collections.abc import Iterator

from pulse_registry.format.keys import is_head_key, is_object_key, named_key, versions_of
from pulse_schemas import Snapshot, VersionEntry


def snapshot_violation(snapshot: Snapshot) -> str | None:
    """Return in words the first thing in which a snapshot contradicts itself, or None."""
    known = {entry.version: entry for entry in snapshot.versions}
    return (
        _versions(snapshot)
        or _names(snapshot, known)
        or _retired(snapshot)
        or _objects(snapshot)
        or _layouts(snapshot, known)
    )


def _versions(snapshot: Snapshot) -> str | None:
    """Versions rise, and so do the records that committed them; the newest is there."""
    version = seq = -1
    for entry in snapshot.versions:
        if not version < entry.version < snapshot.count:
            return f"version {entry.version} is out of its place"
        if not seq < entry.seq <= snapshot.seq:
            return f"version {entry.version} was committed by record {entry.seq}, which can't be"
        version, seq = entry.version, entry.seq
    return "its newest version is missing" if version != snapshot.count - 1 else None


def _names(snapshot: Snapshot, known: dict[int, VersionEntry]) -> str | None:
    """What is named is there; the newest version, and those with a tag, are not retired."""
    newest = snapshot.count - 1
    named = {version for patch in snapshot.patches for version in (patch.base, patch.target)}
    named |= {keyframe.version for keyframe in snapshot.keyframes}
    retired = {entry.version for entry in snapshot.retired_versions}
    named |= retired | set(snapshot.tags.values())
    if max(named, default=-1) > newest:
        return f"it names versions over its newest, {newest}"
    if unknown := sorted(named - known.keys()):
        return f"it names version {unknown[0]}, which is not in it"
    if newest in retired:
        return f"it names version {newest}, its newest, as retired"
    tag = next((name for name, version in snapshot.tags.items() if version in retired), None)
    return None if tag is None else f"its tag {tag!r} is that of a version that was retired"


def _retired(snapshot: Snapshot) -> str | None:
    """What was retired is listed once, in order, with a record that the snapshot folds."""
    versions = [entry.version for entry in snapshot.retired_versions]
    keys = [entry.key for entry in snapshot.retired_keys]
    if versions != sorted(set(versions)) or keys != sorted(set(keys)):
        return "it lists what was retired out of order"
    records = {entry.seq for entry in snapshot.retired_versions} | {entry.seq for entry in snapshot.retired_keys}
    if max(records, default=0) > snapshot.seq:
        return "it lists as retired what no record that it folds has retired"
    outside = next((key for key in keys if not is_object_key(key)), None)
    return None if outside is None else f"it names {outside!r} as an object, which is outside the folder of objects"


def _objects(snapshot: Snapshot) -> str | None:
    """Live objects lie under the versions that they are of, are named once, and were not retired."""
    seen = {entry.key for entry in snapshot.retired_keys}
    for key, versions in _named(snapshot):
        if not is_object_key(key) or versions_of(key) != versions or named_key(key) != key:
            return f"it names {key!r}, which is no key of an object of version {versions[-1]}"
        if key in seen:
            return f"it names object {key} twice, or though it was retired"
        seen.add(key)
    headless = next(
        (p.object.key for p in snapshot.patches if p.parts is not None and not is_head_key(p.object.key)), None
    )
    return None if headless is None else f"it names a patch in parts by {headless!r}, which is no key of a patch's head"


def _named(snapshot: Snapshot) -> Iterator[tuple[str, tuple[int, ...]]]:
    for patch in snapshot.patches:
        yield patch.object.key, (patch.base, patch.target)
    for keyframe in snapshot.keyframes:
        for item in (keyframe.index, *keyframe.shards):
            yield item.key, (keyframe.version,)


def _layouts(snapshot: Snapshot, known: dict[int, VersionEntry]) -> str | None:
    """A patch joins two versions of one layout."""
    for patch in snapshot.patches:
        if known[patch.base].layout != known[patch.target].layout:
            return f"its patch {patch.base} -> {patch.target} is between two layouts"
    return None
