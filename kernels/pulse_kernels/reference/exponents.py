"""The coding of exponents in plain NumPy: what the compiled loops are compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells
from pulse_kernels.format.exponents import HEAD, MAX_PLANES, ROWS, SAMPLES, TILE_CELLS, lanes_of
from pulse_kernels.protocol import Heads, Sections


class ReferenceLoops:
    """See ``ExponentLoops``."""

    def fit(self, cells: Cells) -> Heads:
        """Choose windows: see ExponentLoops.fit."""
        tiles = [cells[at : at + TILE_CELLS] for at in range(0, len(cells), TILE_CELLS)]
        heads = np.zeros(len(tiles), HEAD)
        for head, tile in zip(heads, tiles, strict=True):
            planes, base = window(exponents(tile)[:: max(1, len(tile) // SAMPLES)])
            head["planes"], head["base"] = planes, base
            head["escapes"] = np.count_nonzero(_codes(tile, planes, base) == (1 << planes) - 1)
        return heads

    def split(self, cells: Cells, heads: Heads, out: Sections) -> bool:
        """Write sections: see ExponentLoops.split."""
        out.marks[:] = (cells >> 8) & 0x80 | cells & 0x7F
        escaped = [np.empty(0, np.uint8)]
        for head, at, planes in _tiles(heads, len(cells), out.planes):
            tile = cells[at : at + TILE_CELLS]
            codes = _codes(tile, int(head["planes"]), int(head["base"]))
            rows = np.zeros((ROWS, planes.shape[1]), np.uint16)
            rows.reshape(-1)[: len(tile)] = codes
            for j, plane in enumerate(planes):
                plane[:] = sum((rows[r] >> j & 1) << r for r in range(ROWS))
            is_escape = np.zeros(rows.shape, bool)
            is_escape.reshape(-1)[: len(tile)] = codes == (1 << int(head["planes"])) - 1
            places = np.nonzero(is_escape.T)
            escaped.append(exponents(tile)[places[1] * rows.shape[1] + places[0]])
            if len(escaped[-1]) != head["escapes"]:
                return False
        out.escapes[:] = np.concatenate(escaped)
        return True

    def join(self, heads: Heads, sections: Sections, out: Cells) -> bool:
        """Write cells: see ExponentLoops.join."""
        marks, used = sections.marks.astype(np.uint16), 0
        for head, at, planes in _tiles(heads, len(out), sections.planes):
            size = min(TILE_CELLS, len(out) - at)
            rows = np.zeros((ROWS, planes.shape[1]), np.uint16)
            for j, plane in enumerate(planes):
                rows |= (plane[None, :] >> np.arange(ROWS, dtype=np.uint16)[:, None] & 1) << j
            is_escape = rows == (1 << int(head["planes"])) - 1
            is_escape.reshape(-1)[size:] = False
            if rows.reshape(-1)[size:].any() or np.count_nonzero(is_escape) != head["escapes"]:
                return False
            found = (rows + head["base"]) & 0xFF
            found.T[is_escape.T] = sections.escapes[used : used + int(head["escapes"])]
            used += int(head["escapes"])
            mark = marks[at : at + size]
            out[at : at + size] = (mark & 0x80) << 8 | found.reshape(-1)[:size] << 7 | mark & 0x7F
        return True


def exponents(cells: Cells) -> npt.NDArray[np.uint8]:
    """Return the exponents of BF16 cells."""
    return (cells >> 7 & 0xFF).astype(np.uint8)


def window(sample: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Return the number of planes and the first exponent that take the fewest bits; of several, the least of both."""
    counts = np.bincount(sample, minlength=256)
    best, choice = 8 * len(sample), (0, 0)
    for planes in range(1, MAX_PLANES + 1):
        width = (1 << planes) - 1
        sums = np.concatenate([[0], np.cumsum(counts)])
        inside = sums[width:] - sums[:-width]
        base = int(inside.argmax())
        cost = planes * len(sample) + 8 * (len(sample) - int(inside[base]))
        if cost < best:
            best, choice = cost, (planes, base)
    return choice


def _codes(tile: Cells, planes: int, base: int) -> npt.NDArray[np.uint16]:
    places = (exponents(tile).astype(np.uint16) - np.uint16(base)) & 0xFF
    codes: npt.NDArray[np.uint16] = np.minimum(places, np.uint16((1 << planes) - 1))
    return codes


def _tiles(
    heads: Heads, cells: int, planes: npt.NDArray[np.uint16]
) -> Iterator[tuple[np.void, int, npt.NDArray[np.uint16]]]:
    """Yield each tile's head, its first cell, and its planes."""
    done = 0
    for number, (head, lanes) in enumerate(zip(heads, lanes_of(cells), strict=True)):
        stop = done + int(head["planes"]) * int(lanes)
        yield head, number * TILE_CELLS, planes[done:stop].reshape(int(head["planes"]), int(lanes))
        done = stop
