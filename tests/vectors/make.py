"""Write the test vectors: ``python -m tests.vectors.make``.

They are for other implementations of docs/spec.md. All bytes are hex, cells little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pulse_kernels import CELL_TYPES, Cells, CoderName, Index, encode_group, get_backend
from pulse_kernels.format.exponents import encode_cells
from pulse_kernels.format.frequencies import frequencies, levels_of, store_table
from pulse_kernels.format.gap_tables import geometric_table, geometric_tables
from pulse_kernels.format.outer_state import encode_state
from pulse_kernels.protocol import OuterRates
from pulse_kernels.select import exponent_loops, outer_loops
from pulse_registry.bases.content import base_id, content_hash, placed
from pulse_registry.format import keys
from pulse_registry.format.keyframe import index_document, pulse_metadata, shards_of
from pulse_registry.format.merged import merged_bytes
from pulse_registry.format.outer_checkpoint import checkpoint_head_bytes, group_entry
from pulse_registry.format.pieces import Pieces
from pulse_registry.format.segment import COLUMNS
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.log import RunState, sealed_hash
from pulse_registry.log.block import Block
from pulse_registry.log.fold import advance
from pulse_registry.log.segmented import snapshot_of
from pulse_registry.log.segments import Ids, Segment, cut, encoded, lines_of, live_ids, table_of
from pulse_registry.log.tables import Tables
from pulse_registry.outer.mean import GroupLevels
from pulse_registry.outer.snapshot import snapshot_of as outer_snapshot_of
from pulse_registry.outer.state import OuterState
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.signing import SigningKey
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_registry.weights.model import layout_of, read_model
from pulse_schemas import (
    DTYPE_ORDER,
    CommitRecord,
    Countersignature,
    EpochRecord,
    FileEntry,
    FileSet,
    Home,
    KeyframeRef,
    Layout,
    ObjectRef,
    PatchRef,
    Tensor,
)
from pulse_schemas.outer import DeleteRoundsRecord, MoveRoundsRecord, RestartRecord
from tests.support import outer_objects
from tests.support.outer_objects import every_outer_kind
from tests.support.patches import encode_patch
from tests.support.records import LAYOUT, Script, every_kind, keyframe

FOLDER = Path(__file__).parent
REFERENCE = get_backend("reference")
FIRST_DTYPES = [dtype for dtype in DTYPE_ORDER if dtype not in ("F8_E8M0", "F4")]
"""Those of ``pulse-layout/1``, in their order."""
Document = dict[str, Any]
_FIRST_SNAPSHOT = 6
"""Records that the first of two segments is of."""
CONFIG = b'{"model_type":"llama"}'


def layouts() -> Document:
    """Layouts, their canonical bytes and their ids."""
    made = {
        "one tensor": Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(2, 3)),)),
        "order, scalars, empty and tied tensors, names beyond ASCII": Layout(
            tensors=(
                Tensor(name="steps", dtype="I64", shape=()),
                Tensor(name="b", dtype="F32", shape=(4,)),
                Tensor(name="a", dtype="BF16", shape=(0, 7)),
                Tensor(name="embed.weight", dtype="BF16", shape=(5, 2)),
                Tensor(name="poids.é", dtype="BF16", shape=(1,)),
                Tensor(name="mask", dtype="BOOL", shape=(3,)),
            ),
            tied={"head.weight": "embed.weight"},
        ),
        "every dtype": Layout(
            tensors=tuple(Tensor(name=f"t{n}", dtype=dtype, shape=(n,)) for n, dtype in enumerate(FIRST_DTYPES))
        ),
        "dtypes of the second format, among others": layout_of(read_model(small_floats()), "keep"),
    }
    return {
        "layouts": [
            {
                "about": about,
                "layout": _document(layout),
                "bytes": layout.canonical().hex(),
                "id": layout.id,
            }
            for about, layout in made.items()
        ]
    }


def records() -> Document:
    """Records, chained: their fields, their sealed bytes and the hashes of these; and the files that one names."""
    common = {"run": "math", "epoch": 1, "created_at": "2026-01-02T03:04:05.678Z"}
    first = EpochRecord(**common, seq=0, write_id="0" * 31 + "1", previous=None, writer="host:1 – é")
    shard = ObjectRef(key="objects/keyframe/000000000000-a/model-00001-of-00001.safetensors", size=80, blake3="2" * 64)
    index = ObjectRef(key="objects/keyframe/000000000000-a/model.safetensors.index.json", size=90, blake3="3" * 64)
    second = CommitRecord(
        **common,
        seq=1,
        write_id="0" * 31 + "2",
        previous=blake3(first.seal()).hexdigest(),
        version=0,
        step=-7,
        parent=None,
        layout="4" * 64,
        patch=None,
        keyframe=KeyframeRef(version=0, index=index, shards=(shard,)),
        digest="0123456789abcdef" * 2,
        changed=6,
        cells=6,
        metadata={"reward": 0.1, "nested": {"z": [1, None, True], "a": "é"}, "large": 1e22},
    )
    third = CommitRecord(
        **common,
        seq=2,
        write_id="0" * 31 + "3",
        previous=blake3(second.seal()).hexdigest(),
        version=1,
        step=8,
        parent=0,
        layout="4" * 64,
        patch=PatchRef(
            base=0,
            target=1,
            coder="class",
            changed=2,
            object=ObjectRef(key="objects/patch/a.safetensors", size=500, blake3="5" * 64),
            head_size=400,
            head_blake3="6" * 64,
        ),
        keyframe=None,
        digest="f" * 32,
        changed=2,
        cells=6,
    )
    files = FileSet(
        files={
            "config.json": FileEntry(size=len(CONFIG), blake3=blake3(CONFIG).hexdigest()),
            "merges.txt": FileEntry(size=0, blake3=blake3(b"").hexdigest()),
        }
    )
    fourth = CommitRecord(
        **common,
        seq=3,
        write_id="0" * 31 + "4",
        previous=blake3(third.seal()).hexdigest(),
        version=2,
        step=9,
        parent=1,
        layout="4" * 64,
        patch=PatchRef(
            base=1,
            target=2,
            coder="gap",
            changed=0,
            object=ObjectRef(key="objects/patch/b.safetensors", size=300, blake3="7" * 64),
            head_size=300,
            head_blake3="7" * 64,
        ),
        keyframe=None,
        digest="f" * 32,
        changed=0,
        cells=6,
        files=files.id,
    )
    return {
        "file_set": {
            "contents": {"config.json": CONFIG.hex(), "merges.txt": ""},
            "document": files.model_dump(mode="json"),
            "bytes": files.canonical().hex(),
            "id": files.id,
        },
        "records": [
            {
                "fields": {"format": record.format, **record.model_dump(mode="json")},
                "bytes": record.seal().hex(),
                "blake3": blake3(record.seal()).hexdigest(),
            }
            for record in (first, second, third, fourth)
        ],
    }


def segments() -> Document:
    """A log's records, and the snapshot of all of them in two segments, the first of which has dead rows.

    Segments have zstd frames that pack nothing, so that they do not depend on a release of zstd.
    """
    return _of_segments(every_kind(moved=False), _FIRST_SNAPSHOT)


def moves() -> Document:
    """A log whose run has moved, and a snapshot of it; what proves the move at its home; and the outer record of it."""
    log = every_kind()
    home = log.state.home
    if home is None:
        raise RuntimeError("no record moves the run")
    rounds = every_outer_kind()[-1]
    outer_move = MoveRoundsRecord(
        run=rounds.run, seq=rounds.seq + 1, write_id=home.move, previous=blake3(rounds.seal()).hexdigest(),
        created_at=rounds.created_at, to=home.to,
    )  # fmt: skip
    proof = Home(run=log.run, move=home.move)
    return {
        **_of_segments(log, home.seq),
        "home": {"fields": {"format": proof.format, **proof.model_dump(mode="json")}, "bytes": proof.seal().hex()},
        "outer": {
            "fields": {"format": outer_move.format, **outer_move.model_dump(mode="json")},
            "bytes": outer_move.seal().hex(),
        },
    }


def restarts() -> Document:
    """Outer rounds that begin anew after somebody else's push: the record, and the snapshot that it leads to."""
    records = every_outer_kind()
    made = RestartRecord(
        run=records[-1].run, seq=len(records), write_id="e" * 32, previous=blake3(records[-1].seal()).hexdigest(),
        created_at=records[-1].created_at, round=6, digest="9" * 32,
    )  # fmt: skip
    state = OuterState(made.run)
    for record in (*records, made):
        state.advance(record, blake3(record.seal()).hexdigest())
    snapshot = outer_snapshot_of(state)
    if snapshot is None:
        raise RuntimeError("the rounds have not begun")
    return {
        name: {
            "fields": {"format": one.format, **one.model_dump(mode="json")},
            "bytes": one.seal().hex(),
        }
        for name, one in (("record", made), ("snapshot", snapshot))
    }


def bases() -> Document:
    """A shared base: what its id is the hash of; and a log that begins with it and retires it, with a snapshot."""
    files = [("model.safetensors.index.json", 90, "3" * 64), ("model-00001-of-00001.safetensors", 80, "2" * 64)]
    index, shard = (ObjectRef(key=f"objects/x/{name}", size=size, blake3=digest) for name, size, digest in files)
    own = KeyframeRef(version=5, index=index, shards=(shard,))
    content = {"digest": "f" * 32, "files": [list(file) for file in files], "layout": LAYOUT}
    id_ = base_id(content_hash(LAYOUT, "f" * 32, own), 0)
    log = Script("math").epoch().commit(keyframe=placed(own, id_, 0)).commit()
    named = snapshot_of(log.state, ())
    log.attach(keyframes=(keyframe(1),)).retire(versions=(0,), keys=(f"_bases/{id_}/{files[0][0]}",)).delete()
    return {
        "content": content,
        "id": id_,
        "named": {"format": named.format, **named.model_dump(mode="json")}["shared_bases"],
        **_of_segments(log, 3),
    }


def _of_segments(log: Script, first: int) -> Document:
    half, whole = RunState("math"), log.state
    for record in log.records[:first]:
        advance(half, record, sealed_hash(record.seal()))
    made = [_segment(half, live_ids(half.tables))]
    late = {name: ids[~np.isin(ids, made[0][0].ids[name])] for name, ids in live_ids(whole.tables).items()}
    made.append(_segment(whole, late))
    snapshot = snapshot_of(whole, [segment for segment, _ in made])
    return {
        "records": [record.seal().hex() for record in log.records],
        "snapshot": {
            "fields": {"format": snapshot.format, **snapshot.model_dump(mode="json")},
            "bytes": snapshot.seal().hex(),
        },
        "segments": [{"key": segment.key, "bytes": data.hex()} for segment, data in made],
        "state": {name: list(map(json.loads, rows)) for name, rows in _rows(whole.tables).items()},
    }


def _segment(state: RunState, wanted: Ids) -> tuple[Segment, bytes]:
    (content,) = cut(state.tables, wanted)
    packed = {
        name: replace(table, blocks=tuple((rows, _unpacked(Block(rows, frame))) for rows, frame in table.blocks))
        for name, table in content.items()
    }
    return encoded(state.seq, packed)


def _unpacked(block: Block) -> bytes:
    """Return a block's frame as one that states its length in four bytes, and has one raw block (RFC 8878)."""
    content = b"".join(line + b"\n" for line in block.lines())
    header = struct.pack("<IBI", 0xFD2FB528, 0b1010_0000, len(content))
    return header + (len(content) << 3 | 1).to_bytes(3, "little") + content


def _rows(tables: Tables) -> dict[str, Iterator[bytes]]:
    found = {name: table_of(tables, name) for name in COLUMNS}
    return {name: lines_of(table, np.flatnonzero(table.alive)) for name, table in found.items()}


def signatures() -> Document:
    """A private key, and a record that it signed: message, signature, sealed bytes; and a countersignature."""
    private = bytes(range(32))
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(private))
    record = EpochRecord(
        run="math",
        epoch=1,
        created_at="2026-01-02T03:04:05.678Z",
        seq=0,
        write_id="0" * 31 + "1",
        previous=None,
        writer="host:1",
    )
    body = record.canonical()
    said = Countersignature(run="math", seq=0, record=blake3(record.seal()).hexdigest())
    return {
        "signatures": [
            {
                "private": private.hex(),
                "key": key.public,
                "message": (b"pulse-signed/1\n" + body).hex(),
                "value": key.sign(body).value.hex(),
                "bytes": record.seal(key).hex(),
                "blake3": blake3(record.seal(key)).hexdigest(),
            }
        ],
        "countersignatures": [
            {
                "private": private.hex(),
                "record": record.seal().hex(),
                "key": key.public,
                "message": (b"pulse-signed/1\n" + said.canonical()).hex(),
                "bytes": said.seal(key).hex(),
            }
        ],
    }


def digests() -> Document:
    """Cells at flat indices, and the two lanes of their digest."""
    cases = []
    for width in (1, 2, 4, 8):
        for start in (0, 1, 1020, 2**32 - 2, 2**40 + 1023):
            cells = _cells(width, 6, start)
            cases.append((width, start, cells, REFERENCE.digest(cells, start)))
        ones = np.full(3, (1 << (8 * width)) - 1, f"<u{width}")
        cases.append((width, 1023, ones, REFERENCE.digest(ones, 1023)))
    return {
        "digests": [
            {"width": width, "start": start, "cells": cells.tobytes().hex(), "digest": f"{a:016x}{b:016x}"}
            for width, start, cells, (a, b) in cases
        ]
    }


def casts() -> Document:
    """float32 patterns and the BF16 patterns that they are published as."""
    patterns = [0x00000000, 0x80000000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000]
    patterns += [0xFF800000, 0x00008000, 0x00008001, 0x807F8000, 0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0xFF812345]
    out = np.empty(len(patterns), np.uint16)
    REFERENCE.cast_f32(np.array(patterns, np.uint32), out)
    return {"casts": [{"f32": f"{a:08x}", "bf16": f"{b:04x}"} for a, b in zip(patterns, out.tolist(), strict=True)]}


def distances() -> Document:
    """Old and new patterns of each dtype, and the distance between them."""
    made = []
    for name, cell_type in CELL_TYPES.items():
        sign, top = 1 << (cell_type.bits - 1), (1 << cell_type.bits) - 1
        pairs = [(0, 1), (1, 0), (sign, 0), (0, sign), (sign - 1, sign), (top, 0), (sign + 5, 3), (top, sign - 1)]
        old, new = (np.array(column, cell_type.dtype) for column in zip(*pairs, strict=True))
        found = REFERENCE.distance(old, new, cell_type)
        digits = 2 * cell_type.width
        for a, b, d in zip(old.tolist(), new.tolist(), found.tolist(), strict=True):
            made.append(
                {"dtype": name, "old": f"{a:0{digits}x}", "new": f"{b:0{digits}x}", "distance": f"{d:0{digits}x}"}
            )
    return {"distances": made}


def tables() -> Document:
    """Counts, their levels, the bytes of the table and its frequencies; and some of the geometric tables."""
    cases = [[1], [0, 0, 5], [1, 1, 1], [100, 0, 1, 0, 3, 2], [3, 1000, 500, 250, 125, 62, 31, 15, 7], [1] * 252]
    cases.append([round(10_000 * 0.8**k) for k in range(48)])
    return {
        "tables": [
            {"counts": counts, "levels": levels, "bytes": store_table(levels).hex(), "frequencies": frequencies(levels)}
            for counts in cases
            for levels in [levels_of(counts)]
        ],
        "geometric": [{"parameter": j, "frequencies": geometric_table(j)} for j in (0, 1, 31, 32, 33, 60, 90, 127)],
        "geometric_blake3": blake3(geometric_tables().astype("<u2").tobytes()).hexdigest(),
    }


def groups() -> Document:
    """Coded groups: old cells, changes, and their bytes with each coder."""
    few = np.array([0, 1, 63, 64, 65, 130, 131, 250, 299], np.uint32)
    every = np.arange(2200, dtype=np.uint32)
    place = np.arange(2200)
    made = [
        ("a few changes", "BF16", 300, few, [1, 0xFFFF, 2, 1, 0xFF00, 300, 1, 0x8000, 0x7FFF]),
        ("the widest distances", "I64", 300, few, [2**63 - 1, 2**63, 1, 2**64 - 1, 2**32, 2**40 + 5, 9, 2**62 + 3, 15]),
        ("bytes, far apart", "U8", 2**21, np.array([0, 2**21 - 1], np.uint32), [127, 128]),
        ("two chunks, every cell", "BF16", 2200, every, np.where(place % 3, 1, 0xFFFF - place % 40).tolist()),
        ("one-byte floats", "F8_E4M3", 2200, every[::2], (place[::2] % 9 * 29 % 255 + 1).tolist()),
    ]
    return {"groups": [_group(*case) for case in made]}


def _group(about: str, dtype: str, cells: int, index: Index, steps: list[int]) -> Document:
    cell_type = CELL_TYPES[dtype]
    base = np.zeros(cells, cell_type.dtype) if cells > 10_000 else _cells(cell_type.width, cells, 0)
    if dtype == "BF16":
        base = (base & 0x81FF) | 0x3C00
    distance = np.array(steps, cell_type.dtype)
    change = index, base[index], REFERENCE.move(base[index], distance, cell_type)
    coders: tuple[CoderName, ...] = ("gap", "class")
    return {
        "about": about,
        "dtype": dtype,
        "cells": cells,
        "base": base.tobytes().hex() if base.any() else "zeros",
        "index": index.astype("<u4").tobytes().hex(),
        "distance": distance.tobytes().hex(),
        **{coder: encode_group(REFERENCE, coder, cell_type, cells, *change, [base]).hex() for coder in coders},
    }


def small_model() -> dict[str, np.ndarray[Any, Any]]:
    """Return a model of four dtypes, with a scalar, an empty tensor and a tied name."""
    embed = (np.arange(40, dtype=np.uint16) * 129 + 0x3B80).astype("<u2").view(ml_dtypes.bfloat16).reshape(8, 5)
    return {
        "embed": embed,
        "head": embed,
        "none": np.zeros((0, 3), np.float32),
        "scale": np.array(1.5, np.float32),
        "steps": np.array([1, -1, 2**40], np.int64),
        "bytes": np.arange(9, dtype=np.uint8),
    }


def small_floats() -> dict[str, np.ndarray[Any, Any]]:
    """Return a model with one-byte scales and pairs of four-bit floats, among dtypes that they are sorted between."""
    pairs = _cells(1, 12, 5).view(numpy_dtype("F4")).reshape(3, 4)
    return {
        "bias": np.arange(4, dtype=np.uint16).view(ml_dtypes.bfloat16),
        "scales": np.arange(120, 126, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).reshape(3, 2),
        "other.scales": _cells(1, 3, 6).view(ml_dtypes.float8_e4m3fn),
        "bytes": _cells(1, 3, 7),
        "pairs": pairs,
        "mask": np.array([True, False]),
    }


def patches() -> Document:
    """Whole patch objects of each coder from one small model to another, with what a record would say of them."""
    old = small_model()
    new = {name: array.copy() for name, array in old.items() if name != "head"}
    new["head"] = new["embed"]
    cells = new["embed"].view(np.uint16)
    cells.flat[[0, 7, 8, 39]] ^= np.array([1, 0x8000, 3, 0x7F80], np.uint16)
    new["scale"][...] = -1.5
    new["steps"][1] = 2**62
    geometry = Geometry(layout_of(read_model(old), "keep"))
    before, after = (_weights(geometry, model) for model in (old, new))
    changes = [
        SparseUpdate(group, *REFERENCE.diff(after.copy_of(group), before.copy_of(group))) for group in geometry.groups
    ]
    made = []
    for coder in ("gap", "class"):
        file = encode_patch(
            REFERENCE,
            geometry,
            4,
            5,
            changes,
            coder=coder,
            base_cells=before.spans,  # type: ignore[arg-type]
        )
        data = b"".join((file.head, *file.groups))
        made.append({"ref": file.ref("objects/patch/example.safetensors").model_dump(mode="json"), "bytes": data.hex()})
    return {
        "layout": _document(geometry.layout),
        "old": _flat(before),
        "old_digest": before.digest(REFERENCE, map).hex(),
        "new": _flat(after),
        "new_digest": after.digest(REFERENCE, map).hex(),
        "patches": made,
    }


def patch_parts() -> Document:
    """A patch in parts of a layout of 130 groups, of which four change; and the record that commits it."""
    cells = 2**23  # of a group
    layout = Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(129 * cells + 5,)),))
    geometry = Geometry(layout)
    places = {0: [0, 7, cells - 1], 63: [1], 64: [0, 1, 2], 129: [4]}
    changes, listed = [], []
    for number, index in places.items():
        new = np.arange(1, len(index) + 1, dtype=np.uint16) * 257
        changes.append(SparseUpdate(geometry.groups[number], np.array(index, np.uint32), np.zeros_like(new), new))
        listed += [[number * cells + i, 0, int(cell)] for i, cell in zip(index, new, strict=True)]
    file = encode_patch(REFERENCE, geometry, 0, 1, changes)
    head_key = keys.patch_head_key(0, 1, "0" * 31 + "3")
    ref, at, objects = file.ref(head_key), 0, {head_key: file.head}
    for part, groups in groupby(file.directory.values(), lambda entry: entry.group // 64):
        count = len([*groups])
        objects[keys.part_key(head_key, part)] = b"".join(file.groups[at : at + count])
        at += count
    record = CommitRecord(
        run="math",
        epoch=1,
        created_at="2026-01-02T03:04:05.678Z",
        seq=2,
        write_id="0" * 31 + "3",
        previous="7" * 64,
        version=1,
        step=8,
        parent=0,
        layout=layout.id,
        patch=ref,
        keyframe=None,
        digest=file.delta.hex(),
        changed=file.changed,
        cells=geometry.cells,
    )
    return {
        "layout": _document(layout),
        "changes": listed,
        "objects": {key: data.hex() for key, data in objects.items()},
        "file": b"".join((file.head, *file.groups)).hex(),
        "record": {
            "fields": {"format": record.format, **record.model_dump(mode="json")},
            "bytes": record.seal().hex(),
            "blake3": blake3(record.seal()).hexdigest(),
        },
    }


def keyframes() -> Document:
    """The files of a keyframe of the small model, in two shards."""
    return _keyframe(small_model(), 100)


def keyframes_of_small_floats() -> Document:
    """The file of a keyframe whose layout is of the second format, and its index."""
    return _keyframe(small_floats(), 1000)


def _keyframe(model: dict[str, np.ndarray[Any, Any]], shard_bytes: int) -> Document:
    geometry = Geometry(layout_of(read_model(model), "keep"))
    weights = _weights(geometry, model)
    shards = shards_of(geometry, shard_bytes)
    files = {
        shard.name: shard.header + b"".join(weights.arrays[n].tobytes() for n in range(shard.first, shard.last))
        for shard in shards
    }
    pieces = Pieces(size=4096, blake3={name: (blake3(data).hexdigest(),) for name, data in files.items()})
    index = index_document(geometry, shards, pulse_metadata(geometry, 5, pieces))
    return {
        "layout": _document(geometry.layout),
        "version": 5,
        "shard_bytes": shard_bytes,
        "cells": _flat(weights),
        "files": {name: data.hex() for name, data in {**files, "model.safetensors.index.json": index}.items()},
    }


def exponents() -> Document:
    """Coded BF16 cells: of few exponents, of any, of one, and none."""
    loops = exponent_loops("reference")
    usual = _cells(2, 100, 1) & 0x807F | (112 + (_cells(2, 100, 2) % 9).astype(np.uint16)) << 7
    cases = {
        "few exponents": usual,
        "any": _cells(2, 50, 3),
        "one": np.full(17, 0x3F80, np.uint16),
        "none": usual[:0],
    }
    made = [
        {"name": name, "cells": cells.tobytes().hex(), "coded": encode_cells(loops, cells, loops.fit(cells)).hex()}
        for name, cells in cases.items()
    ]
    return {"cases": made}


def outer() -> Document:
    """Outer records of every kind, chained; contributions of levels and of values; and the step of the first round."""
    chained = every_outer_kind()
    last = chained[-1]
    deleted = DeleteRoundsRecord(
        run=last.run, seq=last.seq + 1, write_id="f" * 32, previous=blake3(last.seal()).hexdigest(),
        created_at=last.created_at, round=2,
    )  # fmt: skip
    geometry = outer_objects.GEOMETRY
    state = OuterWeights(geometry, REFERENCE, outer_loops("reference"))
    state.begin(lambda group: outer_objects.weights(group)[0].copy())
    held = {tensor.name: b"" for tensor in geometry.layout.tensors}
    flat = outer_objects.weights(geometry.groups[0])[0]
    at = 0
    for tensor, size in zip(geometry.layout.tensors, geometry.sizes, strict=True):
        held[tensor.name] = flat[at : at + size].tobytes()
        at += size
    ((group, index, first),) = outer_objects.levels()
    second = [(group, index[1::2] + np.uint32(1), np.where(first[1::2] < 0, 9, -2).astype(np.int16))]
    sent = {
        "levels": (outer_objects.levels(), {"exponent": -20}),
        "fewer levels, of another exponent": (second, {"exponent": -17, "member": "us-1"}),
        "float32 values": (outer_objects.values(), {}),
    }
    weights = {"levels": 8, "fewer levels, of another exponent": 3}
    parts = [
        GroupLevels(part[1], part[2], int(said["exponent"]), weights[about])
        for about, ((part,), said) in sent.items()
        if about in weights
    ]
    before = state.digest().hex()
    rates = outer_objects.RATES
    # A third member has sent nothing: 8 inner steps.
    state.step({0: parts}, -20, 8 + 3 + 8, OuterRates(rates.rate, rates.momentum))
    return {
        "layout": _document(geometry.layout),
        "weights": {name: data.hex() for name, data in held.items()},
        "digest": before,
        "records": [
            {
                "fields": {"format": record.format, **record.model_dump(mode="json")},
                "bytes": record.seal().hex(),
                "blake3": blake3(record.seal()).hexdigest(),
            }
            for record in (*chained, deleted)
        ],
        "contributions": [
            {
                "about": about,
                "sent": [
                    [group.start + int(i), int(cell)]
                    for i, cell in zip(part[1], part[2].view(f"<u{part[2].itemsize}"), strict=True)
                ],
                "bytes": outer_objects.contribution([part], **{"base": before, **said}).hex(),
            }
            for about, ((part,), said) in sent.items()
        ],
        "step": {
            "contributions": [{"about": about, "weight": weight} for about, weight in weights.items()],
            "weight": 8 + 3 + 8,
            "rates": rates.model_dump(mode="json"),
            "theta": state.theta.astype("<f4").tobytes().hex(),
            "momentum": state.momentum.astype("<f4").tobytes().hex(),
            "digest": state.digest().hex(),
        },
    }


def outer_state() -> Document:
    """A group of a checkpoint, with ties, zeros and subnormal numbers, and its head; and merged contributions."""
    geometry = outer_objects.GEOMETRY
    [group] = geometry.groups
    drawn = np.frombuffer(blake3(b"outer state").digest(length=8 * group.cells), "<u4").reshape(2, -1) & 0xBFFFFFFF
    theta, momentum = (column.astype(np.uint32) for column in drawn)
    edges = [0, 0x80000000, 1, 0x80000001, 0x00008000, 0x00018000, 0x80018000, 0x3F808000, 0x3F818000, 0x7F7FFFFF]
    theta[: len(edges)], momentum[: len(edges)] = edges, edges[::-1]
    theta[20:60] &= np.uint32(0xFFFF0000)
    momentum[40:90] = 0
    version = np.empty(group.cells, np.uint16)
    REFERENCE.cast_f32(theta, version)
    data, touched = encode_state(exponent_loops("reference"), version, theta, momentum)
    sums = [Digest(*REFERENCE.digest(cells, 0)) for cells in (theta, momentum)]
    base = Digest(*REFERENCE.digest(version, 0)).hex()
    head = checkpoint_head_bytes(geometry.id, base, 5, [group_entry(0, touched, data, sums[0], sums[1])])
    index = np.arange(0, group.cells, 3, dtype=np.uint32)
    totals = {
        str(bits): np.array(
            [(k * 7919 + 1) % 2 ** (bits - 1) - 2 ** (bits - 2) or 1 for k in range(len(index))], np.int64
        )
        for bits in (16, 32, 64)
    }
    return {
        "layout": _document(geometry.layout),
        "version": version.tobytes().hex(),
        "digest": base,
        "checkpoint": {
            "round": 5,
            "theta": theta.tobytes().hex(),
            "momentum": momentum.tobytes().hex(),
            "digests": [one.hex() for one in sums],
            "touched": touched,
            "group": data.hex(),
            "head": head.hex(),
        },
        "merged": [
            {
                "bits": int(bits),
                "totals": [[int(cell), int(total)] for cell, total in zip(index, found, strict=True)],
                "bytes": merged_bytes(
                    REFERENCE, geometry, base, 5, -20, [(group, index, found)], lambda _: [version]
                ).hex(),
            }
            for bits, found in totals.items()
        ],
    }


VECTORS: dict[str, Callable[[], Document]] = {
    "bases": bases,
    "casts": casts,
    "digests": digests,
    "distances": distances,
    "exponents": exponents,
    "groups": groups,
    "keyframes": keyframes,
    "keyframes-small-floats": keyframes_of_small_floats,
    "layouts": layouts,
    "moves": moves,
    "outer": outer,
    "outer-state": outer_state,
    "patch-parts": patch_parts,
    "patches": patches,
    "records": records,
    "restarts": restarts,
    "segments": segments,
    "signatures": signatures,
    "tables": tables,
}


def _cells(width: int, count: int, seed: int) -> Cells:
    # Any patterns will do; these come from hashing, so that they do not depend on a release of NumPy.
    return np.frombuffer(blake3(f"{width} {count} {seed}".encode()).digest(length=width * count), f"<u{width}")


def _document(layout: Layout) -> Document:
    return {"format": layout.format, **layout.model_dump(mode="json")}


def _weights(geometry: Geometry, model: dict[str, np.ndarray[Any, Any]]) -> Weights:
    views = read_model(model)
    return Weights(geometry, [views[tensor.name].cells for tensor in geometry.layout.tensors])


def _flat(weights: Weights) -> dict[str, str]:
    names = [tensor.name for tensor in weights.geometry.layout.tensors]
    return {name: array.tobytes().hex() for name, array in zip(names, weights.arrays, strict=True)}


def main() -> None:
    """Write every file."""
    for name, make in VECTORS.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
