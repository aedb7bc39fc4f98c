"""The vectors of coded exponents: this release makes them, and a reader written from the specification reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulse_kernels.format.exponents import decode_cells, encode_cells
from pulse_kernels.select import exponent_loops

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "exponents.json").read_bytes())["cases"]
by_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


def read_cells(data: bytes, count: int) -> list[int]:
    """Decode coded cells as docs/spec.md, section 6.1, says it, cell by cell."""
    tiles = [min(65536, count - at) for at in range(0, count, 65536)]
    heads = [data[8 * t : 8 * t + 8] for t in range(len(tiles))]
    planes = 8 * len(tiles)
    marks = planes + sum(2 * head[0] * -(-n // 16) for head, n in zip(heads, tiles, strict=True))
    escapes, cells = marks + count, [0] * count
    at = 0
    for head, n in zip(heads, tiles, strict=True):
        k, b, lanes = head[0], head[1], -(-n // 16)
        tile = data[planes : planes + 2 * k * lanes]
        words = [int.from_bytes(tile[w : w + 2], "little") for w in range(0, len(tile), 2)]
        planes += 2 * k * lanes
        for lane in range(lanes):
            for row in range(16):
                place = row * lanes + lane
                code = sum((words[j * lanes + lane] >> row & 1) << j for j in range(k))
                if place >= n:
                    assert code == 0
                    continue
                exponent = (b + code) % 256
                if code == 2**k - 1:
                    exponent = data[escapes]
                    escapes += 1
                mark = data[marks + at + place]
                cells[at + place] = (mark & 0x80) << 8 | exponent << 7 | mark & 0x7F
        at += n
    assert escapes == len(data)
    return cells


@by_case
def test_the_listed_cells_give_the_listed_bytes_and_back(case: dict[str, Any]):
    cells, coded = np.frombuffer(bytes.fromhex(case["cells"]), "<u2"), bytes.fromhex(case["coded"])
    for name in ("reference", "numba"):
        loops = exponent_loops(name)
        assert encode_cells(loops, cells, loops.fit(cells)) == coded
        out = np.empty_like(cells)
        decode_cells(loops, coded, out)
        assert (out == cells).all()


@by_case
def test_a_reader_written_from_the_specification_reads_them(case: dict[str, Any]):
    cells = np.frombuffer(bytes.fromhex(case["cells"]), "<u2").tolist()
    assert read_cells(bytes.fromhex(case["coded"]), len(cells)) == cells


def test_that_reader_reads_what_has_several_tiles():
    cells = np.random.default_rng(1).normal(0, 0.02, 65_570).astype(np.float32).view(np.uint16)[1::2].copy()
    loops = exponent_loops("numba")
    assert read_cells(bytes(encode_cells(loops, cells, loops.fit(cells))), len(cells)) == cells.tolist()
