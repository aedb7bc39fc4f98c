"""Spans for the numba loops: arrays that lie end to end, as a table of addresses.

A group's cells lie in many tensors. A call a span would cost more time in Python, and in threads that hand the
interpreter's lock to each other, than the loops need for their work; so a loop gets all spans of a group at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from pulse_kernels.cells import Cells
from pulse_kernels.spans import SpanTable

Address = Callable[[Cells], int]


def table(spans: Sequence[Cells], address: Address, dtype: np.dtype[Any]) -> SpanTable:
    """Return the table of spans of cells; ``address`` refuses arrays that the loops can't work on."""
    ends = np.array([0, *itertools.accumulate(map(len, spans))], np.uint64)
    at = np.array([address(span) for span in spans], np.uint64)
    return SpanTable(dtype, at, ends, np.zeros(len(at), np.bool), writable=True)


def address(cells: Any) -> Any:
    """Return where an array begins; compiled for one type of array, so that any other is refused."""
    return cells.ctypes.data


def address_to_write(cells: Any) -> Any:
    """``address`` of an array that can be written."""
    return cells.ctypes.data


def _array_at(_context: Any, like: Any, address: Any, size: Any) -> tuple[Any, Callable[..., Any]]:
    """array_at(like, address, n): the n cells at an address, as an array of the type of ``like``."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(like)(context, builder)
        nothing = context.get_constant_null(types.voidptr)
        width = context.get_constant(types.intp, like.dtype.bitwidth // 8)
        array.meminfo, array.parent = nothing, nothing
        array.data = builder.inttoptr(args[1], context.get_data_type(like.dtype).as_pointer())
        array.nitems, array.itemsize = args[2], width
        array.shape, array.strides = ((builder.insert_value(array.shape, n, 0)) for n in (args[2], width))
        return array._getvalue()

    return like(like, types.uint64, types.uint64), code


def _borrowed(_context: Any, given: Any) -> tuple[Any, Callable[..., Any]]:
    """borrowed(given): the same array, or tuple, to whose arrays no references are counted: they must outlive the loop.

    Numba counts those of each array that a helper is given, and leaves that out again only where helpers are simple.
    """

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        def same(kind: Any, value: Any) -> Any:
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, value)
                array.meminfo = array.parent = context.get_constant_null(types.voidptr)
                return array._getvalue()
            for n, part in enumerate(getattr(kind, "types", ())):
                value = builder.insert_value(value, same(part, builder.extract_value(value, n)), n)
            return value

        return same(given, args[0])

    return given(given), code


def _array_on_stack(_context: Any, like: Any, size: Any) -> tuple[Any, Callable[..., Any]]:
    """array_on_stack(like, n): room for n cells, a constant, as an array like another one, while the loop runs."""
    cells = like.copy(readonly=False)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        with builder.goto_entry_block():
            place = builder.alloca(context.get_data_type(like.dtype), size.literal_value)
        address = builder.ptrtoint(place, context.get_value_type(types.uint64))
        count = context.get_constant(types.uint64, size.literal_value)
        _, view = _array_at(None, cells, types.uint64, types.uint64)
        return view(context, builder, None, [None, address, count])

    return cells(like, size), code


array_at: Callable[..., Any] = intrinsic(_array_at)
borrowed: Callable[..., Any] = intrinsic(_borrowed)
array_on_stack: Callable[..., Any] = intrinsic(prefer_literal=True)(_array_on_stack)
