"""The target of coded groups: both coders, all widths; the compiled decoder gives what the reference gives, or refuses.

So do those that look at cells, or move them (of coder ``gap``), while they decode.

An input is a head of six bytes (dtype, coder, cells, changed cells) and the coded group.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import numpy as np

from pulse_kernels import (
    CELL_TYPES,
    Backend,
    Cells,
    CellType,
    CodecError,
    CoderName,
    Index,
    decode_group,
    encode_group,
    move_group,
    step_group,
)
from pulse_kernels.format.group_bytes import join, split
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.protocol import Coded
from pulse_kernels.reference.backend import order, unorder
from tests.security.fuzz.mutation import INTERESTING, mutate_bytes
from tests.security.fuzz.target import Defect, Target, expect

TYPES = tuple(CELL_TYPES.values())
_HEAD = struct.Struct("<BBHH")
_MOST_CELLS = 8191
_CODERS: tuple[CoderName, CoderName] = ("gap", "class")


def group_target(reference: Backend, compiled: Backend) -> Target:
    """Return the target of coded groups."""

    def check(data: bytes) -> bool:
        if len(data) < _HEAD.size:
            return False
        number, coder, cells, changed = _HEAD.unpack_from(data)
        cell_type, name = TYPES[number % len(TYPES)], _CODERS[coder % 2]
        cells, group = cells % (_MOST_CELLS + 1), data[_HEAD.size :]
        base = base_cells(cell_type, max(1, cells))
        found = [_decoded(one, name, cell_type, cells, changed, group, base) for one in (reference, compiled)]
        expect(type(found[0]) is type(found[1]), f"the reference says {found[0]!r}, the compiled decoder {found[1]!r}")
        _check_looked(compiled, name, cell_type, cells, changed, group, base, found[0])
        if name == "gap":
            _check_moved(compiled, cell_type, changed, group, base[:cells], found[0])
        if isinstance(found[0], CodecError):
            return False
        _check_accepted(reference, name, cell_type, cells, changed, base, found[0], found[1])
        return True

    return Target("group", check, _seeds(reference), _mutate, max_len=2048, tries=60)


def base_cells(cell_type: CellType, cells: int) -> Cells:
    """Return the weights that patches of this type are of: small numbers of several exponents."""
    rng = np.random.default_rng((7, cell_type.bits, cell_type.is_float))
    raw = np.frombuffer(rng.bytes((_MOST_CELLS + 1) * cell_type.width), cell_type.dtype)
    if cell_type.is_float and cell_type.width > 1:
        top = cell_type.dtype.type(cell_type.class_mask // 2 - 3 << cell_type.class_shift)
        raw = top ^ (raw & cell_type.dtype.type((1 << cell_type.class_shift + 2) - 1))
    return np.ascontiguousarray(raw[:cells])


def _decoded(
    backend: Backend, coder: CoderName, cell_type: CellType, cells: int, changed: int, data: bytes, base: Cells
) -> Any:
    try:
        return decode_group(backend, coder, cell_type, cells, changed, data, [base])
    except CodecError as error:
        return error


def _check_looked(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    changed: int,
    data: bytes,
    base: Cells,
    decoded: tuple[Index, Cells] | CodecError,
) -> None:
    spans = [base[: cells // 3], base[cells // 3 : cells]]
    try:
        index, old, new, before, after = step_group(backend, coder, cell_type, cells, changed, data, spans, 0)
    except CodecError as error:
        expect(isinstance(decoded, CodecError), f"decoded, and refused as cells are looked at: {error}")
        return
    if isinstance(decoded, CodecError):
        raise Defect(f"cells are looked at, and refused as it is decoded: {decoded}")
    expect(index.tobytes() == decoded[0].tobytes(), "places are those that are decoded")
    expect(old.tobytes() == base[index].tobytes(), "old cells are those that are there")
    expect(new.tobytes() == unorder(order(old, cell_type) + decoded[1], cell_type).tobytes(), "new ones are moved")
    expect((before, after) == backend.digest_changes(index, old, new, 0), "the sums")


def _check_moved(
    backend: Backend,
    cell_type: CellType,
    changed: int,
    data: bytes,
    base: Cells,
    decoded: tuple[Index, Cells] | CodecError,
) -> None:
    cells = base.copy()
    try:
        before, after = move_group(backend, cell_type, cells, changed, data, 0)
    except CodecError as error:
        expect(isinstance(decoded, CodecError), f"decoded, and refused as it is moved: {error}")
        return
    if isinstance(decoded, CodecError):
        raise Defect(f"moved, and refused as it is decoded: {decoded}")
    index, steps = decoded
    expected = base.copy()
    expected[index] = unorder(order(base[index], cell_type) + steps, cell_type)
    expect(cells.tobytes() == expected.tobytes(), "cells move by what is decoded, and no other does")
    expect(before == backend.digest_sparse(index, base[index], 0), "the sum before")
    expect(after == backend.digest_sparse(index, expected[index], 0), "the sum after")


def _check_accepted(
    backend: Backend,
    coder: CoderName,
    cell_type: CellType,
    cells: int,
    changed: int,
    base: Cells,
    first: Any,
    second: Any,
) -> None:
    index, steps = first
    expect(len(index) == len(steps) == changed, "as many changes as are claimed")
    expect(bool((np.diff(index.astype(np.int64)) > 0).all()) and int(index[-1]) < cells, "places rise, and are cells'")
    expect(bool((steps != 0).all()), "no change changes nothing")
    expect(index.tobytes() == second[0].tobytes() and steps.tobytes() == second[1].tobytes(), "both decode the same")
    old = base[index]
    new = unorder(order(old, cell_type) + steps, cell_type)
    again = decode_group(
        backend,
        coder,
        cell_type,
        cells,
        changed,
        encode_group(backend, coder, cell_type, cells, index, old, new, [base]),
        [base],
    )
    expect(again[0].tobytes() == index.tobytes() and again[1].tobytes() == steps.tobytes(), "it encodes back")


def _seeds(backend: Backend) -> tuple[bytes, ...]:
    seeds = []
    for number, cell_type in enumerate(TYPES):
        for coder, name in enumerate(_CODERS):
            large = (5000, 2100, 200) if number % 5 == 0 else (2000, 60, 200)
            # Two chunks and one more, in few bytes.
            chunks = [(4150, 2 * CHUNK + 5, 2)] if number % 5 == 0 else []
            for cells, changed, most in ((1, 1, 200), (40, 5, 200), (300, 299, 200), large, *chunks):
                rng = np.random.default_rng((number, coder, cells))
                index = np.sort(rng.choice(cells, changed, replace=False)).astype(np.uint32)
                base = base_cells(cell_type, cells)
                old = base[index]
                step = rng.integers(1, 2 if cell_type.width == 1 else most, changed).astype(cell_type.dtype)
                step = np.where(rng.integers(0, 2, changed) == 1, step, (~step + 1).astype(cell_type.dtype))
                new = unorder(order(old, cell_type) + step.astype(cell_type.dtype), cell_type)
                group = encode_group(backend, name, cell_type, cells, index, old, new, [base])
                seeds.append(_HEAD.pack(number, coder, cells, changed) + group)
    return tuple(seeds)


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Change one part of a group and make the sizes of the others fit; or any bytes."""
    if len(data) < _HEAD.size or rng.randrange(4) == 0:
        return mutate_bytes(data, rng)
    number, coder, cells, changed = _HEAD.unpack_from(data)
    if rng.randrange(8) == 0:
        cells, changed = rng.choice(((cells + 1, changed), (changed, changed), (cells, changed + 1), (8191, 8191)))
        return _HEAD.pack(number, coder, cells % 65536, changed % 65536) + data[_HEAD.size :]
    try:
        parts = split(coder % 2 == 1, changed, data[_HEAD.size :])
    except (CodecError, ValueError):
        return mutate_bytes(data, rng)
    return _HEAD.pack(number, coder, cells, changed) + join(_changed(parts, rng))


def _changed(parts: Coded, rng: random.Random) -> Coded:
    match rng.randrange(5):
        case 0:
            stored = mutate_bytes(parts.tables.tobytes(), rng)
            return replace(parts, tables=np.frombuffer(stored[:65535], np.uint8))
        case 1 if parts.parameters is not None:
            counts, parameters = parts.counts.copy(), parts.parameters.copy()
            at, to = rng.randrange(len(counts)), rng.randrange(len(counts))
            moved = rng.randrange(int(counts[at]) + 1)
            counts[at] -= moved
            counts[to] += moved
            parameters[rng.randrange(len(counts))] = rng.choice((0, 1, 32, 64, 127, 128, 255))
            return replace(parts, counts=counts, parameters=parameters)
        case 2 if parts.parameters is not None:
            return replace(parts, first=rng.choice((*INTERESTING[:14], parts.first + 1, parts.first - 1)) % 256)
        case 3:
            words, sizes = parts.words.copy(), parts.sizes.copy()
            at = rng.randrange(len(words))
            words[at] = rng.choice((0, 1, 0xFFFF, words[at] ^ 1 << rng.randrange(16)))
            return replace(parts, words=words, sizes=sizes)
    at, sizes = rng.randrange(len(parts.words) + 1), parts.sizes.copy()
    if rng.randrange(2) and sizes[-1] > 2:
        sizes[-1] -= 1
        return replace(parts, words=np.delete(parts.words, min(at, len(parts.words) - 1)), sizes=sizes)
    sizes[-1] += 1
    return replace(parts, words=np.insert(parts.words, at, rng.randrange(65536)).astype(np.uint16), sizes=sizes)
