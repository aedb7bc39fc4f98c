"""A reader of the formats from the text of docs/spec.md alone: plain Python on bytes, nothing of this library.

It is slow and trusts its input. It shows that the specification says enough, and that the vectors mean what it says.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import zstandard
from blake3 import blake3

WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
FLOATS = {"F64": (55, 255), "F32": (23, 255), "BF16": (7, 255), "F16": (10, 31), "F8_E4M3": (3, 15), "F8_E5M2": (2, 31)}
MASK, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
Changes = list[tuple[int, int]]
"""(index in the group, distance)."""


def mix(x: int) -> int:
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def h(lane: int, flat: int, cell: int) -> int:
    """Section 4."""
    coefficient = (mix((SEEDS[lane] ^ MASK) + ((flat & 1023) + 1) * GOLDEN) >> 32) | 1
    limbs = [(cell >> (16 * limb)) & 0xFFFF for limb in range(4)]
    scales = [mix(SEEDS[lane] + (4 * (flat >> 10) + limb + 1) * GOLDEN) | 1 for limb in range(4)]
    return sum(m * coefficient * v for m, v in zip(scales, limbs, strict=True)) & MASK


def digest(cells: list[int], start: int) -> str:
    """Section 4, over consecutive cells."""
    return "".join(f"{sum(h(lane, start + k, v) for k, v in enumerate(cells)) & MASK:016x}" for lane in (0, 1))


def bits_of(dtype: str) -> int:
    return 8 * WIDTHS.get(dtype, 1)


def order(cell: int, dtype: str) -> int:
    """Section 5.1."""
    sign = 1 << (bits_of(dtype) - 1)
    if dtype not in FLOATS:
        return cell
    return ~cell & (2 * sign - 1) if cell & sign else cell | sign


def moved(cell: int, distance: int, dtype: str) -> int:
    """Return the pattern that lies ``distance`` after ``cell``."""
    sign = 1 << (bits_of(dtype) - 1)
    place = (order(cell, dtype) + distance) % (2 * sign)
    if dtype not in FLOATS:
        return place
    return place ^ sign if place & sign else ~place & (2 * sign - 1)


def read_streams(
    gap_tokens: bytes, magnitude_tokens: bytes, bits: bytes, runs: list[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Return each run's (gap, signed distance); ``runs`` are (shift, changed cells)."""
    number, used = int.from_bytes(bits, "little"), 0

    def take(count: int) -> int:
        nonlocal used
        used += count
        return (number >> (used - count)) & ((1 << count) - 1)

    def value(token: int) -> int:
        return token if token < 192 else (1 << (token - 185)) + take(token - 185)

    out, k = [], 0
    for shift, count in runs:
        changes = []
        for _ in range(count):
            negative, low = take(1), take(shift)
            gap = (value(gap_tokens[k]) << shift) + low
            magnitude = value(magnitude_tokens[k]) + 1
            changes.append((gap, -magnitude if negative else magnitude))
            k += 1
        out.append(changes)
    assert (used + 7) // 8 == len(bits)
    assert number >> used == 0
    return out


def read_group(data: bytes, coder: str, dtype: str, old: list[int]) -> Changes:
    """Section 5.1: return (index, distance) in index order."""
    count, zero, gap_size, magnitude_size, bit_size = struct.unpack_from("<HHIII", data)
    runs = [struct.unpack_from("<BBI", data, 16 + 6 * k) for k in range(count)]
    at = 16 + 6 * count
    assert (zero, at + gap_size + magnitude_size + bit_size) == (0, len(data))
    unzip: Callable[[bytes], bytes] = zstandard.ZstdDecompressor().decompress
    gap_tokens, magnitude_tokens = unzip(data[at : at + gap_size]), unzip(data[at + gap_size :][:magnitude_size])
    decoded = read_streams(gap_tokens, magnitude_tokens, data[len(data) - bit_size :], [(s, n) for _, s, n in runs])
    changes: Changes = []
    for (kind, _, _), run in zip(runs, decoded, strict=True):
        shift, mask = FLOATS.get(dtype, (0, 0))
        if coder == "gap":
            members = list(range(len(old)))
        else:
            members = [index for index, cell in enumerate(old) if (cell >> shift) & mask == kind]
        at = -1
        for gap, distance in run:
            at += gap + 1
            changes.append((members[at], distance % (1 << bits_of(dtype))))
    return sorted(changes)


def cells_of(data: bytes, dtype: str) -> list[int]:
    width = bits_of(dtype) // 8
    return [int.from_bytes(data[k : k + width], "little") for k in range(0, len(data), width)]


def groups_of(layout: dict[str, Any], tensors: dict[str, bytes]) -> list[tuple[str, int, list[int]]]:
    """Section 3.1, for models under 16 MiB: return (dtype, first flat index, cells) of each group."""
    groups: list[tuple[str, int, list[int]]] = []
    flat = 0
    for tensor in layout["tensors"]:
        cells = cells_of(tensors[tensor["name"]], tensor["dtype"])
        if not cells:
            continue
        if not groups or groups[-1][0] != tensor["dtype"]:
            groups.append((tensor["dtype"], flat, []))
        groups[-1][2].extend(cells)
        flat += len(cells)
    return groups


def apply_patch(
    data: bytes, layout: dict[str, Any], tensors: dict[str, bytes]
) -> tuple[dict[str, Any], list[list[int]]]:
    """Section 5: return what the patch says of itself, and the new cells of all groups, every sum and hash checked."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    first, last = header["directory"]["data_offsets"]
    directory, coded = body[first:last], body[slice(*header["groups"]["data_offsets"])]
    groups = groups_of(layout, tensors)
    at = 0
    for number, changed, size, coder, hashed, *sums in struct.iter_unpack("<IIII32s4Q", directory):
        group = coded[at : at + size]
        assert blake3(group).digest() == hashed
        dtype, start, cells = groups[number]
        changes = read_group(group, ("gap", "class")[coder], dtype, cells)
        assert len(changes) == changed
        new = {index: moved(cells[index], distance, dtype) for index, distance in changes}
        for lane in (0, 1):
            assert sum(h(lane, start + index, cells[index]) for index in new) & MASK == sums[lane]
            assert sum(h(lane, start + index, cell) for index, cell in new.items()) & MASK == sums[2 + lane]
        for index, cell in new.items():
            cells[index] = cell
        at += size
    assert at == len(coded)
    return json.loads(header["__metadata__"]["pulse"]), [cells for _, _, cells in groups]
