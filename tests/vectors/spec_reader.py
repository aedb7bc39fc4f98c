"""A reader of the formats from the text of docs/spec.md alone: plain Python on bytes, nothing of this library.

It is slow and trusts its input. It shows that the specification says enough, and that the vectors mean what it says.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import zstandard
from blake3 import blake3

WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
FLOATS = {"F64": (55, 255), "F32": (23, 255), "BF16": (7, 255), "F16": (10, 31), "F8_E4M3": (3, 15), "F8_E5M2": (2, 31)}
MASK, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
# fmt: off
WEIGHTS = (
    8, 10, 13, 16, 20, 25, 32, 40, 51, 64, 81, 102, 128, 161, 203, 256,
    323, 406, 512, 645, 813, 1024, 1290, 1625, 2048, 2580, 3251, 4096, 5161, 6502, 8192,
)
# fmt: on
ROOTS = (
    0x1000000000000000000000000,
    0x1306FE0A31B7152DE8D5A4630,
    0x16A09E667F3BCC908B2FB1366,
    0x1AE89F995AD3AD5E8734D1773,
)
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


def frequencies(weights: list[int], occurring: list[bool]) -> list[int]:
    """Section 5.3: frequencies from weights, 0 for symbols that do not occur."""
    n, total = sum(occurring), sum(weights)
    shares = [1 + w * (4096 - n) // total if occurs else 0 for w, occurs in zip(weights, occurring, strict=True)]
    if n:
        shares[weights.index(max(weights))] += 4096 - sum(shares)
    return shares


def read_table(data: bytes) -> tuple[list[int], bytes]:
    """Section 5.3: return a stored table's frequencies, and what follows it."""
    first, r = data[:2]
    size = (5 * r + 7) // 8
    packed = int.from_bytes(data[2 : 2 + size], "little")
    levels = [0] * first + [(packed >> (5 * k)) & 31 for k in range(r)]
    weights = [(0, *WEIGHTS)[level] for level in levels]
    return frequencies(weights, [level > 0 for level in levels]), data[2 + size :]


def geometric(j: int) -> list[int]:
    """Section 5.3: the frequencies of the gap tokens for parameter j."""
    a, k = divmod(32 - j, 4)
    odds = ROOTS[k] * 2**a if a >= 0 else ROOTS[k] >> -a
    p = {0: 2**96, 1: 2**192 // (2**96 + odds)}
    p[2] = p[1] * p[1] >> 96
    p[3] = p[2] * p[1] >> 96
    edges = [least(token) for token in range(49)]
    for edge in edges[4:]:
        p[edge] = p[edge // 2] * p[edge // 2] >> 96
    return frequencies([p[x] - p[y] for x, y in itertools.pairwise(edges)], [True] * 48)


class Chunk:
    """Section 5.4: a reader of one chunk."""

    def __init__(self, words: list[int]) -> None:
        self.words = words[2:]
        self.x = words[0] + 2**16 * words[1]

    def refill(self) -> None:
        if self.x < 2**16:
            self.x = self.x * 2**16 + self.words.pop(0)

    def symbol(self, table: list[int]) -> int:
        slot, symbol, cum = self.x % 4096, 0, 0
        while slot >= cum + table[symbol]:
            cum += table[symbol]
            symbol += 1
        self.x = table[symbol] * (self.x >> 12) + slot - cum
        self.refill()
        return symbol

    def raw(self, width: int) -> int:
        bits = 0
        for at in range(0, width, 16):
            n = min(16, width - at)
            bits += self.x % 2**n << at
            self.x >>= n
            self.refill()
        return bits


def extra(token: int) -> int:
    """Section 5.2: how many extra bits a token has."""
    return 0 if token < 4 else token // 2 - 1


def least(token: int) -> int:
    """Section 5.2: the least value of a token."""
    return token if token < 4 else (2 + token % 2) << extra(token)


def read_group(
    data: bytes, coder: str, dtype: str, old: Sequence[int], changed: int, sent: str | None = None
) -> Changes:
    """Section 5.1: return (index, distance) in index order; of cells of dtype ``sent``, which were 0 (5.8)."""
    classes, first, t = struct.unpack_from("<BBH", data)
    entries = [struct.unpack_from("<IB", data, 4 + 5 * k) for k in range(classes)]
    stored, at = data[4 + 5 * classes : 4 + 5 * classes + t], 4 + 5 * classes + t
    at += at % 2
    numbers = [word for (word,) in struct.iter_unpack("<H", data[at:])]
    chunks = -(-changed // 2048)
    sizes, words = numbers[:chunks], numbers[chunks:]
    assert sum(sizes) == len(words)
    kinds = [kind for kind, (count, _) in enumerate(entries) for _ in range(count)] if classes else [0] * changed
    tables = []
    while stored:
        table, stored = read_table(stored)
        tables.append(table)
    if classes:
        gap_tables, value_tables = [geometric(j) for _, j in entries], iter(tables)
        values = [next(value_tables) if count else [] for count, _ in entries]
    else:
        gap_tables, values = tables[:3], tables[3:]
    members: list[Any] = [range(len(old))] if not classes else [[] for _ in entries]
    if classes:
        shift, mask = FLOATS.get(dtype, (0, 0))
        for index, cell in enumerate(old):
            members[min(max((cell >> shift) & mask, first), first + classes - 1) - first].append(index)
    changes: Changes = []
    places = [-1] * max(1, classes)
    for number, size in enumerate(sizes):
        chunk, words = Chunk(words[:size]), words[size:]
        m = 0
        for kind in kinds[2048 * number : 2048 * (number + 1)]:
            table = kind if classes else 0 if m == 0 else 1 if m < 15 else 2
            gap_token, value = chunk.symbol(gap_tables[table]), chunk.symbol(values[table])
            raw = chunk.raw(extra(gap_token) + extra(value // 2))
            m = least(value // 2) + (raw >> extra(gap_token))
            places[kind] += 1 + least(gap_token) + raw % 2 ** extra(gap_token)
            index = members[kind][places[kind]]
            distance = -m - 1 if value % 2 else m + 1
            if sent is None and classes and dtype in FLOATS and old[index] >> (bits_of(dtype) - 1):
                distance = -distance
            changes.append((index, distance % (1 << bits_of(sent or dtype))))
        assert (chunk.x, chunk.words) == (2**16, [])
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


def shard_entry(layout: dict[str, Any], name: str) -> tuple[str, list[int]]:
    """Section 6: return the dtype and the shape that a shard's header has of a tensor."""
    (tensor,) = (tensor for tensor in layout["tensors"] if tensor["name"] == name)
    *first, last = tensor["shape"] or [None]
    if tensor["dtype"] == "F4":
        return "F4", [*first, 2 * last]
    return tensor["dtype"], tensor["shape"]


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
        changes = read_group(group, ("gap", "class")[coder], dtype, cells, changed)
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


def read_contribution(
    data: bytes, layout: dict[str, Any], tensors: dict[str, bytes]
) -> tuple[dict[str, Any], list[list[int]]]:
    """Section 5.8: return what it says of itself, and [flat index, cell] of what is sent, sums and hashes checked."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    pulse = json.loads(header["__metadata__"]["pulse"])
    sent = {"levels": "I16", "float32": "F32"}[pulse["values"]]
    body = data[8 + length :]
    first, last = header["directory"]["data_offsets"]
    directory, coded = body[first:last], body[slice(*header["groups"]["data_offsets"])]
    groups, at, found = groups_of(layout, tensors), 0, []
    for number, changed, size, coder, hashed, *sums in struct.iter_unpack("<IIII32s4Q", directory):
        group = coded[at : at + size]
        assert blake3(group).digest() == hashed
        assert coder == 1
        dtype, start, cells = groups[number]
        new = {i: moved(0, by, sent) for i, by in read_group(group, "class", dtype, cells, changed, sent)}
        for lane in (0, 1):
            assert sum(h(lane, start + index, cells[index]) for index in new) & MASK == sums[lane]
            assert sum(h(lane, start + index, cell) for index, cell in new.items()) & MASK == sums[2 + lane]
        found += [[start + index, cell] for index, cell in new.items()]
        at += size
    assert at == len(coded)
    return pulse, found


def rounded(number: float) -> float:
    """Return the nearest number of 32 bits: of one product, quotient, sum or difference of such numbers it is right."""
    (found,) = struct.unpack("<f", struct.pack("<f", number))
    return float(found)


def outer_step(
    theta: list[float],
    momentum: list[float],
    parts: list[tuple[list[list[int]], int, int]],
    weight: int,
    rates: dict[str, float],
) -> None:
    """Section 3.5, in place: ``parts`` are levels as bit patterns, exponent and weight of each contribution."""
    least_exponent = min(exponent for _, exponent, _ in parts)
    totals = [0] * len(theta)
    for cells, exponent, each in parts:
        for index, cell in cells:
            level = cell - (cell >> 15 << 16)
            totals[index] += each * level * 2 ** (exponent - least_exponent)
    unit, lr, mu = rounded(2.0**least_exponent / weight), rounded(rates["rate"]), rounded(rates["momentum"])
    for index, total in enumerate(totals):
        g = rounded(rounded(total) * unit)
        momentum[index] = rounded(rounded(mu * momentum[index]) + g)
        theta[index] = rounded(theta[index] - rounded(lr * rounded(g + rounded(mu * momentum[index]))))


def read_parts(objects: dict[str, bytes], layout: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Section 5.7: return flat index, old and new cell of each change of a ``gap`` patch of zeros in parts."""
    [key] = [key for key in objects if key.endswith("/patch-head")]
    (length,) = struct.unpack_from("<Q", objects[key])
    directory = objects[key][8 + length :]
    [tensor] = layout["tensors"]
    capacity = 2**24 * 8 // bits_of(tensor["dtype"])
    left, found = {name: data for name, data in objects.items() if name != key}, []
    for number, changed, size, _, hashed, *sums in struct.iter_unpack("<IIII32s4Q", directory):
        part = f"{key[: -len('patch-head')]}{number // 64:05d}"
        coded, left[part] = left[part][:size], left[part][size:]
        assert blake3(coded).digest() == hashed
        start = number * capacity
        cells = min(capacity, math.prod(tensor["shape"]) - start)
        new = {
            index: moved(0, distance, tensor["dtype"])
            for index, distance in read_group(coded, "gap", tensor["dtype"], range(cells), changed)
        }
        for lane in (0, 1):
            assert sums[lane] == 0
            assert sum(h(lane, start + index, cell) for index, cell in new.items()) & MASK == sums[2 + lane]
        found += [(start + index, 0, cell) for index, cell in new.items()]
    assert not any(left.values())
    return found


NAMES = {
    "versions": lambda row: [row["version"], row["seq"], row["step"], key_number(row["layout"])],
    "patches": lambda row: [
        *(row["base"], row["target"], min(row["object"]["size"] + (row.get("parts") or 0), 2**62)),
        *(1 + bool(row.get("parts")), ["gap", "class"].index(row["coder"]), row["changed"]),
        key_number(row["object"]["key"]),
    ],
    "keyframes": lambda row: [
        *(row["version"], sum(one["size"] for one in (row["index"], *row["shards"]))),
        1 + len(row["shards"]),
    ],
}
"""What the columns of a row are, by its table (3.6)."""


def key_number(text: str) -> int:
    return int.from_bytes(blake3(text.encode()).digest()[:8], "big", signed=True)


def read_segment(data: bytes) -> dict[str, list[tuple[int, Any]]]:
    """The (id, row) of each table of a segment, whose columns are what its rows say."""
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pulse-segment/1"}
    assert [*header] == [
        *(f"{table}.{part}" for table in NAMES for part in ("ids", "numbers", "rows", "ends")),
        *(f"{table}.blocks" for table in NAMES),
    ]

    def content(name: str) -> bytes:
        start, stop = header[name]["data_offsets"]
        return data[8 + length + start : 8 + length + stop]

    def integers(name: str) -> list[int]:
        assert header[name]["dtype"] == "I64"
        return list(struct.unpack(f"<{math.prod(header[name]['shape'])}q", content(name)))

    found = {}
    for table, columns in NAMES.items():
        ids, numbers = integers(f"{table}.ids"), integers(f"{table}.numbers")
        rows, at = [], 0
        for count, end in zip(integers(f"{table}.rows"), integers(f"{table}.ends"), strict=True):
            lines = zstandard.decompress(content(f"{table}.blocks")[at:end]).splitlines(keepends=True)
            assert len(lines) == count
            assert all(line.endswith(b"\n") for line in lines)
            rows += [json.loads(line) for line in lines]
            at = end
        assert [numbers[n :: len(ids)] for n in range(len(ids))] == [columns(row) for row in rows]
        found[table] = list(zip(ids, rows, strict=True))
    return found


def read_snapshot(snapshot: dict[str, Any], objects: dict[str, bytes]) -> dict[str, list[Any]]:
    """The live rows of a snapshot's tables, whose ids rise, from its segments."""
    state: dict[str, list[Any]] = {table: [] for table in NAMES}
    last = dict.fromkeys(NAMES, -1)
    for ref in snapshot["segments"]:
        data = objects[f"log/segments/{ref['seq']:012d}-{ref['blake3']}.safetensors"]
        assert len(data) == ref["size"]
        assert blake3(data).hexdigest() == ref["blake3"]
        for table, rows in read_segment(data).items():
            dead = {row for first, count in ref[table]["dead"] for row in range(first, first + count)}
            assert len(rows) == ref[table]["rows"]
            for number, (id_, row) in enumerate(rows):
                assert last[table] < id_ < snapshot["next_ids"][table]
                last[table] = id_
                state[table] += [] if number in dead else [row]
    return state
