"""The loops that write and read a group's streams (see ``streams``), compiled by ``numba_compile``.

Raw bits pass through a register: ``held`` has ``have`` bits that are not written yet, or not used yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
U64 = np.uint64
ONE = U64(1)
OK, TOO_FAR, BAD_DISTANCE, BAD_TOKEN, OUT_OF_BITS, BITS_LEFT = range(6)
"""What ``unpack`` returns."""


def _length(value: U64) -> int:
    n = 0
    while value != U64(0):
        value >>= ONE
        n += 1
    return n


def _low(value: U64, width: int) -> U64:
    """Return the ``width`` low bits of a value."""
    return value & ((ONE << U64(width)) - ONE)


def _magnitude(d: U64, bits: int) -> U64:
    """Return |d| - 1 of a non-zero distance."""
    return (((ONE << U64(bits - 1)) << ONE) - d if d >> U64(bits - 1) else d) - ONE


def tokens(
    gaps: Array, step: Array, bits: int, counts: Array, shifts: Array, gap_tokens: Array, magnitude_tokens: Array
) -> int:
    """Write both token streams; return the number of raw bits that ``raw_bits`` will write."""
    k = 0
    total = 0
    for run in range(len(counts)):
        shift = U64(shifts[run])
        for _ in range(counts[run]):
            high = U64(gaps[k]) >> shift
            magnitude = _magnitude(U64(step[k]), bits)
            total += 1 + int(shift)
            if high < U64(192):
                gap_tokens[k] = high
            else:
                n = _length(high)
                gap_tokens[k] = 184 + n
                total += n - 1
            if magnitude < U64(192):
                magnitude_tokens[k] = magnitude
            else:
                n = _length(magnitude)
                magnitude_tokens[k] = 184 + n
                total += n - 1
            k += 1
    return total


def _flush(out: Array, at: int, held: U64, have: int) -> tuple[int, U64, int]:
    """Write whole bytes out of the register."""
    while have >= 8:
        out[at] = held & U64(0xFF)
        held >>= U64(8)
        have -= 8
        at += 1
    return at, held, have


def raw_bits(gaps: Array, step: Array, bits: int, counts: Array, shifts: Array, out: Array) -> None:
    """Write the raw bits of every cell, from the least significant bit of the first byte on."""
    k = 0
    held = U64(0)
    have = 0
    at = 0
    for run in range(len(counts)):
        shift = int(shifts[run])
        for _ in range(counts[run]):
            gap, d = U64(gaps[k]), U64(step[k])
            held |= ((d >> U64(bits - 1)) | (_low(gap, shift) << ONE)) << U64(have)
            have += 1 + shift
            high = gap >> U64(shift)
            if high >= U64(192):
                at, held, have = _flush(out, at, held, have)
                n = _length(high) - 1
                held |= _low(high, n) << U64(have)
                have += n
            rest = _magnitude(d, bits)
            if rest >= U64(192):
                n = _length(rest) - 1
                while n > 0:
                    at, held, have = _flush(out, at, held, have)
                    width = min(n, 32)
                    held |= _low(rest, width) << U64(have)
                    have += width
                    rest >>= U64(width)
                    n -= width
            at, held, have = _flush(out, at, held, have)
            k += 1
    if have > 0:
        out[at] = held & U64(0xFF)


def _fill(raw: Array, at: int, held: U64, have: int) -> tuple[int, U64, int]:
    """Read bytes into the register until it has over 56 bits, or all there are."""
    while have <= 56 and at < len(raw):
        held |= U64(raw[at]) << U64(have)
        have += 8
        at += 1
    return at, held, have


def _extra(symbol: U64, most: int, raw: Array, at: int, held: U64, have: int) -> tuple[int, U64, int, U64, int]:
    """Read the extra bits of a token of 192 or more; return (fault, value, at, held, have)."""
    n = int(symbol) - 185
    if n > most:
        return BAD_TOKEN, symbol, at, held, have
    value = ONE << U64(n)
    done = 0
    while done < n:
        at, held, have = _fill(raw, at, held, have)
        width = min(n - done, 32)
        if have < width:
            return OUT_OF_BITS, value, at, held, have
        value |= _low(held, width) << U64(done)
        held >>= U64(width)
        have -= width
        done += width
    return OK if value >= U64(192) else BAD_TOKEN, value, at, held, have


def unpack(
    gap_tokens: Array,
    magnitude_tokens: Array,
    raw: Array,
    counts: Array,
    shifts: Array,
    bits: int,
    limit: int,
    position: Array,
    step: Array,
) -> int:
    """Read all changes; returns OK or what is wrong."""
    k = 0
    at = 0
    held = U64(0)
    have = 0
    half = ONE << U64(bits - 1)
    for run in range(len(counts)):
        shift = int(shifts[run])
        after = U64(0)
        for _ in range(counts[run]):
            at, held, have = _fill(raw, at, held, have)
            if have < 1 + shift:
                return OUT_OF_BITS
            negative = held & ONE
            low = _low(held >> ONE, shift)
            held >>= U64(1 + shift)
            have -= 1 + shift
            high, magnitude = U64(gap_tokens[k]), U64(magnitude_tokens[k])
            if high >= U64(192):
                fault, high, at, held, have = _extra(high, 31, raw, at, held, have)
                if fault != OK:
                    return fault
            if magnitude >= U64(192):
                fault, magnitude, at, held, have = _extra(magnitude, 63, raw, at, held, have)
                if fault != OK:
                    return fault
            if magnitude >= half or (magnitude == half - ONE and not negative):
                return BAD_DISTANCE
            after += (high << U64(shift)) + low + ONE
            if after > U64(limit):
                return TOO_FAR
            position[k] = after - ONE
            step[k] = U64(0) - magnitude - ONE if negative else magnitude + ONE
            k += 1
    if at != len(raw) or have >= 8 or held != U64(0):
        return BITS_LEFT
    return OK
