"""Counting cells by class, in LLVM IR (see ``simd``): eight blocks at a time, which are a *stretch*.

A processor looks up the entries of 16 bytes or more at once in a table of 16 (``pshufb``, ``tbl``). Here the byte is a
cell's class, and its entry a one in one of four fields of two bits: three entries add up without a carry, and count
four classes. Then fields of four bits have room for five such sums, and those of eight bits for the rest. So the 16
highest classes take four tables. Lower ones, of cells with a small exponent, are counted where a stretch has any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # numba's own LLVM layer; it has no type hints
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pulse_kernels.cpu.loops.simd import BLOCK, Loop, Typed, load, pointer, same, splat

BLOCKS = 8
"""Blocks a stretch."""
COUNTERS = 32
"""Counters of ``count_classes``, so most classes."""
AT_ONCE = 16
"""Classes whose cells are counted at once: as many as a table that the processor looks bytes up in has entries."""
_STRETCH = BLOCK * BLOCKS
_FIELDS = 4
"""Classes that a table's entries count: each in two bits of a byte."""
_TABLES = AT_ONCE // _FIELDS
_THREES = 5
"""Sums of three entries that are added up in fields of four bits, which hold up to 15."""
_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_X86 = "llvm.x86."
LOOK_UP = {
    "+avx512bw": (64, "llvm.x86.avx512.pshuf.b.512", "llvm.x86.avx512.psad.bw.512"),
    "+avx2": (32, "llvm.x86.avx2.pshuf.b", "llvm.x86.avx2.psad.bw"),
    "+ssse3": (16, "llvm.x86.ssse3.pshuf.b.128", "llvm.x86.sse2.psad.bw"),
}
"""By feature of a processor: how many bytes are looked up at once, and what looks them up and adds eight up."""


def instructions(context: Any) -> tuple[int, str, str]:
    """Return how many bytes are looked up at once, and the intrinsics that look up and that add up; "" for none."""
    triple, _, features = context.codegen().magic_tuple()
    for feature, found in LOOK_UP.items():
        if feature in features.split(","):
            return found
    return 16, "llvm.aarch64.neon.tbl1.v16i8" if triple.startswith("aarch64") else "", ""


def _called(builder: Any, name: str, result: Any, *args: Any) -> Any:
    insert: Loop = cgutils.get_or_insert_function
    return builder.call(insert(builder.module, ir.FunctionType(result, [a.type for a in args]), name), args)


def _look_up(builder: Any, name: str, table: int, index: Any) -> Any:
    """Return the table's entry of the low half of each byte; 0 of those that have their highest bit."""
    entries = [1 << 2 * (c % _FIELDS) if c // _FIELDS == table else 0 for c in range(AT_ONCE)]
    rows = ir.Constant(index.type, entries * (index.type.count // AT_ONCE))
    if name.startswith(_X86):
        return _called(builder, name, index.type, rows, index)
    index = builder.and_(index, same(index, 0x8F))
    if name:
        return _called(builder, name, index.type, rows, index)
    found = same(index, 0)
    for c in range(_FIELDS * table, _FIELDS * (table + 1)):
        found = builder.select(builder.icmp_unsigned("==", index, same(index, c)), same(index, entries[c]), found)
    return found


def _add_bytes(builder: Any, name: str, v: Any) -> Any:
    """Add up each eight bytes."""
    if name:
        return _called(builder, name, ir.VectorType(_I64, v.type.count // 8), v, same(v, 0))
    for bits in (8, 16, 32):
        wide = ir.VectorType(ir.IntType(2 * bits), v.type.count // 2)
        v = builder.bitcast(v, wide)
        v = builder.add(builder.and_(v, same(v, (1 << bits) - 1)), builder.lshr(v, same(v, bits)))
    return v


def _added(builder: Any, v: Any, w: Any) -> Any:
    return w if v is None else builder.add(v, w)


def _lanes(builder: Any, v: Any, w: Any, numbers: list[int]) -> Any:
    return builder.shuffle_vector(v, w, ir.Constant(ir.VectorType(_I32, len(numbers)), numbers))


def _two_sums(builder: Any, v: Any, w: Any) -> Any:
    """Add up the lanes of each of two vectors."""
    while v.type.count > 2:
        half = v.type.count // 2
        v, w = (builder.add(*(_lanes(builder, u, u, list(range(k, k + half))) for k in (0, half))) for u in (v, w))
    return builder.add(_lanes(builder, v, w, [0, 2]), _lanes(builder, v, w, [1, 3]))


def _fields_apart(builder: Any, v: Any) -> tuple[Any, Any]:
    """Spread fields of two bits: return bytes with the first and third in four bits each, and with the others."""
    shorts = ir.VectorType(_I16, v.type.count // 2)
    shifted = builder.lshr(builder.bitcast(v, shorts), ir.Constant(shorts, [2] * shorts.count))
    even, odd = (builder.and_(w, same(v, 0x33)) for w in (v, builder.bitcast(shifted, v.type)))
    return even, odd


def _in_one(builder: Any, sums: list[Any]) -> Any:
    """Put four sums of less than 2^16 in one lane, the first lowest."""
    found = sums[0]
    for n, v in enumerate(sums[1:], 1):
        found = builder.or_(found, builder.shl(v, same(v, 16 * n)))
    return found


def _count_sixteen(builder: Any, available: tuple[int, str, str], indices: list[Callable[[], Any]]) -> Any:
    """Count the bytes of a stretch that are 0, 1 .. 15; those with their highest bit are none of these.

    Bytes of fields of four bits hold two counts: their sums are those of the low field and of the whole byte, from
    which the high ones follow.
    """
    _, look_up, add_up = available
    lows: list[Any] = [None] * 2 * _TABLES
    wholes: list[Any] = [None] * 2 * _TABLES
    for begin in range(0, len(indices), _THREES * 3):
        counts: list[Any] = [None] * 2 * _TABLES
        end = min(begin + _THREES * 3, len(indices))
        for first in range(begin, end, 3):
            three = [index() for index in indices[first : min(first + 3, end)]]
            for table in range(_TABLES):
                fields = None
                for index in three:
                    fields = _added(builder, fields, _look_up(builder, look_up, table, index))
                for k, part in enumerate(_fields_apart(builder, fields), 2 * table):
                    counts[k] = _added(builder, counts[k], part)
        for k, v in enumerate(counts):
            lows[k] = _added(builder, lows[k], builder.and_(v, same(v, 0x0F)))
            wholes[k] = _added(builder, wholes[k], _add_bytes(builder, add_up, v))
    shorts, half = ir.VectorType(_I16, AT_ONCE // 2), _TABLES
    low, whole = (
        _two_sums(builder, _in_one(builder, sums[:half]), _in_one(builder, sums[half:]))
        for sums in ([_add_bytes(builder, add_up, v) for v in lows], wholes)
    )
    high = builder.bitcast(builder.sub(whole, low), shorts)
    high = builder.lshr(high, same(high, 4))
    order = [AT_ONCE // 2 * (c % 4 // 2) + 2 * (c // 4) + c % 2 for c in range(AT_ONCE)]
    return builder.zext(_lanes(builder, builder.bitcast(low, shorts), high, order), ir.VectorType(_I32, AT_ONCE))


def _classes_at(context: Any, builder: Any, array_type: Any, args: Any) -> Any:
    """Load a block's classes as bytes, 0 the highest, from (cells, at, shift, mask, first, last)."""
    v = load(context, builder, array_type, args[0], args[1])
    shift, mask = (splat(builder, arg) for arg in args[2:4])
    e = builder.and_(builder.lshr(v, shift), mask)
    if e.type.element in (_I16, _I32):  # it's a byte, of which LLVM has to be told: x86 packs signed ones
        e = _called(builder, f"llvm.smax.v{BLOCK}{e.type.element}", e.type, e, same(e, 0))
        e = _called(builder, f"llvm.smin.v{BLOCK}{e.type.element}", e.type, e, same(e, 255))
    if e.type.element != _I8:
        e = builder.trunc(e, ir.VectorType(_I8, BLOCK))
    below = _called(builder, f"llvm.usub.sat.v{BLOCK}i8", e.type, splat(builder, args[5]), e)
    return _called(builder, f"llvm.umin.v{BLOCK}i8", e.type, below, splat(builder, builder.sub(args[5], args[4])))


def _find_classes(
    _context: Any, cells: Any, at: Any, shift: Any, mask: Any, first: Any, last: Any, kinds: Any, place: Any
) -> Typed:
    """find_classes(cells, i, shift, mask, first, last, kinds, k): store the classes of a stretch from ``kinds[k]`` on.

    They are numbered from the highest down.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for number in range(BLOCKS):
            where, begin = (builder.add(arg, ir.Constant(_I64, BLOCK * number)) for arg in (args[1], args[7]))
            block = _classes_at(context, builder, signature.args[0], [args[0], where, *args[2:6]])
            place = pointer(context, builder, signature.args[6], args[6], begin)
            builder.store(block, builder.bitcast(place, block.type.as_pointer()), align=1)
        return context.get_dummy_value()

    cell, u64 = cells.dtype, types.uint64
    return types.void(cells, u64, cell, cell, types.uint8, types.uint8, kinds, u64), code


def _count_classes(_context: Any, kinds: Any, at: Any, totals: Any, befores: Any, row: Any) -> Typed:
    """count_classes(kinds, k, totals, befores, n): count a stretch's cells by class, the classes from ``kinds[k]`` on.

    Stores the uint32 totals of COUNTERS classes from ``befores[n]`` on, and then adds to them.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        available = instructions(context)
        vector, several = ir.VectorType(_I8, available[0]), ir.VectorType(_I32, AT_ONCE)
        halves = [ir.Constant(_I64, n) for n in (0, AT_ONCE)]

        def place(number: int, at: Any, kind: Any) -> Any:
            return builder.bitcast(
                pointer(context, builder, signature.args[number], args[number], at), kind.as_pointer()
            )

        def kinds_from(begin: int) -> Any:
            return builder.load(place(0, builder.add(args[1], ir.Constant(_I64, begin)), vector), align=1)

        def low_kinds_from(begin: int) -> Any:
            """Number the classes beyond AT_ONCE from 0, and let the others have their highest bit."""
            v = kinds_from(begin)
            return builder.add(builder.xor(v, same(v, AT_ONCE)), same(v, 0x80 - AT_ONCE))

        def counted(kinds: Callable[[int], Any]) -> Any:
            return _count_sixteen(builder, available, [functools.partial(kinds, begin) for begin in begins])

        begins = range(0, _STRETCH, vector.count)
        high, low = (place(2, n, several) for n in halves)
        high_before, low_before = (builder.load(total, align=1) for total in (high, low))
        for n, before in zip(halves, (high_before, low_before), strict=True):
            builder.store(before, place(3, builder.add(args[4], n), several), align=1)
        builder.store(builder.add(high_before, counted(kinds_from)), high, align=1)
        seen = functools.reduce(builder.or_, map(kinds_from, begins))
        beyond = builder.bitcast(builder.icmp_unsigned(">=", seen, same(seen, AT_ONCE)), ir.IntType(vector.count))
        with builder.if_then(builder.icmp_unsigned("!=", beyond, same(beyond, 0)), likely=False):
            found = counted(low_kinds_from)
            builder.store(builder.add(low_before, found), low, align=1)
            builder.store(builder.sub(builder.load(high, align=1), found), high, align=1)
        return context.get_dummy_value()

    u64 = types.uint64
    return types.void(kinds, u64, totals, befores, u64), code


def _classes_past(_context: Any, totals: Any, wanted: Any) -> Typed:
    """classes_past(totals, wanted): the mask of the classes that have more cells than the rank that is wanted."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, rank = (
            load(context, builder, kind, array, ir.Constant(_I64, 0), COUNTERS)
            for kind, array in zip(signature.args, args, strict=True)
        )
        return builder.zext(builder.bitcast(builder.icmp_unsigned(">", total, rank), ir.IntType(COUNTERS)), _I64)

    return types.uint64(totals, wanted), code


def _find_class(_context: Any, kinds: Any, at: Any, kind: Any, masks: Any, begin: Any) -> Typed:
    """find_class(kinds, k, c, masks, n): store the masks of class c in the stretch from k on, from ``masks[n]`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wanted = splat(builder, args[2])
        for number in range(BLOCKS):
            start = builder.add(args[1], ir.Constant(_I64, BLOCK * number))
            block = load(context, builder, signature.args[0], args[0], start)
            n = builder.add(args[4], ir.Constant(_I64, number))
            place = pointer(context, builder, signature.args[3], args[3], n)
            builder.store(builder.bitcast(builder.icmp_unsigned("==", block, wanted), _I64), place, align=1)
        return context.get_dummy_value()

    return types.void(kinds, types.uint64, types.uint8, masks, types.uint64), code


find_classes: Loop = intrinsic(_find_classes)
classes_past: Loop = intrinsic(_classes_past)
count_classes: Loop = intrinsic(_count_classes)
find_class: Loop = intrinsic(_find_class)
