"""Hostile records that follow a log, and hints that lead away from it.

The log that they follow has versions 0 (forgotten), 1 (retired), 2 (with the tag ``best``), 3, and, of another layout,
4 and 5, and four epochs, of which a move ended the second.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log.fold import sealed_hash
from pulse_schemas import canonical_json
from tests.security.attacks.edits import sealed_bytes
from tests.security.attacks.forge import seal
from tests.security.attacks.row import Forge, Ignored, Rows
from tests.security.attacks.runs import SNAPSHOT
from tests.support.bases import BASE, base_keyframe
from tests.support.records import DictStore, every_kind, keyframe, patch, write_id

_SEQ = len(every_kind().records)
_NEWEST = 5
_LAST = f"run/{keys.record_key(_SEQ)}"
_KEY = keys.patch_key(2, 3, write_id(50))
_INDEX, _FILE = base_keyframe().index.key, base_keyframe().shards[0].key
_OTHER = _FILE.replace("-0000/", "-0001/")


def _body(store: DictStore, **fields: Any) -> dict[str, Any]:
    common = {
        "format": "pulse-record/1",
        "run": "run",
        "seq": _SEQ,
        "epoch": 4,
        "write_id": write_id(_SEQ),
        "previous": sealed_hash(store.objects[f"run/{keys.record_key(_SEQ - 1)}"]),
        "created_at": "2026-01-02T03:04:05.678Z",
    }
    return common | fields


def append(**fields: Any) -> Forge:
    """Append a record of these fields."""
    return lambda store: store.objects.update({_LAST: seal(_body(store, **fields))})


def text(change: Callable[[bytes], bytes], **fields: Any) -> Forge:
    """Append a record whose canonical text is changed, and then sealed."""

    def forge(store: DictStore) -> None:
        honest = canonical_json(_body(store, **(fields or TAG)))
        content = change(honest)
        assert content != honest
        store.objects[_LAST] = sealed_bytes(content)

    return forge


TAG = {"kind": "tag", "name": "new", "version": 5}
MOVE = {"kind": "move", "format": "pulse-record/4", "epoch": 5, "to": "s3://bucket/eu"}


def _last_first(data: bytes) -> bytes:
    """Return an object's text with its last field before all others."""
    rest, _, last = data[1:-1].rpartition(b",")
    return b"{" + last + b"," + rest + b"}"


def _with_seal(of: Callable[[DictStore], bytes]) -> Forge:
    """Append a record that has the hash of another document."""

    def forge(store: DictStore) -> None:
        store.objects[_LAST] = b'{"blake3":"' + of(store)[11:75] + seal(_body(store, **TAG))[75:]

    return forge


COMMIT: dict[str, Any] = {
    "kind": "commit",
    "version": 6,
    "step": 60,
    "parent": 5,
    "layout": "b" * 64,
    "patch": patch(5, 6).model_dump(mode="json"),
    "keyframe": None,
    "digest": "f" * 32,
    "changed": 1,
    "cells": 100,
    "metadata": {},
}


def commit(**fields: Any) -> Forge:
    """Append a commit of version 6."""
    return append(**(COMMIT | fields))


def patched(base: int, target: int, **fields: Any) -> Forge:
    """Append an attach record of one patch."""
    document = patch(2, 3, tag=50).model_dump(mode="json") | {"base": base, "target": target}
    if base != target:
        document["object"] = document["object"] | {"key": keys.patch_key(base, target, write_id(50))}
    document["object"] = document["object"] | fields
    return append(kind="attach", patches=[document], keyframes=[])


def framed(version: int, **fields: Any) -> Forge:
    """Append an attach record of one keyframe."""
    document = keyframe(version, shards=2, tag=51).model_dump(mode="json") | fields
    return append(kind="attach", patches=[], keyframes=[document])


def based(index: str = _INDEX, shard: str = _FILE, form: str = "pulse-record/4") -> Forge:
    """Append a commit whose keyframe is a shared base, by the keys of its index and its shard."""
    return commit(patch=None, keyframe=_base(index, shard), format=form)


def _base(index: str = _INDEX, shard: str = _FILE, version: int = 6) -> dict[str, Any]:
    document = base_keyframe(version).model_dump(mode="json")
    document["index"]["key"], document["shards"][0]["key"] = index, shard
    return document


_SHARD = keyframe(3, tag=51).model_dump(mode="json")["shards"][0]

RECORDS: Rows = {
    # the chain
    "a record of another number": (append(**TAG, seq=_SEQ + 1), CorruptObject),
    "a record that follows another": (append(**TAG, previous="0" * 64), CorruptObject),
    "a record that follows none": (append(**TAG, previous=None), CorruptObject),
    "a record of another run's log": (append(**TAG, run="other"), CorruptObject),
    "an epoch that has begun before": (append(kind="epoch", writer="x", epoch=4), CorruptObject),
    "a record of an epoch that never began": (append(**TAG, epoch=5), CorruptObject),
    "a record of epoch 0": (append(**TAG, epoch=0), CorruptObject),
    # commits
    "a version left out": (commit(version=7, parent=6, patch=patch(6, 7).model_dump(mode="json")), CorruptObject),
    "a version a second time": (commit(version=5, parent=4, patch=patch(4, 5).model_dump(mode="json")), CorruptObject),
    "a version without objects": (commit(patch=None), CorruptObject),
    "another layout by a patch": (commit(layout="a" * 64), CorruptObject),
    "more changed cells than there are": (commit(changed=101), CorruptObject),
    "a patch of other versions": (commit(patch=patch(4, 6).model_dump(mode="json")), CorruptObject),
    "a keyframe of another version": (
        commit(patch=None, keyframe=keyframe(5, tag=9).model_dump(mode="json")),
        CorruptObject,
    ),
    "a patch under the key of other versions": (
        commit(patch=COMMIT["patch"] | {"object": COMMIT["patch"]["object"] | {"key": _KEY}}),
        CorruptObject,
    ),
    # what is attached
    "a patch to a version that there is not": (patched(5, 6), CorruptObject),
    "a patch of a retired version": (patched(1, 2), CorruptObject),
    "a patch of a forgotten version": (patched(0, 3), CorruptObject),
    "a patch between two layouts": (patched(3, 4), CorruptObject),
    "a patch to where it begins": (patched(3, 3), CorruptObject),
    "a patch backwards": (patched(3, 2), CorruptObject),
    "an object that is named already": (patched(2, 3, key=keys.patch_key(2, 3, write_id(0))), CorruptObject),
    "an object that was retired before anybody named it": (
        patched(2, 3, key=keys.patch_key(2, 3, write_id(99))),
        CorruptObject,
    ),
    "an object in the log": (patched(2, 3, key="log/000000000000.json"), CorruptObject),
    "an object above the run": (patched(2, 3, key="objects/../../other/head"), CorruptObject),
    "an object of an absolute path": (patched(2, 3, key="/etc/passwd"), CorruptObject),
    "an object without a name": (patched(2, 3, key=""), CorruptObject),
    "an object of 2,000 letters": (patched(2, 3, key=_KEY + "a" * 2000), CorruptObject),
    "a keyframe of a retired version": (framed(1), CorruptObject),
    "a keyframe without shards": (framed(3, shards=[]), CorruptObject),
    "a keyframe of one file twice": (framed(3, shards=[_SHARD, _SHARD]), CorruptObject),
    "a keyframe whose index is a shard": (framed(3, shards=[_SHARD], index=_SHARD), CorruptObject),
    "a coder of another name": (
        append(kind="attach", patches=[patch(2, 3, tag=50).model_dump(mode="json") | {"coder": "xor"}]),
        CorruptObject,
    ),
    # shared bases
    "a base that is another run": (
        based(shard=f"_bases/../other/{keys.keyframe_key(6, '0' * 32, 'a.json')}"),
        CorruptObject,
    ),
    "a base above the root": (based("_bases/../../etc/passwd.json", "_bases/../../etc/shadow.json"), CorruptObject),
    "a base of an absolute path": (based(shard="/_bases/x/model.safetensors"), CorruptObject),
    "a base's mark as a shard": (based(shard=keys.closed_key(BASE)), CorruptObject),
    "a base in a folder of a base": (based(shard=_FILE.replace("/model", "/x/model")), CorruptObject),
    "a base of half an id": (based(shard=_FILE.replace("-0000/", "/")), CorruptObject),
    "a keyframe of two bases": (based(shard=_OTHER), CorruptObject),
    "a keyframe half in a base": (based(shard=keys.keyframe_key(6, write_id(52), "model.safetensors")), CorruptObject),
    "a base in a record of the first format": (based(form="pulse-record/1"), CorruptObject),
    "a record of the fourth format without a base": (commit(format="pulse-record/4"), CorruptObject),
    "a base of two versions": (
        append(kind="attach", format="pulse-record/4", patches=[], keyframes=[_base(version=3), _base(version=5)]),
        CorruptObject,
    ),
    "a patch in a base": (patched(2, 3, key=_FILE), CorruptObject),
    "a base's mark retired": (
        append(kind="retire", format="pulse-record/4", versions=[], keys=[keys.closed_key(BASE)]),
        CorruptObject,
    ),
    "a base retired in the first format": (append(kind="retire", versions=[], keys=[_FILE]), CorruptObject),
    # what is retired, deleted and named
    "the newest version retired": (append(kind="retire", versions=[5], keys=[]), CorruptObject),
    "a version with a tag retired": (append(kind="retire", versions=[2], keys=[]), CorruptObject),
    "a version that there is not retired": (append(kind="retire", versions=[6], keys=[]), CorruptObject),
    "version -1 retired": (append(kind="retire", versions=[-1], keys=[]), CorruptObject),
    "the log retired": (append(kind="retire", versions=[], keys=["log/000000000000.json"]), CorruptObject),
    "a key above the run retired": (append(kind="retire", versions=[], keys=["objects/../head"]), CorruptObject),
    "what the future retires deleted": (append(kind="delete", until=_SEQ), CorruptObject),
    "what record 2^62 retires deleted": (append(kind="delete", until=2**62), CorruptObject),
    "the tag latest": (append(kind="tag", name="latest", version=5), CorruptObject),
    "a tag that is a number": (append(kind="tag", name="4", version=5), CorruptObject),
    "a tag of no letters": (append(kind="tag", name="", version=5), CorruptObject),
    "a tag with a slash": (append(kind="tag", name="a/b", version=5), CorruptObject),
    "a tag of 65 letters": (append(kind="tag", name="a" * 65, version=5), CorruptObject),
    "a tag of a retired version": (append(kind="tag", name="new", version=1), CorruptObject),
    "a tag of a version that there is not": (append(kind="tag", name="new", version=6), CorruptObject),
    # where it lives
    "a move in the first format": (append(**MOVE | {"format": "pulse-record/1"}), UnsupportedFormat),
    "a move of an epoch that has begun": (append(**MOVE | {"epoch": 4}), CorruptObject),
    "a move to nowhere": (append(**MOVE | {"to": ""}), CorruptObject),
    "a move to 2,000 letters": (append(**MOVE | {"to": "s" * 2000}), CorruptObject),
    "a tag in the format of a move": (append(**TAG, format="pulse-record/4"), UnsupportedFormat),
    # values
    "a number as text": (append(**TAG | {"version": "5"}), CorruptObject),
    "a number with a point": (append(**TAG | {"version": 5.0}), CorruptObject),
    "true for a number": (append(**TAG | {"version": True}), CorruptObject),
    "an epoch below 0": (append(**TAG, epoch=-1), CorruptObject),
    "a step of 2^63": (commit(step=2**63), CorruptObject),
    "a digest in upper case": (commit(digest="F" * 32), CorruptObject),
    "a hash with a line end behind it": (commit(layout="b" * 64 + "\n"), CorruptObject),
    "a write id of 31 digits": (append(**TAG, write_id="0" * 31), CorruptObject),
    "a time with other digits": (append(**TAG, created_at="٢٠٢٦-01-02T03:04:05.678Z"), CorruptObject),
    "a time without a zone": (append(**TAG, created_at="2026-01-02T03:04:05.678"), CorruptObject),
    "a field missing": (append(kind="tag", name="new"), CorruptObject),
    "a field of another kind": (append(**TAG, keys=[]), CorruptObject),
    "a record of an older format": (append(**TAG, format="pulse-record/0"), UnsupportedFormat),
    "a record of no format": (append(**TAG, format=1), CorruptObject),
    # text
    "a key twice": (text(lambda data: data[:-1] + b',"version":4}'), CorruptObject),
    "keys out of order": (text(_last_first), CorruptObject),
    "white space": (text(lambda data: data.replace(b":", b": ", 1)), CorruptObject),
    "a line end": (text(lambda data: data + b"\n"), CorruptObject),
    "an escape that need not be": (text(lambda data: data.replace(b'"new"', b'"\\u006eew"')), CorruptObject),
    "a byte order mark": (text(lambda data: b"\xef\xbb\xbf" + data), CorruptObject),
    "UTF-16": (text(lambda data: data.decode().encode("utf-16")), CorruptObject),
    "a number in other words": (text(lambda data: data.replace(b'"version":5', b'"version":5e0')), CorruptObject),
    "minus zero": (text(lambda data: data.replace(b'"epoch":4', b'"epoch":-0')), CorruptObject),
    "NaN": (text(lambda data: data.replace(b'"metadata":{}', b'"metadata":{"a":NaN}'), **COMMIT), CorruptObject),
    "1e999": (text(lambda data: data.replace(b'"metadata":{}', b'"metadata":{"a":1e999}'), **COMMIT), CorruptObject),
    "a number of 5,000 digits": (
        text(lambda data: data.replace(b'"metadata":{}', b'"metadata":{"a":' + b"9" * 5000 + b"}"), **COMMIT),
        CorruptObject,
    ),
    "half a letter": (
        text(lambda data: data.replace(b'"metadata":{}', b'"metadata":{"a":"\\ud800"}'), **COMMIT),
        CorruptObject,
    ),
    "metadata 33 levels deep": (
        text(lambda data: data.replace(b'"metadata":{}', b'"metadata":' + b'{"a":' * 33 + b"1" + b"}" * 33), **COMMIT),
        CorruptObject,
    ),
    "no seal": (lambda store: store.objects.update({_LAST: canonical_json(_body(store, **TAG))}), CorruptObject),
    "the seal of another record": (_with_seal(lambda store: store.objects["run/log/000000000006.json"]), CorruptObject),
    "a seal in upper case": (_with_seal(lambda store: seal(_body(store, **TAG)).upper()), CorruptObject),
    "no bytes": (lambda store: store.objects.update({_LAST: b""}), CorruptObject),
    "a record twice in one": (
        lambda store: store.objects.update({_LAST: seal(_body(store, **TAG)) * 2}),
        CorruptObject,
    ),
}


def snapshot(edit: Callable[[dict[str, Any]], Any]) -> Forge:
    """Change the snapshot's body, and seal it."""
    key = f"run/{keys.snapshot_key(SNAPSHOT)}"

    def forge(store: DictStore) -> None:
        body = json.loads(store.objects[key])["body"]
        edit(body)
        store.objects[key] = seal(body)

    return forge


def head(**fields: Any) -> Forge:
    """Replace the hint."""
    body = {"format": "pulse-head/1", "seq": _SEQ - 1, "snapshot": SNAPSHOT} | fields
    return lambda store: store.objects.update({"run/head": seal(body)})


def first(listed: str, **fields: Any) -> Forge:
    """Change the first of a list of the snapshot."""
    return snapshot(lambda body: body[listed][0].update(fields))


HINTS: Rows = {
    "a snapshot of an older format": (snapshot(lambda b: b.update(format="pulse-snapshot/1")), Ignored),
    "a snapshot of a newer format": (snapshot(lambda b: b.update(format="pulse-snapshot/9")), Ignored),
    "a snapshot of another run": (snapshot(lambda b: b.update(run="other")), Ignored),
    "a snapshot of another number": (snapshot(lambda b: b.update(seq=9)), Ignored),
    "a snapshot of another record": (snapshot(lambda b: b.update(last="0" * 64)), Ignored),
    "a snapshot with a field too many": (snapshot(lambda b: b.update(extra=1)), Ignored),
    "a snapshot without versions": (snapshot(lambda b: b.update(versions=[])), Ignored),
    "a snapshot without its newest version": (snapshot(lambda b: b["versions"].pop()), Ignored),
    "a snapshot of 2^62 versions": (snapshot(lambda b: b.update(count=2**62)), Ignored),
    "a snapshot of fewer versions than it has": (snapshot(lambda b: b.update(count=2)), Ignored),
    "a snapshot whose versions fall": (snapshot(lambda b: b["versions"].reverse()), Ignored),
    "a snapshot with a version twice": (snapshot(lambda b: b["versions"].append(b["versions"][-1])), Ignored),
    "a snapshot with a version of the future": (
        snapshot(lambda b: b["versions"][-1].update(seq=2**40)),
        Ignored,
    ),
    "a snapshot with a patch twice": (snapshot(lambda b: b["patches"].append(b["patches"][0])), Ignored),
    "a snapshot with a patch of a forgotten version": (first("patches", base=0), Ignored),
    "a snapshot with a patch under another key": (
        snapshot(lambda b: b["patches"][0]["object"].update(key=_KEY)),
        Ignored,
    ),
    "a snapshot with an object above the run": (
        snapshot(lambda b: b["patches"][0]["object"].update(key="objects/../../head")),
        Ignored,
    ),
    "a snapshot with a keyframe of the future": (first("keyframes", version=9), Ignored),
    "a snapshot with what was retired": (
        snapshot(lambda b: b["patches"][0]["object"].update(key=b["retired_keys"][-1]["key"])),
        Ignored,
    ),
    "a snapshot whose newest version is retired": (
        snapshot(lambda b: b.update(retired_versions=[{"version": 3, "seq": 9}])),
        Ignored,
    ),
    "a snapshot that retires a version with a tag": (
        snapshot(lambda b: b.update(retired_versions=[{"version": 2, "seq": 9}])),
        Ignored,
    ),
    "a snapshot that retires after its end": (
        snapshot(lambda b: b.update(retired_versions=[{"version": 1, "seq": 99}])),
        Ignored,
    ),
    "a snapshot that retires a key twice": (snapshot(lambda b: b.update(retired_keys=b["retired_keys"] * 2)), Ignored),
    "a snapshot that retires the log": (
        snapshot(lambda b: b.update(retired_keys=[{"key": "log/000000000000.json", "seq": 9}])),
        Ignored,
    ),
    "a snapshot with a tag of the future": (snapshot(lambda b: b.update(tags={"best": 9})), Ignored),
    "a snapshot with a tag of a forgotten version": (snapshot(lambda b: b.update(tags={"best": 0})), Ignored),
    "a snapshot of one document that has moved": (
        snapshot(lambda b: b.update(home={"move": "0" * 32, "to": "s3://bucket/eu", "seq": 3})),
        Ignored,
    ),
    "a snapshot with the tag latest": (snapshot(lambda b: b.update(tags={"latest": 3})), Ignored),
    "a snapshot with a patch between two layouts": (
        snapshot(lambda b: b["versions"][0].update(layout="c" * 64)),
        Ignored,
    ),
    "a snapshot nested 20,000 deep": (
        lambda store: store.objects.update({f"run/{keys.snapshot_key(SNAPSHOT)}": sealed_bytes(b"[" * 20_000)}),
        Ignored,
    ),
    "a hint of a snapshot that is not there": (head(snapshot=12), Ignored),
    "a hint of snapshot 2^62": (head(snapshot=2**62), Ignored),
    "a hint of snapshot -1": (head(snapshot=-1), Ignored),
    "a hint of record 2^62": (head(seq=2**62), Ignored),
    "a hint that is behind": (head(seq=3, snapshot=None), Ignored),
    "a hint of a newer format": (head(format="pulse-head/2"), Ignored),
    "a hint that is a list": (lambda store: store.objects.update({"run/head": seal([])}), Ignored),  # type: ignore[arg-type]
    "a hint of no bytes": (lambda store: store.objects.update({"run/head": b""}), Ignored),
    "a hint nested 20,000 deep": (
        lambda store: store.objects.update({"run/head": sealed_bytes(b"[" * 20_000)}),
        Ignored,
    ),
}


def lease(**fields: Any) -> Forge:
    """Replace the lease."""
    body = {"format": "pulse-lease/1", "run": "run", "reader": "worker", "version": 3, "seconds": 3600} | fields
    return lambda store: store.objects.update({"run/leases/worker.json": seal(body)})


LEASES: Rows = {
    "a lease for 2^62 seconds": (lease(seconds=2**62), Ignored),
    "a lease for no time": (lease(seconds=0), Ignored),
    "a lease of version -1": (lease(version=-1), Ignored),
    "a lease of another run": (lease(run="other"), Ignored),
    "a lease of another reader": (lease(reader="boss"), Ignored),
    "a lease of a reader that is a path": (lease(reader="../../head"), Ignored),
    "a lease with a field too many": (lease(forever=True), Ignored),
    "a lease of a newer format": (lease(format="pulse-lease/2"), UnsupportedFormat),
    "a lease of no bytes": (lambda store: store.objects.update({"run/leases/worker.json": b""}), Ignored),
}
