"""SIMD intrinsics for the numba loops, in LLVM IR, which the compiler lowers for the processor at hand.

A *block* is 64 consecutive cells of any width, at any address; a *stretch* is eight blocks. Comparing a block gives a
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
BLOCKS = 8
"""Blocks a stretch."""
STEP = 16
"""Cells that ``add_products`` and ``compress`` take at a time."""
COUNTERS = 32
"""Counters of ``count_classes``, so most classes."""
_SLOW_DEPOSIT = ("znver1", "znver2")
"""Processors whose instruction for it takes hundreds of cycles."""
Loop = Callable[..., Any]
Typed = tuple[Any, Callable[..., Any]]
_I1, _I8, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 32, 64))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _load(context: Any, builder: Any, array_type: Any, array: Any, at: Any, count: int = BLOCK) -> Any:
    """Load consecutive cells from any address."""
    vector = ir.VectorType(context.get_data_type(array_type.dtype), count)
    pointer = _pointer(context, builder, array_type, array, at)
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)


def _splat(builder: Any, value: Any, count: int = BLOCK) -> Any:
    """Repeat a scalar."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, count), [0] * count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def _same(value: Any, number: int) -> Any:
    """Return a constant of the type of ``value``, be it a vector or a scalar."""
    count = getattr(value.type, "count", None)
    return ir.Constant(value.type, number if count is None else [number] * count)


def _round(builder: Any, v: Any) -> Any:
    """Round float32 patterns to BF16: to nearest, ties to even; a NaN keeps sign and top payload, made quiet."""
    high = builder.lshr(v, _same(v, 16))
    odd = builder.and_(high, _same(v, 1))
    rounded = builder.lshr(builder.add(builder.add(v, odd), _same(v, 0x7FFF)), _same(v, 16))
    nan = builder.icmp_unsigned(">", builder.and_(v, _same(v, 0x7FFFFFFF)), _same(v, 0x7F800000))
    wide = builder.select(nan, builder.or_(high, _same(v, 0x40)), rounded)
    narrow = ir.IntType(16) if v.type == _I32 else ir.VectorType(ir.IntType(16), v.type.count)
    return builder.trunc(wide, narrow)


def _rounds(live: Any, base: Any) -> bool:
    """Tell whether live cells are float32 patterns to be rounded to the base's BF16."""
    return bool(live.dtype.bitwidth == 32 and base.dtype.bitwidth == 16)


def _cell(_context: Any, live: Any, base: Any, at: Any) -> Typed:
    """cell(live, base, i): live cell i as a pattern of the base's type."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[2])
        value = builder.load(pointer, align=1)
        return _round(builder, value) if _rounds(live, base) else value

    return base.dtype(live, base, types.uint64), code


def _differing(_context: Any, live: Any, base: Any, at: Any) -> Typed:
    """differing(live, base, i): the mask of the cells i to i + 63 that differ, live ones as ``cell`` gives them."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a = _load(context, builder, signature.args[0], args[0], args[2])
        b = _load(context, builder, signature.args[1], args[1], args[2])
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
        v = _load(context, builder, signature.args[0], args[0], args[1], STEP)
        wanted = builder.bitcast(builder.trunc(args[2], ir.IntType(STEP)), ir.VectorType(_I1, STEP))
        insert: Loop = cgutils.get_or_insert_function
        name = f"llvm.experimental.vector.compress.v{STEP}i{cells.dtype.bitwidth}"
        squeeze = insert(builder.module, ir.FunctionType(v.type, [v.type, wanted.type, v.type]), name)
        place = _pointer(context, builder, signature.args[3], args[3], args[4])
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
        mask, zeros, ends = args[1], builder.shl(builder.not_(args[1]), _same(args[1], 1)), []
        for i in range(6):
            odd = zeros
            for distance in (1, 2, 4, 8, 16, 32):
                odd = builder.xor(odd, builder.shl(odd, _same(odd, distance)))
            end = builder.and_(odd, mask)
            ends.append(end)
            mask = builder.or_(builder.xor(mask, end), builder.lshr(end, _same(end, 1 << i)))
            zeros = builder.and_(zeros, builder.not_(odd))
        found = args[0]
        for i, end in reversed(list(enumerate(ends))):
            up = builder.and_(builder.shl(found, _same(found, 1 << i)), end)
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


def _classes_at(context: Any, builder: Any, array_type: Any, args: Any) -> Any:
    """Load a block's classes as bytes, from (cells, at, shift, mask, first, last)."""
    v = _load(context, builder, array_type, args[0], args[1])
    shift, mask = (_splat(builder, arg) for arg in args[2:4])
    wide = builder.and_(builder.lshr(v, shift), mask)
    e = wide if wide.type.element == _I8 else builder.trunc(wide, ir.VectorType(_I8, BLOCK))
    first, last = (_splat(builder, arg) for arg in args[4:6])
    e = builder.select(builder.icmp_unsigned("<", e, first), first, e)
    e = builder.select(builder.icmp_unsigned(">", e, last), last, e)
    return builder.sub(e, first)


def _stretch(context: Any, builder: Any, array_type: Any, args: Any) -> list[Any]:
    """Load the classes of a stretch, a vector a block."""
    starts = [builder.add(args[1], ir.Constant(_I64, BLOCK * number)) for number in range(BLOCKS)]
    return [_classes_at(context, builder, array_type, [args[0], start, *args[2:]]) for start in starts]


def _members(builder: Any, classes: Any, kind: Any) -> Any:
    return builder.bitcast(builder.icmp_unsigned("==", classes, kind), _I64)


def _planes(builder: Any, blocks: list[Any]) -> list[Any]:
    """Return a vector for each bit of the classes: its bytes have one bit of the same byte of all eight blocks.

    The first step of the exchange puts bits 0 to 3 of two blocks in one byte, the next two halve that again.
    """
    rows = blocks
    for distance, low in ((4, 0x0F), (2, 0x33), (1, 0x55)):
        following = list(rows)
        for k in range(BLOCKS):
            if k & distance:
                continue
            a, b = rows[k], rows[k | distance]
            by = _same(a, distance)
            following[k] = builder.or_(builder.and_(a, _same(a, low)), builder.shl(builder.and_(b, _same(b, low)), by))
            high = builder.and_(builder.lshr(a, by), _same(a, low))
            following[k | distance] = builder.or_(high, builder.and_(b, _same(b, 0xFF ^ low)))
        rows = following
    return [builder.bitcast(row, ir.VectorType(_I64, BLOCKS)) for row in rows[:5]]


def _total(builder: Any, v: Any) -> Any:
    """Add up the lanes of a vector."""
    while v.type.count > 1:
        half = v.type.count // 2
        parts = []
        for first in (0, half):
            lanes = ir.Constant(ir.VectorType(_I32, half), list(range(first, first + half)))
            parts.append(builder.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), lanes))
        v = builder.add(*parts)
    return builder.extract_element(v, ir.Constant(_I32, 0))


def _four_counts(builder: Any, kinds: list[Any]) -> Any:
    """Count the bits of four vectors: at most 512 each, so that one sum of 64 bits has room for all."""
    total, kind = None, kinds[0].type
    # llvmlite's own ``ctpop`` refuses vectors, which LLVM's takes.
    insert: Loop = cgutils.get_or_insert_function
    ctpop = insert(builder.module, ir.FunctionType(kind, [kind]), "llvm.ctpop.v8i64")
    for number, members in enumerate(kinds):
        ones = builder.call(ctpop, [members])
        ones = builder.shl(ones, _same(ones, 16 * number))
        total = ones if total is None else builder.add(total, ones)
    counts = builder.bitcast(_total(builder, total), ir.VectorType(ir.IntType(16), 4))
    return builder.zext(counts, ir.VectorType(_I32, 4))


def _count_classes(
    _context: Any,
    cells: Any,
    at: Any,
    shift: Any,
    mask: Any,
    first: Any,
    last: Any,
    counters: Any,
    wanted: Any,
    kinds: Any,
) -> Typed:
    """count_classes(cells, i, shift, mask, first, last, counters, wanted, kinds): count a stretch's cells by class.

    Adds to a uint32 a class, stores the class of each cell, and returns the mask of the classes whose counter is now
    past what is wanted. Eight blocks at a time, because much of the time goes to what is done once a class.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        blocks = _stretch(context, builder, signature.args[0], args)
        for number, block in enumerate(blocks):
            place = _pointer(context, builder, signature.args[8], args[8], ir.Constant(_I64, BLOCK * number))
            builder.store(block, builder.bitcast(place, block.type.as_pointer()), align=1)
        classes = builder.add(builder.zext(builder.sub(args[5], args[4]), _I64), ir.Constant(_I64, 1))
        planes = _planes(builder, blocks)
        eight = [ir.Constant(planes[0].type, [-1] * BLOCKS)]
        for plane in planes[:3]:
            eight = [builder.and_(v, side) for side in (builder.not_(plane), plane) for v in eight]
        with builder.goto_entry_block():
            passed = builder.alloca(_I64)
        builder.store(ir.Constant(_I64, 0), passed)
        groups = builder.lshr(builder.add(classes, _same(classes, 7)), _same(classes, 3))
        with cgutils.for_range(builder, groups) as loop:
            # The group's number less one is all ones where it is zero: where the bit of a class is, too.
            sides = builder.and_(loop.index, _same(loop.index, 1)), builder.lshr(loop.index, _same(loop.index, 1))
            turns = [_splat(builder, builder.sub(side, _same(side, 1)), BLOCKS) for side in sides]
            rest = builder.and_(*(builder.xor(plane, turn) for plane, turn in zip(planes[3:], turns, strict=True)))
            for half in (0, 4):
                found = _four_counts(builder, [builder.and_(v, rest) for v in eight[half : half + 4]])
                begin = builder.add(builder.shl(loop.index, _same(loop.index, 3)), _same(loop.index, half))
                counter, limit = (
                    builder.bitcast(_pointer(context, builder, kind, array, begin), found.type.as_pointer())
                    for kind, array in zip(signature.args[6:8], args[6:8], strict=True)
                )
                counts = builder.add(builder.load(counter, align=1), found)
                builder.store(counts, counter, align=1)
                past = builder.icmp_unsigned("<", builder.load(limit, align=1), counts)
                past = builder.shl(builder.zext(builder.bitcast(past, ir.IntType(4)), _I64), begin)
                builder.store(builder.or_(builder.load(passed), past), passed)
        return builder.load(passed)

    cell = cells.dtype
    signature = cells, types.uint64, cell, cell, types.uint8, types.uint8, counters, wanted, kinds
    return types.uint64(*signature), code


def _find_class(_context: Any, kinds: Any, kind: Any, masks: Any) -> Typed:
    """find_class(kinds, c, masks): store the masks of class c in a stretch."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wanted = _splat(builder, args[1])
        for number in range(BLOCKS):
            block = _load(context, builder, signature.args[0], args[0], ir.Constant(_I64, BLOCK * number))
            place = _pointer(context, builder, signature.args[2], args[2], ir.Constant(_I64, number))
            builder.store(_members(builder, block, wanted), place, align=1)
        return context.get_dummy_value()

    return types.void(kinds, types.uint8, masks), code


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
            return builder.and_(pairs, _same(pairs, 0xFFFFFFFF)), builder.lshr(pairs, _same(pairs, 32))

        lanes = ir.VectorType(_I64, STEP // 2)
        with builder.goto_entry_block():
            totals = [builder.alloca(lanes) for _ in range(4)]
        for total in totals:
            builder.store(ir.Constant(lanes, [0] * (STEP // 2)), total)
        with cgutils.for_range(builder, args[2]) as loop:
            offset = builder.mul(loop.index, ir.Constant(_I64, STEP))
            v = _load(context, builder, signature.args[0], args[0], builder.add(args[1], offset), STEP)
            v = builder.lshr(v, _splat(builder, args[3], STEP))
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
                entries = halves(_load(context, builder, signature.args[number], args[number], place, STEP))
                for half in (0, 1):
                    total = totals[2 * (number - 4) + half]
                    product = builder.mul(values[half], entries[half])
                    builder.store(builder.add(builder.load(total), product), total)
        for lane in (0, 1):
            both = builder.add(builder.load(totals[2 * lane]), builder.load(totals[2 * lane + 1]))
            place = _pointer(context, builder, signature.args[7], args[7], ir.Constant(_I64, lane))
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
        place = builder.bitcast(_pointer(context, builder, signature.args[0], args[0], args[1]), cgutils.voidptr_t)
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
count_classes: Loop = intrinsic(_count_classes)
find_class: Loop = intrinsic(_find_class)
add_products: Loop = intrinsic(_add_products)
fetch_ahead: Loop = intrinsic(_fetch_ahead)
