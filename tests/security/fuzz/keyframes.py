"""Targets of keyframes: the index with its pieces and coding, the header of a shard, and coded pieces."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass

import numpy as np

from pulse_kernels import CodecError
from pulse_kernels.format.exponents import (
    HEAD,
    ExponentLoops,
    decode_cells,
    encode_cells,
    max_coded_size,
    tile_cells,
)
from pulse_kernels.select import exponent_loops
from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.coded_shard import coded_shards
from pulse_registry.format.exponent_coding import KeyframeCoding
from pulse_registry.format.keyframe import KeyframeForm, check_shards, write_keyframe
from pulse_registry.format.pieces import read_pieces
from pulse_registry.format.safetensors import parse_head
from pulse_registry.format.weight_map import mapped_shards
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import read_model
from pulse_schemas import KeyframeRef
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect
from tests.support.groups import geometry_of, mixed_model
from tests.support.records import DictStore, write_id

_PIECE = 4096
_CELLS = struct.Struct("<H")
_MOST_CELLS = 3000


@dataclass(frozen=True, slots=True)
class _Keyframe:
    """A stored keyframe of several shards."""

    geometry: Geometry
    ref: KeyframeRef
    index: bytes
    headers: list[bytes]


def _keyframe(coding: KeyframeCoding) -> _Keyframe:
    import ml_dtypes

    model = mixed_model() | {"w": np.random.default_rng(1).normal(size=6000).astype(ml_dtypes.bfloat16)}
    geometry, store = geometry_of(model), DictStore()
    weights = Weights.into(geometry, read_model(model))
    form = KeyframeForm(coding, shard_bytes=9000, piece_bytes=_PIECE)
    ref = write_keyframe(store, geometry, 3, write_id(3), weights.copy_of, form=form)
    headers = []
    for shard in ref.shards:
        data = store.objects[shard.key]
        headers.append(data[: parse_head(data, len(data)).nbytes])
    return _Keyframe(geometry, ref, store.objects[ref.index.key], headers)


def index_target() -> Target:
    """Return the target of a keyframe's index: what it says of pieces and coding."""
    plain, coded, loops = _keyframe("raw"), _keyframe("exponents"), exponent_loops("reference")

    def check(data: bytes) -> bool:
        accepted = False
        for keyframe in (plain, coded):
            try:
                pieces, coding = read_pieces(keyframe.ref, data)
                if pieces is not None and coding is not None:
                    shards = coded_shards(keyframe.geometry, keyframe.ref, pieces, coding, loops)
                    expect([shard.nbytes for shard in shards] == [s.size for s in plain.ref.shards], "the plain shards")
                    for shard in shards:
                        ends = [shard.stored(number) for number in range(len(shard.parts))]
                        expect(ends[-1][1] == shard.ref.size, "the pieces are the object")
                if coding is None:
                    mapped = mapped_shards(keyframe.geometry, keyframe.ref, data)
                    expect([shard.header for shard in mapped] == keyframe.headers, "the headers, as they are stored")
            except (CorruptObject, UnsupportedFormat):
                continue
            accepted |= pieces is not None
        return accepted

    return Target("index", check, (plain.index, coded.index), mutate_document, (b'"pieces":', b'"coding":'), 8192)


def shard_target() -> Target:
    """Return the target of a shard's header: any JSON, behind a length that fits or does not."""
    keyframe = _keyframe("raw")

    def check(data: bytes) -> bool:
        accepted = False
        for number in range(len(keyframe.headers)):
            for header in (data, struct.pack("<Q", len(data)) + data):
                headers = [*keyframe.headers[:number], header, *keyframe.headers[number + 1 :]]
                try:
                    shards = check_shards(keyframe.geometry, keyframe.ref, headers)
                except CorruptObject:
                    continue
                expect(header.startswith(keyframe.headers[number]), "a header is what the layout gives")
                expect(len(shards) == len(keyframe.headers), "all shards")
                accepted = True
        return accepted

    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.randrange(3) == 0 or len(data) < 8:
            return mutate_bytes(data, rng)
        text = (
            mutate_document(json.dumps(json.loads(data[8:]), separators=(",", ":")).encode(), rng)
            if _json(data)
            else data[8:]
        )
        return struct.pack("<Q", len(text)) + text

    return Target(
        "shard", check, tuple(keyframe.headers), mutate, (b'"data_offsets":[0,', b'"dtype":"U8"', b'"shape":[')
    )


def _json(data: bytes) -> bool:
    try:
        json.loads(data[8:])
    except (ValueError, RecursionError):
        return False
    return True


def exponents_target() -> Target:
    """Return the target of coded BF16 cells: the compiled loops give what the reference gives, or refuse.

    An input is the number of cells, and the coded bytes.
    """
    reference, compiled = exponent_loops("reference"), exponent_loops("numba")

    def check(data: bytes) -> bool:
        if len(data) < _CELLS.size:
            return False
        cells = _CELLS.unpack_from(data)[0] % _MOST_CELLS
        coded = data[_CELLS.size :]
        one, other = _cells(reference, coded, cells), _cells(compiled, coded, cells)
        expect((one is None) == (other is None), "the reference and the compiled loops accept the same")
        if one is None or other is None:
            return False
        expect(one.tobytes() == other.tobytes(), "both decode the same")
        expect(len(coded) <= max_coded_size(cells), "it is no longer than it can be")
        again = np.empty_like(one)
        decode_cells(reference, encode_cells(reference, one, reference.fit(one)), again)
        expect(again.tobytes() == one.tobytes(), "it encodes back")
        return True

    return Target("exponents", check, _coded(reference), _mutate_coded, max_len=8192)


def _cells(loops: ExponentLoops, data: bytes, cells: int) -> np.ndarray | None:  # type: ignore[type-arg]
    out = np.empty(cells, "<u2")
    try:
        decode_cells(loops, data, out)
    except CodecError:
        return None
    return out


def _coded(loops: ExponentLoops) -> tuple[bytes, ...]:
    rng, seeds = np.random.default_rng(4), []
    for cells in (0, 1, 15, 16, 17, 100, 1000):
        for raw in (
            rng.bytes(2 * cells),
            (rng.normal(size=cells).astype(np.float32).view(np.uint32) >> 16).astype("<u2"),
        ):
            array = np.frombuffer(raw, "<u2") if isinstance(raw, bytes) else raw
            seeds.append(_CELLS.pack(cells) + encode_cells(loops, array, loops.fit(array)))
    return tuple(seeds)


def _mutate_coded(data: bytes, rng: random.Random) -> bytes:
    """Change a tile's head, and often make the size fit it; or any bytes."""
    if len(data) < _CELLS.size + HEAD.itemsize or rng.randrange(2):
        return mutate_bytes(data, rng)
    cells = _CELLS.unpack_from(data)[0]
    heads = bytearray(data[_CELLS.size : _CELLS.size + HEAD.itemsize])
    at = rng.randrange(HEAD.itemsize)
    heads[at] = rng.choice((0, 1, 7, 8, 255, heads[at] ^ 1 << rng.randrange(8)))
    rest = data[_CELLS.size + HEAD.itemsize :]
    planes, escapes = heads[0], int.from_bytes(heads[4:8], "little")
    size = 2 * planes * -(-cells // 16) + cells + escapes
    if size < 8000 and len(tile_cells(cells)) == 1:
        rest = (rest + rng.randbytes(max(0, size - len(rest))))[:size]
    return data[: _CELLS.size] + bytes(heads) + rest
