"""SIMD intrinsics for the numba loops, in LLVM IR, which the compiler lowers for the processor at hand.

A *block* is 64 consecutive cells of any width, at any address. Comparing a block gives a
*mask*: a uint64 whose bit k speaks of cell k. So a loop looks at a block in a few instructions, and then only at the
cells that matter:

    while mask != 0:
        k = lowest(mask)
        mask &= mask - 1

The functions are for code that numba compiles; nothing is checked: the caller keeps blocks within the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # numba's own LLVM layer; it has no type hints
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 64
"""Cells a block."""
STEP = 16
"""Cells that ``add_products`` and ``compress`` take at a time."""
_SLOW_DEPOSIT = ("znver1", "znver2")
"""Processors whose instruction for it takes hundreds of cycles."""
Loop = Callable[..., Any]
Typed = tuple[Any, Callable[..., Any]]
_I1, _I8, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 32, 64))


def pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    """Return where entry ``at`` of an array lies."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def load(context: Any, builder: Any, array_type: Any, array: Any, at: Any, count: int = BLOCK) -> Any:
    """Load consecutive cells from any address."""
    vector = ir.VectorType(context.get_data_type(array_type.dtype), count)
    place = pointer(context, builder, array_type, array, at)
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=1)


def splat(builder: Any, value: Any, count: int = BLOCK) -> Any:
    """Repeat a scalar."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, count), [0] * count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def same(value: Any, number: int) -> Any:
    """Return a constant of the type of ``value``, be it a vector or a scalar."""
    count = getattr(value.type, "count", None)
    return ir.Constant(value.type, number if count is None else [number] * count)


def _round(builder: Any, v: Any) -> Any:
    """Round float32 patterns to BF16: to nearest, ties to even; a NaN keeps sign and top payload, made quiet."""
    high = builder.lshr(v, same(v, 16))
    odd = builder.and_(high, same(v, 1))
    rounded = builder.lshr(builder.add(builder.add(v, odd), same(v, 0x7FFF)), same(v, 16))
    nan = builder.icmp_unsigned(">", builder.and_(v, same(v, 0x7FFFFFFF)), same(v, 0x7F800000))
    wide = builder.select(nan, builder.or_(high, same(v, 0x40)), rounded)
    narrow = ir.IntType(16) if v.type == _I32 else ir.VectorType(ir.IntType(16), v.type.count)
    return builder.trunc(wide, narrow)


def _rounds(live: Any, base: Any) -> bool:
    """Tell whether live cells are float32 patterns to be rounded to the base's BF16."""
    return bool(live.dtype.bitwidth == 32 and base.dtype.bitwidth == 16)


def _cell(_context: Any, live: Any, base: Any, at: Any) -> Typed:
    """cell(live, base, i): live cell i as a pattern of the base's type."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(context, builder, signature.args[0], args[0], args[2])
        value = builder.load(place, align=1)
        return _round(builder, value) if _rounds(live, base) else value

    return base.dtype(live, base, types.uint64), code


def _differing(_context: Any, live: Any, base: Any, at: Any) -> Typed:
    """differing(live, base, i): the mask of the cells i to i + 63 that differ, live ones as ``cell`` gives them."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a = load(context, builder, signature.args[0], args[0], args[2])
        b = load(context, builder, signature.args[1], args[1], args[2])
        a = _round(builder, a) if _rounds(live, base) else a
        return builder.bitcast(builder.icmp_unsigned("!=", a, b), _I64)

    return types.uint64(live, base, types.uint64), code


def _lowest(_context: Any, mask: Any) -> Typed:
    """lowest(mask): the number of the lowest bit that is set; one must be."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(_I1, 1))

    return types.uint64(types.uint64), code


def _ones(_context: Any, mask: Any) -> Typed:
    """ones(mask): how many bits are set."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), code


def _compress(_context: Any, cells: Any, at: Any, mask: Any, out: Any, n: Any) -> Typed:
    """compress(cells, i, mask, out, n): write those of 16 cells from i on that a mask has, end to end from ``out[n]``.

    What it leaves in ``out`` behind these, up to 16 cells in all, is not said. Cells have 32 bits at most: of wider
    ones LLVM can't make code for some processors.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = load(context, builder, signature.args[0], args[0], args[1], STEP)
        wanted = builder.bitcast(builder.trunc(args[2], ir.IntType(STEP)), ir.VectorType(_I1, STEP))
        insert: Loop = cgutils.get_or_insert_function
        name = f"llvm.experimental.vector.compress.v{STEP}i{cells.dtype.bitwidth}"
        squeeze = insert(builder.module, ir.FunctionType(v.type, [v.type, wanted.type, v.type]), name)
        place = pointer(context, builder, signature.args[3], args[3], args[4])
        found = builder.call(squeeze, [v, wanted, ir.Constant(v.type, ir.Undefined)])
        builder.store(found, builder.bitcast(place, v.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(cells, types.uint64, types.uint64, out, types.uint64), code


def _expand(_context: Any, bits: Any, mask: Any) -> Typed:
    """expand(bits, mask): ``deposit`` on any processor.

    After Warren, *Hacker's Delight* (2nd edition, 7-5): how far a bit goes up is a number of six bits. Step i finds
    the places at which those bits end that go up by 2^i places, among others; then all go up, the longest way first.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask, zeros, ends = args[1], builder.shl(builder.not_(args[1]), same(args[1], 1)), []
        for i in range(6):
            odd = zeros
            for distance in (1, 2, 4, 8, 16, 32):
                odd = builder.xor(odd, builder.shl(odd, same(odd, distance)))
            end = builder.and_(odd, mask)
            ends.append(end)
            mask = builder.or_(builder.xor(mask, end), builder.lshr(end, same(end, 1 << i)))
            zeros = builder.and_(zeros, builder.not_(odd))
        found = args[0]
        for i, end in reversed(list(enumerate(ends))):
            up = builder.and_(builder.shl(found, same(found, 1 << i)), end)
            found = builder.or_(builder.and_(found, builder.not_(end)), up)
        return builder.and_(found, args[1])

    return types.uint64(types.uint64, types.uint64), code


def _deposit(typing: Any, bits: Any, mask: Any) -> Typed:
    """deposit(bits, mask): bit n of ``bits`` at the place of the n-th bit that is set in the mask, from the lowest."""
    signature, anywhere = _expand(typing, bits, mask)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, processor, features = context.codegen().magic_tuple()
        if "+bmi2" not in features or processor in _SLOW_DEPOSIT:
            return anywhere(context, builder, signature, args)
        insert: Loop = cgutils.get_or_insert_function
        pdep = insert(builder.module, ir.FunctionType(_I64, [_I64, _I64]), "llvm.x86.bmi.pdep.64")
        return builder.call(pdep, args)

    return signature, code


def _add_products(
    _context: Any, cells: Any, at: Any, steps: Any, shift: Any, table_0: Any, table_1: Any, row: Any, sums: Any
) -> Typed:
    """add_products(cells, i, n, shift, table_0, table_1, row, sums): add up 16 n 16-bit limbs times two tables.

    Limbs are those above bit ``shift`` of the cells from i on; the entries of the uint32 tables, from ``row`` on, go
    with them. The uint64 ``sums`` are of one table each. Neighbours are multiplied as the halves of a 64-bit lane, so
    that nothing is spread out to 64 bits.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def halves(v: Any) -> tuple[Any, Any]:
            pairs = builder.bitcast(v, ir.VectorType(_I64, STEP // 2))
            return builder.and_(pairs, same(pairs, 0xFFFFFFFF)), builder.lshr(pairs, same(pairs, 32))

        lanes = ir.VectorType(_I64, STEP // 2)
        with builder.goto_entry_block():
            totals = [builder.alloca(lanes) for _ in range(4)]
        for total in totals:
            builder.store(ir.Constant(lanes, [0] * (STEP // 2)), total)
        with cgutils.for_range(builder, args[2]) as loop:
            offset = builder.mul(loop.index, ir.Constant(_I64, STEP))
            v = load(context, builder, signature.args[0], args[0], builder.add(args[1], offset), STEP)
            v = builder.lshr(v, splat(builder, args[3], STEP))
            limbs = ir.VectorType(ir.IntType(16), STEP)
            v = (
                v
                if v.type == limbs
                else builder.zext(v, limbs)
                if cells.dtype.bitwidth < 16
                else builder.trunc(v, limbs)
            )
            values = halves(builder.zext(v, ir.VectorType(_I32, STEP)))
            for number in (4, 5):
                place = builder.add(args[6], offset)
                entries = halves(load(context, builder, signature.args[number], args[number], place, STEP))
                for half in (0, 1):
                    total = totals[2 * (number - 4) + half]
                    product = builder.mul(values[half], entries[half])
                    builder.store(builder.add(builder.load(total), product), total)
        for lane in (0, 1):
            both = builder.add(builder.load(totals[2 * lane]), builder.load(totals[2 * lane + 1]))
            place = pointer(context, builder, signature.args[7], args[7], ir.Constant(_I64, lane))
            whole = builder.load(place, align=1)
            for k in range(STEP // 2):
                whole = builder.add(whole, builder.extract_element(both, ir.Constant(_I32, k)))
            builder.store(whole, place, align=1)
        return context.get_dummy_value()

    u64 = types.uint64
    return types.void(cells, u64, u64, cells.dtype, table_0, table_1, u64, sums), code


def _fetch_ahead(_context: Any, cells: Any, at: Any) -> Typed:
    """fetch_ahead(cells, i): let the cache fetch cell i, which is looked at soon; nothing waits, or fails."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(pointer(context, builder, signature.args[0], args[0], args[1]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
        insert: Loop = cgutils.get_or_insert_function
        fetch = insert(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [place, *(ir.Constant(_I32, n) for n in (0, 3, 1))])  # to read, to keep, data
        return context.get_dummy_value()

    return types.void(cells, types.uint64), code


cell: Loop = intrinsic(_cell)
differing: Loop = intrinsic(_differing)
lowest: Loop = intrinsic(_lowest)
ones: Loop = intrinsic(_ones)
compress: Loop = intrinsic(_compress)
expand: Loop = intrinsic(_expand)
deposit: Loop = intrinsic(_deposit)
add_products: Loop = intrinsic(_add_products)
fetch_ahead: Loop = intrinsic(_fetch_ahead)
