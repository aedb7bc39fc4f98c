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
import zstandard
from blake3 import blake3

from pulse_kernels import get_backend
from pulse_registry.errors import BaseMismatch, CorruptObject, LayoutMismatch, PulseError, UnsupportedFormat
from pulse_schemas import canonical_json
from tests.attacks.forge import (
    CELLS,
    GroupParts,
    PatchParts,
    edit_record,
    frame_of,
    key_of,
    last_commit,
    run_length_frame,
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
        parts.runs[0][2] = patch.entries[0][1] = patch.pulse["changed"] = changed

    return edit


def frame(number: int, make: Callable[[bytes], bytes]) -> Forge:
    """Replace a token frame; ``make`` is given the tokens."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        parts.frames[number] = make((parts.gap_tokens, parts.magnitude_tokens)[number])

    return group(edit)


def compressed(tokens: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(tokens)


def tokens(number: int, make: Callable[[bytes], bytes]) -> Forge:
    """Replace the tokens themselves; the frame fits."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        name = ("gap_tokens", "magnitude_tokens")[number]
        setattr(parts, name, make(getattr(parts, name)))

    return group(edit)


def run(number: int, value: int) -> Callable[[GroupParts, PatchParts], None]:
    """Set one field of the first run: its class (0), its shift (1) or its count (2)."""
    return lambda parts, patch: parts.runs[0].__setitem__(number, value)


def header(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the JSON header of the patch by any bytes."""

    def edit(parts: PatchParts) -> None:
        honest = PatchParts(parts.store)
        length = struct.unpack_from("<Q", honest.store.objects[honest.key])[0]
        parts.raw_header = make(honest.store.objects[honest.key][8 : 8 + length].rstrip())

    return patch(edit)


GAP: dict[str, tuple[Forge, type[PulseError] | tuple[type[PulseError], ...]]] = {
    # the group's head and run table
    "one changed cell more than there are tokens": (group(claim(201)), CorruptObject),
    "as many changed cells as the group has": (group(claim(CELLS)), CorruptObject),
    "more changed cells than the group has": (group(claim(CELLS + 1)), CorruptObject),
    "2^32 - 1 changed cells": (group(claim(2**32 - 1)), CorruptObject),
    "no changed cell": (group(claim(0)), CorruptObject),
    "a run table that adds up to less": (group(run(2, 199)), CorruptObject),
    "a run table that adds up to 2^32 more": (
        group(lambda g, p: put(g, runs=[[0, 4, 200], [1, 4, 2**31], [2, 4, 2**31]])),
        CorruptObject,
    ),
    "no run": (group(lambda g, p: put(g, n_runs=0)), CorruptObject),
    "65,535 runs": (group(lambda g, p: put(g, n_runs=65535)), CorruptObject),
    "two runs where there is one": (group(lambda g, p: put(g, runs=[[0, 0, 100], [1, 0, 100]])), CorruptObject),
    "a run of a class that has none": (group(run(0, 7)), CorruptObject),
    "a shift of 25": (group(run(1, 25)), CorruptObject),
    "a shift of 255": (group(run(1, 255)), CorruptObject),
    "something in the field that is zero": (group(lambda g, p: put(g, zero=1)), CorruptObject),
    "a frame of 2^32 - 1 bytes": (group(lambda g, p: put(g, sizes=[2**32 - 1, None, None])), CorruptObject),
    "raw bits one byte longer than they are": (group(lambda g, p: put(g, sizes=[None, None, 10**6])), CorruptObject),
    "a group of no bytes": (patch(lambda p: put(p, groups=[b""])), CorruptObject),
    "a group that ends in its head": (patch(lambda p: put(p, groups=[p.groups[0][:15]])), CorruptObject),
    "a group with junk behind it": (patch(lambda p: put(p, groups=[p.groups[0] + b"\0"])), CorruptObject),
    # zstd frames
    "a frame that declares 2^50 gap tokens": (frame(0, lambda t: frame_of(2**50, t)), CorruptObject),
    "a frame that declares 2^50 magnitudes": (frame(1, lambda t: frame_of(2**50, t)), CorruptObject),
    "a frame that declares 2^64 - 2 tokens": (frame(0, lambda t: frame_of(2**64 - 2, t)), CorruptObject),
    "a frame with a token more, declared": (frame(0, lambda t: compressed(t + b"\0")), CorruptObject),
    "a frame with a token less, declared": (frame(1, lambda t: compressed(t[:-1])), CorruptObject),
    "a frame with a token more than it declares": (frame(0, lambda t: frame_of(200, t + b"\0")), CorruptObject),
    "a frame with a token less than it declares": (frame(0, lambda t: frame_of(200, t[:-1])), CorruptObject),
    "a frame that declares nothing": (frame(0, lambda t: compressed(t, write_content_size=False)), CorruptObject),
    "a bomb of 1 GiB, declared": (frame(0, lambda t: run_length_frame(2**30)), CorruptObject),
    "a bomb of 1 GiB that declares 200 tokens": (
        frame(0, lambda t: b"\x28\xb5\x2f\xfd\xe0" + (200).to_bytes(8, "little") + run_length_frame(2**30)[13:]),
        CorruptObject,
    ),
    "a frame with junk behind it": (frame(0, lambda t: compressed(t) + b"junk"), CorruptObject),
    "two frames": (frame(0, lambda t: compressed(t) + compressed(b"")), CorruptObject),
    "two frames of half the tokens": (frame(0, lambda t: compressed(t[:100]) + compressed(t[100:])), CorruptObject),
    "a frame to be skipped before the frame": (
        frame(0, lambda t: b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"junk" + compressed(t)),
        CorruptObject,
    ),
    "no frame": (frame(0, lambda t: b""), CorruptObject),
    "something else than a frame": (frame(1, lambda t: t), CorruptObject),
    "a frame cut short": (frame(0, lambda t: compressed(t)[:-3]), CorruptObject),
    "a frame for a dictionary": (
        frame(
            0,
            lambda t: compressed(
                t, dict_data=zstandard.ZstdCompressionDict(b"dictionary" * 20, zstandard.DICT_TYPE_RAWCONTENT)
            )[:-2],
        ),
        CorruptObject,
    ),
    # tokens and raw bits
    "positions past the end": (tokens(0, lambda t: bytes([191]) * len(t)), CorruptObject),
    "a gap of 2^63": (tokens(0, lambda t: bytes([248]) + t[1:]), CorruptObject),
    "a gap token that is none": (tokens(0, lambda t: bytes([255]) + t[1:]), CorruptObject),
    "a distance of 2^63": (tokens(1, lambda t: bytes([248]) + t[1:]), CorruptObject),
    "a distance of 2^17": (tokens(1, lambda t: bytes([184 + 18]) + t[1:]), CorruptObject),
    "a magnitude token that is none": (tokens(1, lambda t: t[:-1] + bytes([255])), CorruptObject),
    "a byte of raw bits left over": (group(lambda g, p: put(g, bits=g.bits + b"\0")), CorruptObject),
    "padding that is not zero": (group(lambda g, p: put(g, bits=g.bits + b"\x80")), CorruptObject),
    "raw bits that end too early": (group(lambda g, p: put(g, bits=g.bits[:-1])), CorruptObject),
    "no raw bits": (group(lambda g, p: put(g, bits=b"")), CorruptObject),
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
    "a newer format": (patch(lambda p: p.pulse.update(format="pulse-patch/2")), UnsupportedFormat),
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
    "classes out of order": (
        group(lambda g, p: g.runs.reverse()),
        CorruptObject,
    ),
    "a class twice": (group(lambda g, p: g.runs[1].__setitem__(0, g.runs[0][0])), CorruptObject),
    "a class of no cell": (
        group(lambda g, p: put(g, runs=[*g.runs, [255, 0, 0]])),
        CorruptObject,
    ),
    "257 classes": (
        group(lambda g, p: put(g, runs=[[n % 256, 0, 1] for n in range(257)])),
        CorruptObject,
    ),
    "a class that no cell has": (group(lambda g, p: g.runs[-1].__setitem__(0, 31)), BaseMismatch),
    "ranks past the cells of the class": (
        group(lambda g, p: put(g, runs=[[kind, min(24, shift + 3), n] for kind, shift, n in g.runs])),
        (BaseMismatch, CorruptObject),
    ),
    "another class's ranks": (
        group(lambda g, p: [r.__setitem__(0, r[0] + 1) for r in reversed(g.runs)]),
        (BaseMismatch, CorruptObject),
    ),
    "class tokens taken for gap tokens": (patch(lambda p: p.entries[0].__setitem__(3, 0)), CorruptObject),
    "more runs than the group holds": (group(lambda g, p: put(g, n_runs=200)), CorruptObject),
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
        frame(0, lambda t: frame_of(len(t), t)),
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
