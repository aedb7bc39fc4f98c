"""Hostile records: what they say of a version's objects, and of themselves."""

from __future__ import annotations

import json

from blake3 import blake3

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from tests.security.attacks.edits import commit, sealed_bytes
from tests.security.attacks.row import Rows

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
