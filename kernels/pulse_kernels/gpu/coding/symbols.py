"""Parts of the coding kernels: tokens of values, signs and magnitudes of distances, and pieces of raw bits.

The same integer steps as ``pulse_kernels.format.symbols``, on blocks. ``WIDE`` is the unsigned type that holds a gap
and a magnitude: uint32, or uint64 for cells of 8 bytes.
"""

from __future__ import annotations

from typing import Any

from pulse_kernels.gpu.cells import order
from pulse_kernels.gpu.language import jit, tl

WIDE = {1: tl.uint32, 2: tl.uint32, 4: tl.uint32, 8: tl.uint64}
"""By bytes a cell."""
PIECES = {1: 2, 2: 3, 4: 4, 8: 6}
"""16-bit pieces of the most raw bits of a change: 22 of a gap, and bits - 3 of a magnitude."""


@jit
def bit_length(values: tl.tensor) -> Any:
    """Return the bit length of unsigned values of 32 or 64 bits, int32."""
    BITS: tl.constexpr = values.dtype.primitive_bitwidth
    rest = values
    length = tl.zeros(values.shape, tl.int32)
    for half in tl.static_range(5 if BITS == 32 else 6):
        high = (rest >> ((BITS // 2) >> half)) != 0
        length += tl.where(high, (BITS // 2) >> half, 0)
        rest = tl.where(high, rest >> ((BITS // 2) >> half), rest)
    return length + (rest != 0).to(tl.int32)


@jit
def token(values: tl.tensor, WIDE: tl.constexpr) -> Any:
    """Return (token, extra bits, number of extra bits) of values, the numbers as int32."""
    wide = values.to(WIDE)
    extra = tl.maximum(bit_length(wide) - 2, 0)
    shift = extra.to(WIDE)
    below = ((wide >> shift) & 1).to(tl.int32)
    small = wide < 4
    symbol = tl.where(small, wide.to(tl.int32), 2 * extra + 2 + below)
    one = tl.full(values.shape, 1, WIDE)
    return symbol, wide & ((one << shift) - 1), tl.where(small, 0, extra)


@jit
def extra_bits(symbol: tl.tensor) -> Any:
    """Return how many bits follow a token."""
    return tl.maximum((symbol >> 1) - 1, 0)


@jit
def first_value(symbol: tl.tensor, WIDE: tl.constexpr) -> Any:
    """Return the least value of a token."""
    return tl.where(symbol < 4, symbol.to(WIDE), (2 + (symbol & 1)).to(WIDE) << extra_bits(symbol).to(WIDE))


@jit
def sign_bit(values: tl.tensor) -> Any:
    """Return the top bit of unsigned values."""
    BITS: tl.constexpr = values.dtype.primitive_bitwidth
    return values >> (BITS - 1)


@jit
def sign_and_magnitude(step: tl.tensor, WIDE: tl.constexpr) -> Any:
    """Return (s, m) of unsigned distances: 1 where it is negative as signed, and its size less one."""
    s = sign_bit(step).to(tl.int32)
    size = tl.where(s != 0, ~step + 1, step)
    return s, (size - 1).to(WIDE)


@jit
def step_between(old: tl.tensor, new: tl.tensor, is_float: tl.tensor, OUTWARD: tl.constexpr) -> Any:
    """Return the distance from old to new; outward, where asked: negated for float cells of negative sign."""
    step = order(new, is_float) - order(old, is_float)
    if OUTWARD:
        step = outward(step, old, is_float)
    return step


@jit
def outward(step: tl.tensor, old: tl.tensor, is_float: tl.tensor) -> Any:
    """Negate the distances of float cells whose old sign bit is set; its own inverse."""
    negative = (sign_bit(old) != 0) & (is_float != 0)
    return tl.where(negative, ~step + 1, step)


@jit
def bucket(m: tl.tensor) -> Any:
    """Return the context, in ``gap``, of the change after one of magnitude m."""
    return tl.where(m == 0, 0, tl.where(m < 15, 1, 2))


@jit
def raw_piece(
    gap_bits: tl.tensor,
    gap_width: tl.tensor,
    value_bits: tl.tensor,
    PIECE: tl.constexpr,
) -> Any:
    """Return 16 bits, uint32, of a gap's extra bits with a magnitude's above them, from bit 16 * PIECE on."""
    WIDTH: tl.constexpr = value_bits.dtype.primitive_bitwidth
    most: tl.constexpr = WIDTH - 1
    shift = gap_width - 16 * PIECE
    above = value_bits << tl.minimum(tl.maximum(shift, 0), most).to(value_bits.dtype)
    bits = above >> tl.minimum(tl.maximum(-shift, 0), most).to(value_bits.dtype)
    if PIECE < 2:
        bits = bits | (gap_bits >> (16 * PIECE))
    return (bits & 0xFFFF).to(tl.uint32)
