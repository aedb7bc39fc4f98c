"""Objects that an attacker wrote, with every hash in order: refused by what they claim, before memory is spent on it.

Each row changes one thing in a run whose hashes and sizes are then made to fit, so that the decoder itself must see it.
"""

from __future__ import annotations

import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from blake3 import blake3

from pulse_kernels import get_backend
from pulse_registry.errors import BaseMismatch, CorruptObject, LayoutMismatch, PulseError, UnsupportedFormat
from pulse_schemas import canonical_json
from tests.attacks.forge import (
    CELLS,
    GroupParts,
    PatchParts,
    edit_record,
    key_of,
    last_commit,
    victim,
)
from tests.faults.harness import bits, copied, garbage, quick
from tests.log.builders import DictStore

Forge = Callable[[DictStore], None]
MEMORY = 3 << 20
"""Bytes that a refused pull may take at its peak; the model has 6,000."""


def group(edit: Callable[[GroupParts, PatchParts], None]) -> Forge:
    """Change the coded group, and sign the patch."""

    def forge(store: DictStore) -> None:
        patch = PatchParts(store)
        parts = GroupParts(patch.groups[0])
        edit(parts, patch)
        patch.groups[0] = parts.pack()
        patch.sign()

    return forge


def patch(edit: Callable[[PatchParts], None]) -> Forge:
    """Change the directory or the header, and sign the patch."""

    def forge(store: DictStore) -> None:
        parts = PatchParts(store)
        edit(parts)
        parts.sign()

    return forge


def commit(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Change the record of version 1, and sign it."""
    return lambda store: edit_record(store, last_commit(store), edit)


def first_commit(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Change the record of version 0, which names the keyframe, and sign all from there on."""
    return lambda store: edit_record(store, 1, edit)


def put(target: Any, **values: Any) -> None:
    """Set attributes of parts."""
    for name, value in values.items():
        assert hasattr(target, name), name
        setattr(target, name, value)


def claim(changed: int) -> Callable[[GroupParts, PatchParts], None]:
    """Claim so many changed cells wherever there is a place to do so."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        patch.entries[0][1] = patch.pulse["changed"] = changed
        if parts.classes:
            parts.classes[0][0] += changed - sum(count for count, _ in parts.classes)

    return edit


def words(make: Callable[[list[int]], list[int]]) -> Forge:
    """Replace the words of the chunk, and say how many there are."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        parts.words = make(parts.words)
        parts.sizes = [len(parts.words)]

    return group(edit)


def table(number: int, data: bytes) -> Forge:
    """Replace a table; the byte after them all is there where it must be."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        parts.tables[number] = data
        parts.padding = bytes((5 * len(parts.classes) + sum(map(len, parts.tables))) % 2)

    return group(edit)


def levels(first: int, *values: int) -> bytes:
    """Return the bytes of a table."""
    packed = sum(level << (5 * k) for k, level in enumerate(values))
    return bytes((first, len(values))) + packed.to_bytes((5 * len(values) + 7) // 8, "little")


def header(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the JSON header of the patch by any bytes."""

    def edit(parts: PatchParts) -> None:
        honest = PatchParts(parts.store)
        length = struct.unpack_from("<Q", honest.store.objects[honest.key])[0]
        parts.raw_header = make(honest.store.objects[honest.key][8 : 8 + length].rstrip())

    return patch(edit)


GAP: dict[str, tuple[Forge, type[PulseError] | tuple[type[PulseError], ...]]] = {
    # the group's head
    "one changed cell more than are coded": (group(claim(201)), CorruptObject),
    "one changed cell less than are coded": (group(claim(199)), CorruptObject),
    "as many changed cells as the group has": (group(claim(CELLS)), CorruptObject),
    "more changed cells than the group has": (group(claim(CELLS + 1)), CorruptObject),
    "2^32 - 1 changed cells": (group(claim(2**32 - 1)), CorruptObject),
    "no changed cell": (group(claim(0)), CorruptObject),
    "a class": (group(lambda g, p: put(g, classes=[[200, 0]])), CorruptObject),
    "a class that is not there": (group(lambda g, p: put(g, n_classes=1)), CorruptObject),
    "255 classes": (group(lambda g, p: put(g, n_classes=255)), CorruptObject),
    "a first class": (group(lambda g, p: put(g, first=1)), CorruptObject),
    "tables of 65,535 bytes": (group(lambda g, p: put(g, tables_size=65535)), CorruptObject),
    "tables of no bytes": (group(lambda g, p: put(g, tables_size=0)), CorruptObject),
    "tables of two bytes less": (group(lambda g, p: put(g, tables_size=len(b"".join(g.tables)) - 2)), CorruptObject),
    "a byte more after the tables": (group(lambda g, p: put(g, padding=g.padding + b"\1")), CorruptObject),
    "a group of no bytes": (patch(lambda p: put(p, groups=[b""])), CorruptObject),
    "a group that ends in its head": (patch(lambda p: put(p, groups=[p.groups[0][:3]])), CorruptObject),
    "a group that ends in its tables": (patch(lambda p: put(p, groups=[p.groups[0][:20]])), CorruptObject),
    "a group with a byte behind it": (patch(lambda p: put(p, groups=[p.groups[0] + b"\0"])), CorruptObject),
    "a group with a word behind it": (patch(lambda p: put(p, groups=[p.groups[0] + b"\0\0"])), CorruptObject),
    "a group twice in one": (patch(lambda p: put(p, groups=[p.groups[0] * 2])), CorruptObject),
    # tables
    "a table of no symbols, which is needed": (table(0, bytes(2)), CorruptObject),
    "values without a table": (table(3, bytes(2)), CorruptObject),
    "no table of any context": (group(lambda g, p: put(g, tables=[bytes(2)] * 6, padding=b"")), CorruptObject),
    "a table more": (group(lambda g, p: put(g, tables=[*g.tables, bytes(2)])), CorruptObject),
    "a table less": (group(lambda g, p: put(g, tables=g.tables[:-1])), CorruptObject),
    "a gap symbol over 47": (table(0, levels(0, *[1] * 49)), CorruptObject),
    "gap symbol 255": (table(0, levels(255, 1)), CorruptObject),
    "a value symbol past 16 bits": (table(3, levels(0, *[1] * 61)), CorruptObject),
    "value symbol 251": (table(3, levels(251, 1)), CorruptObject),
    "a table of 255 symbols": (table(3, levels(0, *[1] * 255)), CorruptObject),
    "a table past symbol 255": (table(3, levels(250, *[1] * 20)), CorruptObject),
    "an empty table that begins late": (table(3, bytes((9, 0))), CorruptObject),
    "a first level of zero": (table(3, levels(0, 0, 1)), CorruptObject),
    "a last level of zero": (table(3, levels(0, 1, 0)), CorruptObject),
    "padding of a table that is not zero": (table(3, bytes((0, 1, 0x21))), CorruptObject),
    "gaps that are all as long as can be": (table(0, levels(47, 31)), CorruptObject),
    "distances that are all as wide as can be": (table(3, levels(58, 31)), CorruptObject),
    # words
    "no words": (words(lambda w: []), CorruptObject),
    "one word": (words(lambda w: w[:1]), CorruptObject),
    "the state alone": (words(lambda w: w[:2]), CorruptObject),
    "a word missing": (words(lambda w: w[:-1]), CorruptObject),
    "a word left over": (words(lambda w: [*w, 0]), CorruptObject),
    "60,000 words left over": (words(lambda w: w + [0] * 60_000), CorruptObject),
    "words of zeros": (words(lambda w: [0] * len(w)), CorruptObject),
    "words of ones": (words(lambda w: [0xFFFF] * len(w)), CorruptObject),
    "another state": (words(lambda w: [0, 0, *w[2:]]), CorruptObject),
    "a chunk of 65,535 words": (group(lambda g, p: put(g, sizes=[65535])), CorruptObject),
    "a chunk of no words": (group(lambda g, p: put(g, sizes=[0])), CorruptObject),
    "two chunks where there is one": (group(lambda g, p: put(g, sizes=[2, g.sizes[0] - 2])), CorruptObject),
    # the directory
    "a group that the layout does not have": (patch(lambda p: p.entries[0].__setitem__(0, 1)), CorruptObject),
    "group 2^32 - 1": (patch(lambda p: p.entries[0].__setitem__(0, 2**32 - 1)), CorruptObject),
    "the same group twice": (
        patch(
            lambda p: put(
                p,
                entries=[p.entries[0], list(p.entries[0])],
                groups=p.groups * 2,
                pulse=p.pulse | {"groups": 2, "changed": 400},
            )
        ),
        CorruptObject,
    ),
    "more groups than entries": (patch(lambda p: put(p, pulse=p.pulse | {"groups": 2})), CorruptObject),
    "2^62 groups": (patch(lambda p: put(p, pulse=p.pulse | {"groups": 2**62})), CorruptObject),
    "no entries": (patch(lambda p: put(p, entries=[], pulse=p.pulse | {"groups": 0, "changed": 0})), CorruptObject),
    "a coder that there is not": (patch(lambda p: p.entries[0].__setitem__(3, 2)), CorruptObject),
    "a group that is longer than the object": (
        patch(lambda p: (p.entries[0].__setitem__(2, 2**31), put(p, rehash=False))),
        CorruptObject,
    ),
    "a group of another hash": (
        patch(lambda p: (p.entries[0].__setitem__(4, bytes(32)), put(p, rehash=False))),
        CorruptObject,
    ),
    "another sum of old cells": (patch(lambda p: p.entries[0].__setitem__(5, 1)), BaseMismatch),
    "another sum of new cells": (patch(lambda p: p.entries[0].__setitem__(7, 1)), BaseMismatch),
    "both sums moved by the same": (
        patch(lambda p: [p.entries[0].__setitem__(n, p.entries[0][n] ^ 1) for n in (5, 7)]),
        BaseMismatch,
    ),
    # the patch's header
    "changed cells that are not the directory's": (patch(lambda p: p.pulse.update(changed=199)), CorruptObject),
    "2^62 changed cells": (patch(lambda p: p.pulse.update(changed=2**62)), CorruptObject),
    "another layout": (patch(lambda p: p.pulse.update(layout="0" * 64)), CorruptObject),
    "another base": (patch(lambda p: p.pulse.update(base=5)), CorruptObject),
    "another target": (patch(lambda p: p.pulse.update(target=5)), CorruptObject),
    "a field too many": (patch(lambda p: p.pulse.update(extra=1)), CorruptObject),
    "a newer format": (patch(lambda p: p.pulse.update(format="pulse-patch/3")), UnsupportedFormat),
    "another format": (patch(lambda p: p.pulse.update(format="pickle")), CorruptObject),
    "a third tensor": (
        patch(lambda p: p.document.update(x={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})),
        CorruptObject,
    ),
    "a header nested 100,000 deep": (header(lambda h: b"[" * 100_000), CorruptObject),
    "metadata nested 100,000 deep": (
        header(lambda h: json.dumps({"__metadata__": {"pulse": "[" * 100_000}}).encode()),
        CorruptObject,
    ),
    "a header that is a list": (header(lambda h: b"[" + h + b"]"), CorruptObject),
    "a header that is a number": (header(lambda h: b"9" * 5000), CorruptObject),
    "a header of nothing": (header(lambda h: b" "), CorruptObject),
    "a header without metadata": (header(lambda h: b"{}"), CorruptObject),
    "metadata that are a list": (header(lambda h: b'{"__metadata__":[1]}'), CorruptObject),
    "metadata that are a number": (header(lambda h: b'{"__metadata__":{"pulse":1}}'), CorruptObject),
    "metadata that are no text": (header(lambda h: b'{"__metadata__":{"pulse":"\\ud800"}}'), CorruptObject),
    "a header that is no UTF-8": (header(lambda h: b"\xff\xfe" + h), CorruptObject),
    "a header in other words": (header(lambda h: h.replace(b":", b": ", 1)), CorruptObject),
    "a header with a key twice": (header(lambda h: h[:-1] + b',"groups":1}'), CorruptObject),
    # the record of the patch
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
        lambda store: store.objects.update({"run/log/000000000002.json": _sealed(b"[]")}),
        CorruptObject,
    ),
    "a record nested 100,000 deep": (
        lambda store: store.objects.update({"run/log/000000000002.json": _sealed(b"[" * 100_000)}),
        CorruptObject,
    ),
}


def _sealed(content: bytes) -> bytes:
    return b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"


def shard(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the bytes of the keyframe's shard, and the hashes of its pieces."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "model-00001")
        data = make(store.objects[key])
        store.objects[key] = data
        edit_record(
            store,
            1,
            lambda r: r["keyframe"]["shards"][0].update(size=len(data), blake3=blake3(data).hexdigest()),
        )
        size = 8 << 20
        hashes = [blake3(data[at : at + size]).hexdigest() for at in range(0, len(data), size)]
        pieces(lambda p: p["blake3"].update({key.rpartition("/")[2]: hashes}))(store)

    return forge


def index(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the bytes of the keyframe's index."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "index")
        data = make(store.objects[key])
        store.objects[key] = data
        edit_record(store, 1, lambda r: r["keyframe"]["index"].update(size=len(data), blake3=blake3(data).hexdigest()))

    return forge


def pieces(edit: Callable[[dict[str, Any]], Any]) -> Forge:
    """Change what the index says of the shards' pieces."""

    def remade(data: bytes) -> bytes:
        document = json.loads(data)
        edit(document["metadata"]["pulse"]["pieces"])
        return canonical_json(document)

    return index(remade)


def hashes(make: Callable[[list[str]], Any]) -> Forge:
    """Change the list of a shard's pieces."""
    return pieces(lambda p: p.update(blake3={name: make(listed) for name, listed in p["blake3"].items()}))


def shard_header(make: Callable[[dict[str, Any]], Any]) -> Forge:
    """Replace the shard's JSON header."""

    def remade(data: bytes) -> bytes:
        (length,) = struct.unpack_from("<Q", data)
        changed = json.dumps(make(json.loads(data[8 : 8 + length])), separators=(",", ":")).encode()
        changed += b" " * (-len(changed) % 8)
        return struct.pack("<Q", len(changed)) + changed + data[8 + length :]

    return shard(remade)


def layout(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Replace the layout by another one, which both records name."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "layouts/")
        document = json.loads(store.objects.pop(key))
        edit(document)
        data = canonical_json(document)
        name = blake3(data).hexdigest()
        store.objects[f"run/layouts/{name}.json"] = data
        for seq in (1, 2):
            edit_record(store, seq, lambda record: record.update(layout=name))

    return forge


def tensor(**values: Any) -> Forge:
    return layout(lambda document: document["tensors"][0].update(values))


KEYFRAME: dict[str, tuple[Forge, type[PulseError] | tuple[type[PulseError], ...]]] = {
    "a shard of 2^62 bytes": (
        first_commit(lambda r: r["keyframe"]["shards"][0].update(size=2**62)),
        CorruptObject,
    ),
    "an index of 2^62 bytes": (first_commit(lambda r: r["keyframe"]["index"].update(size=2**62)), CorruptObject),
    "a shard of no bytes": (shard(lambda data: b""), CorruptObject),
    "a shard of seven bytes": (shard(lambda data: data[:7]), CorruptObject),
    "a shard without its last cell": (shard(lambda data: data[:-2]), CorruptObject),
    "a shard with a cell more": (shard(lambda data: data + b"\0\0"), CorruptObject),
    "a shard whose header is 2^63 bytes": (shard(lambda data: struct.pack("<Q", 2**63) + data[8:]), CorruptObject),
    "a shard whose header ends with the file": (
        shard(lambda data: struct.pack("<Q", len(data) - 8) + data[8:]),
        CorruptObject,
    ),
    "a shard nested 100,000 deep": (
        shard(lambda data: struct.pack("<Q", 100_000) + b"[" * 100_000),
        CorruptObject,
    ),
    "a shard of other tensors": (shard_header(lambda h: {"v": h.pop("w"), **h}), CorruptObject),
    "a shard of no tensors": (shard_header(lambda h: {"__metadata__": {"format": "pt"}}), CorruptObject),
    "a shard without metadata": (shard_header(lambda h: {"w": h["w"]}), CorruptObject),
    "a shard of 1,000 tensors": (
        shard_header(lambda h: h | {f"t{n}": h["w"] for n in range(1000)}),
        CorruptObject,
    ),
    "a shard of 2^62 cells": (
        shard_header(lambda h: h | {"w": h["w"] | {"shape": [2**62], "data_offsets": [0, 2**63]}}),
        CorruptObject,
    ),
    "a shard of the same size and another dtype": (
        shard_header(lambda h: h | {"w": h["w"] | {"dtype": "U16"}}),
        CorruptObject,
    ),
    "a shard of other cells": (shard(lambda data: data[:-2] + b"\1\2"), CorruptObject),
    "an index that is no JSON": (index(lambda data: b"\xff" + data), CorruptObject),
    "an index that is a list": (index(lambda data: b"[" + data + b"]"), CorruptObject),
    "an index nested 100,000 deep": (index(lambda data: b"[" * 100_000), CorruptObject),
    "an index of no bytes": (index(lambda data: b""), CorruptObject),
    "pieces of no bytes": (pieces(lambda p: p.update(size=0)), CorruptObject),
    "pieces of one byte": (pieces(lambda p: p.update(size=1)), CorruptObject),
    "pieces of 2^62 bytes": (pieces(lambda p: p.update(size=2**62)), CorruptObject),
    "pieces of less than nothing": (pieces(lambda p: p.update(size=-8 << 20)), CorruptObject),
    "pieces of another kind": (pieces(lambda p: p.update(sha256={})), CorruptObject),
    "pieces of no shard": (pieces(lambda p: p.update(blake3={})), CorruptObject),
    "pieces of another shard": (
        pieces(lambda p: p.update(blake3={"../" + name: listed for name, listed in p["blake3"].items()})),
        CorruptObject,
    ),
    "no piece": (hashes(lambda listed: []), CorruptObject),
    "a piece twice": (hashes(lambda listed: listed * 2), CorruptObject),
    "20,000 pieces of 4 KiB": (
        pieces(lambda p: p.update(size=4096, blake3={n: ["0" * 64] * 20_000 for n in p["blake3"]})),
        CorruptObject,
    ),
    "a piece whose hash is none": (hashes(lambda listed: ["0" * 63]), CorruptObject),
    "a piece whose hash is a number": (hashes(lambda listed: [0]), CorruptObject),
    "the shard twice": (
        first_commit(
            lambda r: r["keyframe"].update(
                shards=[*r["keyframe"]["shards"], r["keyframe"]["shards"][0] | {"key": "objects/keyframe/x/again"}]
            )
        ),
        PulseError,
    ),
    "no shards": (first_commit(lambda r: r["keyframe"].update(shards=[])), CorruptObject),
    "a layout of 2^62 cells": (tensor(shape=[2**62]), CorruptObject),
    "a layout of 2^124 cells": (tensor(shape=[2**62, 2**62]), CorruptObject),
    "a layout of an empty tensor of 2^62 columns": (tensor(shape=[0, 2**62]), CorruptObject),
    "a layout of 40 dimensions": (tensor(shape=[1] * 40), CorruptObject),
    "a layout of less than nothing": (tensor(shape=[-1]), CorruptObject),
    "a layout of a dtype that there is not": (tensor(dtype="F4"), CorruptObject),
    "a layout of a newer format": (layout(lambda d: d.update(format="pulse-layout/2")), UnsupportedFormat),
    "a layout of no tensors": (layout(lambda d: d.update(tensors=[])), CorruptObject),
    "a layout of a tensor twice": (layout(lambda d: d.update(tensors=d["tensors"] * 2)), CorruptObject),
    "a layout of 2^35 cells": (tensor(shape=[2**35]), LayoutMismatch),
    "a layout of another shape": (tensor(shape=[CELLS // 2, 2]), LayoutMismatch),
}

CLASS: dict[str, tuple[Forge, type[PulseError] | tuple[type[PulseError], ...]]] = {
    "no classes": (group(lambda g, p: put(g, n_classes=0)), CorruptObject),
    "33 classes": (group(lambda g, p: put(g, classes=g.classes + [[0, 0]] * (33 - len(g.classes)))), CorruptObject),
    "255 classes that are not there": (group(lambda g, p: put(g, n_classes=255)), CorruptObject),
    "classes past 255": (
        group(lambda g, p: put(g, first=255, classes=[*g.classes, [0, 0]], padding=bytes(not g.padding))),
        CorruptObject,
    ),
    "counts that add up to less": (group(lambda g, p: g.classes[0].__setitem__(0, g.classes[0][0] - 1)), CorruptObject),
    "counts that add up to 2^32 more": (
        group(lambda g, p: put(g, classes=[*g.classes, [2**31, 1], [2**31, 1]], tables=g.tables * 3)),
        CorruptObject,
    ),
    "a parameter of 128": (group(lambda g, p: g.classes[0].__setitem__(1, 128)), CorruptObject),
    "a parameter of 255": (group(lambda g, p: g.classes[0].__setitem__(1, 255)), CorruptObject),
    "a parameter of a class without changed cells": (
        group(lambda g, p: put(g, classes=[*g.classes, [0, 1]], padding=bytes(not g.padding))),
        CorruptObject,
    ),
    "a class without a table": (table(0, bytes(2)), CorruptObject),
    "a class's value symbol past 16 bits": (table(0, levels(0, *[1] * 61)), CorruptObject),
    "gaps of another class": (
        group(lambda g, p: g.classes[0].__setitem__(1, (g.classes[0][1] + 9) % 128)),
        (BaseMismatch, CorruptObject),
    ),
    "gaps as long as can be": (
        group(lambda g, p: put(g, classes=[[count, 127] for count, _ in g.classes])),
        (BaseMismatch, CorruptObject),
    ),
    "a class that no cell has": (
        group(
            lambda g, p: put(
                g,
                first=100,
                classes=[[0, 0], *g.classes],
                padding=bytes(not g.padding),
            )
        ),
        BaseMismatch,
    ),
    "class words taken for gap words": (patch(lambda p: p.entries[0].__setitem__(3, 0)), CorruptObject),
}
TABLE = (
    [pytest.param("gap", *row, id=name) for name, row in GAP.items()]
    + [pytest.param("gap", *row, id=name) for name, row in KEYFRAME.items()]
    + [pytest.param("class", *row, id=name) for name, row in CLASS.items()]
)
VICTIMS = {coder: victim(coder) for coder in ("gap", "class")}
BY_HASH = [GAP["a group of another hash"][0]]
IN_THE_KEYFRAME = [row[0] for row in KEYFRAME.values()]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    # What the compiler takes on a machine with a cold cache is no part of what an object makes a reader take.
    get_backend("numba").warm_up(2)


@pytest.mark.parametrize(("coder", "forge", "error"), TABLE)
def test_a_hostile_object_is_refused_for_what_it_claims(coder: str, forge: Forge, error: Any) -> None:
    honest, model = VICTIMS[coder]
    store = copied(honest)
    forge(store)
    assert store.objects != honest.objects
    for backend in ("reference", "numba"):
        worker = garbage(model)
        if forge not in IN_THE_KEYFRAME:
            with quick(honest) as registry:
                registry.pull(0, into=worker)
        was = bits(worker)
        with quick(store, backend=backend) as registry:
            if forge not in IN_THE_KEYFRAME:
                with suppress(PulseError):  # where the record itself is hostile, all of the run is refused
                    registry.verify(0, worker)
            tracemalloc.start()
            try:
                with pytest.raises(error) as refusal:
                    registry.pull(1, into=worker)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert bits(worker) == was
        by_hash = re.search("BLAKE3|seal|hash", str(refusal.value))
        assert not by_hash or forge in BY_HASH, "the forger's signature holds: what is refused is the content"
        assert peak < MEMORY, f"{peak} bytes for a model of {2 * CELLS}"


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_the_forger_can_sign_what_is_accepted(coder: str) -> None:
    honest, model = VICTIMS[coder]
    for forge in (
        patch(lambda p: None),
        group(lambda g, p: None),
        words(lambda w: list(w)),
        commit(lambda r: r.update(step=77)),
    ):
        store = copied(honest)
        forge(store)
        into = garbage(model)
        with quick(store) as registry:
            registry.pull(1, into=into)
        assert bits(into) == bits(model), "a forged run is refused for its content alone, not for its signature"


def test_the_forger_can_sign_keyframes_and_layouts_that_are_accepted() -> None:
    honest, model = VICTIMS["gap"]
    for forge in (
        shard(lambda data: data),
        shard_header(lambda h: h),
        index(lambda data: data),
        pieces(lambda p: p.update(size=1 << 20)),
        layout(lambda d: None),
    ):
        store = copied(honest)
        forge(store)
        into = garbage(model)
        with quick(store) as registry:
            registry.pull(1, into=into)
        assert bits(into) == bits(model)


def test_the_table_has_many_rows() -> None:
    assert len(TABLE) >= 100
