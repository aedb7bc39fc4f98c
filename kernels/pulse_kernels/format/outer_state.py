"""Coding of a group of an outer optimizer's state: float32 weights beside the BF16 cells they round to, and momentum.

Nothing is stored of a cell whose weight is a BF16 number and whose momentum is +0: those that no round has touched.

    offset  size  field (little-endian)
    0       4     T: cells whose weight has other low 16 bits than 0
    4       4     M: cells whose momentum has another pattern than 0
    8       4     U: ties that were rounded away from 0
    12      4U    their positions, rising
            2T    the low 16 bits of the weights of the T cells
            2M    the low 16 bits of the momenta of the M cells
                  the high 16 bits of the momenta, M of them, coded as BF16 cells are (``exponents``)
                  which cells are the T, a bit a cell from the lowest bit on; left out if none or all are
                  which cells are the M, alike

A weight is the BF16 cell and a remainder. Its upper half is the cell, or one less where it was rounded up: where the
low 16 bits are over 0x8000. At 0x8000, a tie, the even neighbour was taken, and U says whether that was the upper one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells
from pulse_kernels.errors import CodecError, RankError
from pulse_kernels.format.exponents import decode_cells, encode_cells, max_coded_size
from pulse_kernels.protocol import Backend, ExponentLoops

_HEAD: Final = np.dtype("<u4")
_TIE: Final = 0x8000
_EXPONENT: Final = np.uint32(0x7F800000)
_Mask = npt.NDArray[np.bool_]


def most_state_bytes(cells: int) -> int:
    """Return the bytes that the state of so many cells never exceeds, coded."""
    return 12 + 8 * cells + max_coded_size(cells) + 2 * -(-cells // 8)


def encode_state(loops: ExponentLoops, version: Cells, theta: Cells, momentum: Cells) -> tuple[bytes, int]:
    """Code the state of a group: return (bytes, cells that are touched).

    Args:
        loops: compute.
        version: uint16, the weights rounded to BF16.
        theta: uint32, the patterns of the float32 weights.
        momentum: uint32, the patterns of the momentum.

    Returns:
        The same bytes for the same arguments, on every backend.

    Raises:
        ValueError: a number is not finite.
    """
    for patterns in (theta, momentum):
        if not _finite(patterns):
            raise ValueError("a number is NaN or infinite")
    low = theta.astype(np.uint16)
    tails, moved = low != 0, momentum != 0
    ups = np.flatnonzero((low == _TIE) & ((theta >> 16).astype(np.uint16) != version)).astype("<u4")
    kept = momentum[moved]
    high = (kept >> 16).astype("<u2")
    counts = np.array([np.count_nonzero(tails), len(kept), len(ups)], _HEAD)
    parts = [counts.tobytes(), ups.tobytes(), low[tails].astype("<u2").tobytes(), kept.astype("<u2").tobytes()]
    if len(high):
        parts.append(bytes(encode_cells(loops, high, loops.fit(high))))
    parts += [_packed(mask) for mask in (tails, moved)]
    return b"".join(parts), int(np.count_nonzero(tails | moved))


def decode_state(
    backend: Backend, loops: ExponentLoops, version: Cells, data: bytes | memoryview, theta: Cells, momentum: Cells
) -> int:
    """Invert ``encode_state``, into ``theta`` and ``momentum``; return how many cells are touched.

    Nothing is allocated that the number of cells does not bound.

    Raises:
        CodecError: the bytes break a rule of the format.
        RankError: the weights do not round to these BF16 cells. After either, the arrays hold nothing in particular.
    """
    cells = len(version)
    tails, moved, ups, low, kept = _split(loops, cells, data)
    halves = np.zeros(cells, np.uint16)
    halves[tails] = low
    if len(ups) and (int(ups[-1]) >= cells or np.any(ups[1:] <= ups[:-1]) or np.any(halves[ups] != _TIE)):
        raise CodecError("what is said to be a rounded tie is none")
    upper = version - (halves > _TIE)
    upper[ups] -= 1
    np.left_shift(upper, 16, out=theta, dtype=np.uint32)
    theta |= halves
    momentum[:] = 0
    momentum[moved] = kept
    if not _finite(theta) or not _finite(momentum):
        raise CodecError("a number is NaN or infinite")
    rounded = np.empty(cells, np.uint16)
    backend.cast_f32(theta, rounded)
    if not np.array_equal(rounded, version):
        raise RankError("the weights do not round to these BF16 cells")
    return int(np.count_nonzero(tails | moved))


def _split(loops: ExponentLoops, cells: int, data: bytes | memoryview) -> tuple[_Mask, _Mask, Cells, Cells, Cells]:
    """Return which cells have a tail and a momentum, the rounded ties, the tails and the momenta."""
    if len(data) < 12:
        raise CodecError(f"{len(data)} bytes are too few for the state of a group")
    tails, moved, ups = np.frombuffer(data, _HEAD, 3).tolist()
    if max(tails, moved) > cells or ups > tails:
        raise CodecError(f"{tails} weights, {moved} momenta and {ups} ties of {cells} cells are not possible")
    maps = [_packed_size(count, cells) for count in (tails, moved)]
    plain = 12 + 4 * ups + 2 * tails + 2 * moved
    coded = len(data) - plain - sum(maps)
    if coded < 0 or (coded and not moved):
        raise CodecError(f"{len(data)} bytes do not fit what the state says that it has")
    places, low, lower = (
        np.frombuffer(data, dtype, count, start)
        for dtype, count, start in (("<u4", ups, 12), ("<u2", tails, 12 + 4 * ups), ("<u2", moved, plain - 2 * moved))
    )
    high = np.zeros(moved, np.uint16)
    if moved:
        decode_cells(loops, memoryview(data)[plain : plain + coded], high)
    kept = (high.astype(np.uint32) << 16) | lower
    if not low.all() or not kept.all():
        raise CodecError("it lists what is 0")
    at = plain + coded
    masks = [
        _unpacked(memoryview(data)[start : start + size], count, cells)
        for start, size, count in ((at, maps[0], tails), (at + maps[0], maps[1], moved))
    ]
    return masks[0], masks[1], places, low, kept


def _finite(patterns: Cells) -> bool:
    return not bool(((patterns & _EXPONENT) == _EXPONENT).any())


def _packed(mask: _Mask) -> bytes:
    return b"" if mask.all() or not mask.any() else np.packbits(mask, bitorder="little").tobytes()


def _packed_size(count: int, cells: int) -> int:
    return -(-cells // 8) if 0 < count < cells else 0


def _unpacked(data: memoryview, count: int, cells: int) -> _Mask:
    if not len(data):
        return np.full(cells, count > 0)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if int(bits.sum(dtype=np.int64)) != count or bits[cells:].any():
        raise CodecError("the cells are not as many as it says")
    return bits[:cells].astype(np.bool_)
