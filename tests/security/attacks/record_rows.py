"""Hostile records: what they say of a version's objects, and of themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from tests.security.attacks.edits import commit, sealed_bytes
from tests.security.attacks.row import Forge, Rows
from tests.support.records import DictStore

HEAD = keys.patch_head_key(0, 1, "1" * 32)


def in_parts(
    record: dict[str, Any], *, key: str | None = None, parts: int = 7, size: int = 0, form: str = "pulse-record/2"
) -> None:
    """Say of the patch that it is in parts beside its head."""
    patch = record["patch"]
    patch["object"].update(size=size or patch["head_size"], blake3=patch["head_blake3"])
    patch["object"]["key"] = key or patch["object"]["key"]
    patch["parts"] = parts
    record["format"] = form


def with_head(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Store the head of the patch beside it, too, and change the record."""

    def forge(store: DictStore) -> None:
        [key] = [key for key in store.objects if "/patch/000000000000-000000000001-" in key]
        data = store.objects[key]
        begin = 8 + int.from_bytes(data[:8], "little")
        store.objects[f"run/{HEAD}"] = data[: begin + json.loads(data[8:begin])["directory"]["data_offsets"][1]]
        commit(edit)(store)

    return forge


COMMITS: Rows = {
    "a patch of 2^62 bytes": (
        commit(lambda r: r["patch"]["object"].update(size=2**62)),
        CorruptObject,
    ),
    "a patch of no bytes": (
        commit(
            lambda r: (
                r["patch"]["object"].update(size=0),
                r["patch"].update(head_size=0, head_blake3=blake3(b"").hexdigest()),
            )
        ),
        CorruptObject,
    ),
    "a head of no bytes": (
        commit(lambda r: r["patch"].update(head_size=0, head_blake3=blake3(b"").hexdigest())),
        CorruptObject,
    ),
    "a head that is longer than the patch": (commit(lambda r: r["patch"].update(head_size=2**40)), CorruptObject),
    "2^62 changed cells in the record": (commit(lambda r: r["patch"].update(changed=2**62)), CorruptObject),
    "a patch that is outside of the folder": (
        commit(lambda r: r["patch"]["object"].update(key="../../etc/passwd")),
        CorruptObject,
    ),
    "a patch that is a record": (
        commit(lambda r: r["patch"]["object"].update(key="log/000000000000.json")),
        CorruptObject,
    ),
    "parts of a patch that is one object": (
        commit(lambda r: in_parts(r, size=r["patch"]["object"]["size"])),
        CorruptObject,
    ),
    "parts in a record of the first format": (commit(lambda r: in_parts(r, form="pulse-record/1")), CorruptObject),
    "a record of the second format without parts": (commit(lambda r: r.update(format="pulse-record/2")), CorruptObject),
    "no parts, said": (commit(lambda r: r["patch"].update(parts=None)), CorruptObject),
    "parts of a head that is named like none": (commit(in_parts), CorruptObject),
    "parts of 2^62 bytes": (with_head(lambda r: in_parts(r, key=HEAD, parts=2**62)), CorruptObject),
    "parts that are not there": (
        with_head(lambda r: in_parts(r, key=HEAD, parts=r["patch"]["object"]["size"] - r["patch"]["head_size"])),
        NotFound,
    ),
    "parts of a head that is not there": (commit(lambda r: in_parts(r, key=HEAD)), NotFound),
    "a part as a patch": (commit(lambda r: r["patch"]["object"].update(key=f"{HEAD[:-10]}00000")), CorruptObject),
    "files in a record of the first format": (commit(lambda r: r.update(files="a" * 64)), CorruptObject),
    "a record of the third format without files": (commit(lambda r: r.update(format="pulse-record/3")), CorruptObject),
    "no files, said": (commit(lambda r: r.update(files=None)), CorruptObject),
    "no files, said in the third format": (
        commit(lambda r: r.update(files=None, format="pulse-record/3")),
        CorruptObject,
    ),
    "files that are no hash": (
        commit(lambda r: r.update(files="../../etc/passwd", format="pulse-record/3")),
        CorruptObject,
    ),
    "files by name": (
        commit(lambda r: r.update(files={"config.json": "a" * 64}, format="pulse-record/3")),
        CorruptObject,
    ),
    "a patch that is a file": (
        commit(lambda r: r["patch"]["object"].update(key=f"objects/files/{'a' * 64}")),
        CorruptObject,
    ),
    "another state digest": (commit(lambda r: r.update(digest="0" * 32)), CorruptObject),
    "version 2^62": (commit(lambda r: r.update(version=2**62, parent=2**62 - 1)), CorruptObject),
    "a version before its parent": (commit(lambda r: r.update(parent=5)), CorruptObject),
    "another run's record": (commit(lambda r: r.update(run="other")), CorruptObject),
    "epoch 2^62": (commit(lambda r: r.update(epoch=2**62)), CorruptObject),
    "a record of a newer format": (commit(lambda r: r.update(format="pulse-record/9")), UnsupportedFormat),
    "a record of a kind that is not known": (commit(lambda r: r.update(kind="erase")), UnsupportedFormat),
    "a record of no kind": (commit(lambda r: r.pop("kind")), CorruptObject),
    "a field of a record too many": (commit(lambda r: r.update(extra=1)), CorruptObject),
    "metadata nested deep": (
        commit(lambda r: r.update(metadata=json.loads('{"a":' * 150 + "1" + "}" * 150))),
        CorruptObject,
    ),
    "metadata with a huge number": (commit(lambda r: r.update(metadata={"a": 10**100})), CorruptObject),
    "a record that is a list": (
        lambda store: store.objects.update({"run/log/000000000002.json": sealed_bytes(b"[]")}),
        CorruptObject,
    ),
    "a record nested 20,000 deep": (
        lambda store: store.objects.update({"run/log/000000000002.json": sealed_bytes(b"[" * 20_000)}),
        CorruptObject,
    ),
}
