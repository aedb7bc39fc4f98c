"""Compilation of the numba loops: one specialization a cell width, made once a process, cached on disk."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba import types

from pulse_kernels.cpu.cached_loops import loops_exposed, loops_folder
from pulse_kernels.cpu.compile_lock import COMPILING
from pulse_kernels.cpu.loops import (
    cells,
    class_counts,
    classes,
    digest,
    exponents,
    frequencies,
    graph,
    lanes,
    moving,
    outer,
    rans,
    simd,
    spans,
)

_U8, _U16, _U32, _U64 = types.uint8, types.uint16, types.uint32, types.uint64
_I16, _I32, _INT, _F32 = types.int16, types.int32, types.int64, types.float32


def _read(cell: Any, dimensions: int = 1) -> Any:
    # The widest array type: whatever is aligned and writable converts to it, so one specialization serves all.
    return types.Array(cell, dimensions, "C", readonly=True, aligned=False)


def _write(cell: Any, dimensions: int = 1) -> Any:
    return types.Array(cell, dimensions, "C", aligned=False)


_LOOPS = (cells, classes, digest, exponents, frequencies, graph, lanes, moving, outer, rans, spans)
"""The modules that hold them, one loop of a name in all."""
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "no_rewrites": True}
"""Of every loop. What none of them needs is left out: it would cost a good part of the time to compile."""
READY: dict[tuple[str, int], Callable[..., Any]] = {}
"""The loops that this process has compiled, or loaded from the cache on disk, by name and width."""


def compiled(name: str, width: int) -> Callable[..., Any]:
    """Return one loop for cells of ``width`` bytes: compiled once, by whichever thread needs it first."""
    function = READY.get((name, width))
    if function is None:
        with COMPILING, _garbage_kept():
            function = READY.get((name, width)) or _compile(name, width)
            READY[name, width] = function
    return function


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Hold the garbage collector back: the compiler's many small objects live on, and looking through them is slow."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def loops_of(width: int) -> Iterator[tuple[str, int]]:
    """Yield every loop that cells of ``width`` bytes need, as ``compiled`` takes it; a first push's come first."""
    for name in ("address", "digest", "address_to_write", "diff", "digest_sparse", "gather", "scatter"):
        yield name, width
    for name in ("distance", "class_ranks", "class_select", "class_values", "count_symbols", "move", "merge"):
        yield name, width
    for name in ("encode", "decode"):
        yield name, 2 if width == 2 else 8
    yield "walk_coded", width
    for name in ("address", "address_to_write", "gather", "scatter"):
        yield name, 4
    for name in ("union", "locate", "add_up", "store_tables", "read_tables"):
        yield name, 4
    for name in ("link_edges", "cheapest_path", "trace_path"):
        yield name, 8
    if width == 2:
        yield "cast_f32", 2


def exponent_loops() -> Iterator[tuple[str, int]]:
    """Yield the loops of coded keyframes, which those meet alone who use them."""
    for name in ("exponents_fit", "exponents_split", "exponents_join"):
        yield name, 2


def outer_loops() -> Iterator[tuple[str, int]]:
    """Yield the loops of the outer optimizer, which those meet alone who use it."""
    for name in (
        "outer_collect",
        "outer_square",
        "outer_gate",
        "outer_passed",
        "outer_settle",
        "outer_add",
        "outer_fold",
        "outer_step",
    ):
        yield name, 4


def cache_folder() -> Path | None:
    """Return the folder in which what is compiled stays for the next process; None where none can be, or may be."""
    folder: str | None = compiled("address", 2).stats.cache_path  # type: ignore[attr-defined]
    return None if folder is None else Path(folder)


def keep_in(folder: Path) -> None:
    """Keep what is compiled from now on below a folder, as NUMBA_CACHE_DIR does from the start."""
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # made from the environment


def exposed() -> str | None:
    """Say how another user could change what is compiled where numba would keep it; None if none could.

    What lies there is run as it is, so that it is neither read nor added to where somebody could.
    """
    return _exposed(numba.config.CACHE_DIR)  # type: ignore[attr-defined]  # made from the environment


@functools.cache
def _exposed(_: str) -> str | None:
    """Look once for each folder that is named."""
    loops_folder()  # makes numba's folder, if need be; numba itself would leave it open where the umask does
    try:
        folder: str | None = numba.njit(cache=True)(spans.address).stats.cache_path
    except (RuntimeError, OSError):
        return None  # there is none
    return None if folder is None else loops_exposed(Path(folder))


def _loop(name: str) -> Callable[..., Any]:
    """Return the plain function of a loop, under a name that tells versions of what it inlines apart, and of numba.

    Numba's cache looks at the file of the loop alone, and would go on using what it inlined from other ones. Of two
    versions of numba that share a folder, each would put its own in place of the other's.
    """
    loop: Callable[..., Any] = next(getattr(module, name) for module in _LOOPS if hasattr(module, name))
    inlined = "".join(inspect.getsource(module) for module in (class_counts, digest, lanes, rans, simd, spans))
    loop.__qualname__ = f"{name}-{zlib.crc32((numba.__version__ + inlined).encode()):08x}"
    return loop


def _compile(name: str, width: int) -> Callable[..., Any]:
    """Compile one loop, or load it from numba's cache on disk."""
    cell = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}[width]
    h = (_INT, _INT, _read(_U64), _read(_U32), _read(_U32), _write(_U64))
    coded = (_read(_U16), _read(_U16), _read(_INT), _read(_U8), *(2 * (_read(_U32), _read(_U8))))
    places = (_read(_U64), _read(_U64))
    signatures: dict[str, tuple[Any, ...]] = {
        "diff": (
            *(_read(_U64), _read(types.boolean), *places, _read(_U32 if width == 2 else cell), _write(cell)),
            *(_INT, _INT, types.boolean, _write(_U32), _write(cell), _write(cell)),
        ),
        "address": (_read(cell),),
        "address_to_write": (_write(cell),),
        "cast_f32": (_read(_U32), _write(cell)),
        "gather": (*places, _read(cell), _read(_U32), _write(cell)),
        "scatter": (*places, _write(cell), _read(_U32), _read(cell)),
        "distance": (_read(cell), _read(cell), cell, cell, _write(cell)),
        "move": (_read(cell), _read(cell), cell, cell, _write(cell)),
        "merge": (_read(_U32), _read(cell), _read(_U32), _read(cell), _write(_U32), _write(cell)),
        "union": (_read(_U32), _read(_U32), _write(_U32)),
        "locate": (_read(_U32), _read(_U32), _write(_U32)),
        "digest": (*places, _read(cell), *h),
        "digest_sparse": (_read(_U32), _read(cell), _read(cell), *h),
        "exponents_fit": (_read(cell), _write(_U8), _write(_U8), _write(_U32)),
        "exponents_split": (_read(cell), _read(_U8), _read(_U32), _write(cell), _write(_U8), _write(_U8)),
        "exponents_join": (_read(_U8), _read(_U32), _read(cell), _read(_U8), _read(_U8), _write(cell)),
        "outer_collect": (_read(_F32), _read(_F32), _read(_F32), _write(_F32)),
        "outer_square": (_read(_F32), _read(_F32), _F32),
        "outer_gate": (_read(_F32), _read(_F32), _F32, _F32, _INT, types.boolean, _write(_U32), _write(_I16)),
        "outer_passed": (_read(_F32), _read(_F32), _F32, _write(_U32)),
        "outer_settle": (_write(_F32), _read(_U32), _read(_I16), _F32),
        "outer_add": (_write(_INT), _read(_U32), _read(_I16), _INT),
        "outer_fold": (
            *(_write(_F32), _write(_F32), _read(_U64), _read(_U64), _read(_U64), _read(_INT)),
            *(_read(_U32), _read(_I16), _F32, _F32, _F32),
        ),
        "outer_step": (_write(_F32), _write(_F32), _read(_U32), _read(_F32), _F32, _F32),
        "class_ranks": (
            *(*places, _read(cell), _read(_U32), _read(cell), cell, cell, _U8, _U8),
            *(_write(_U32), _write(_U32), _write(_U8)),
        ),
        "class_select": (
            *(*places, _read(cell), cell, cell, _U8, _U8, _write(_U32), _write(_INT), _read(_INT)),
            *(_read(_U32), _write(_U32), _write(_U32), _write(cell)),
        ),
        "class_values": (_read(cell), cell, cell, _write(_U32)),
        "count_symbols": (
            *(_read(_U32), _read(_U8), _read(cell), _read(cell), _INT, cell, cell, _write(_U32), _read(_U8)),
            *(_write(_U32), _write(cell if width == 2 else _U64), _write(_U64), *(2 * (_write(_U32),))),
        ),
        "encode": (
            *(_read(_U64), _read(_U32), _read(cell), _INT, _read(_U64), _read(_U64)),
            *(_write(_U16, 2), _write(_U16), _write(_U16), _INT, _INT),
        ),
        "decode": (*coded, _write(_U32), _INT, _write(_U32), _write(cell), _write(_U32)),
        "walk_coded": (
            *(*coded, _write(_U32), _INT, _INT, *places, _write(cell), types.boolean, cell, cell, *h),
            *(_write(cell if width == 2 else _U64), _write(_U32), _write(_U32), _write(cell), _write(cell)),
        ),
        "add_up": (_write(_U32), _read(_INT), _INT),
        "link_edges": (_read(_INT), _read(_INT), _read(types.boolean), _INT, _write(_I32), _write(_I32)),
        "cheapest_path": (
            *(_read(_I32), _read(_I32), _read(_INT), _read(_INT), _read(_INT), _INT, _INT, _read(_INT)),
            *(5 * (_write(_INT),)),
        ),
        "trace_path": (_read(_INT), _read(_INT), _INT, _INT, _write(_INT)),
        "store_tables": (
            *(_read(_U32, 2), _read(_U32), _read(_U32), _read(_U64), types.boolean),
            *(_write(_U32), _write(_U8), _write(_U64, 3)),
        ),
        "read_tables": (
            *(_read(_U8), _read(_U8), _read(_U32), _read(_U32), _write(_U32)),
            *(_write(_U32, 2), _write(_U8, 2), _write(_U8)),
        ),
    }
    loop = _loop(name)
    try:
        function: Callable[..., Any] = numba.njit(signatures[name], cache=exposed() is None, **_OPTIONS)(loop)
    except (RuntimeError, OSError) as error:
        if isinstance(error, RuntimeError) and "cannot cache" not in str(error):
            raise
        # No folder can be written, not even the user's, or its disk is full: every process compiles for itself.
        function = numba.njit(signatures[name], **_OPTIONS)(loop)
    return function


def _inline(module: Any, *names: str) -> None:
    """Let the loops of a module use its helpers, which become a part of them: a call costs more than most do.

    A helper is compiled once for each combination of types, so its callers take care to pass the same ones.
    """
    options = {**_OPTIONS, "no_cpython_wrapper": True, "forceinline": True}
    for name in names:
        setattr(module, name, numba.njit(**options)(getattr(module, name)))


_inline(cells, "_diff")
_inline(digest, "_mix", "_multipliers", "_digest", "digest_changes")
_inline(classes, "_class_of", "_fetch", "_find_members", "_rank_span", "_following", "_select_span")
_inline(frequencies, "_level", "_share", "_store", "_find_by_slot")
_inline(rans, "_extra", "_token", "_negated", "_first", "_low", "_distance", "_magnitude", "_symbols")
_inline(rans, "_order", "_count", "_emit", "_put_symbol", "_put_raw", "_put_long", "_put", "_finish")
_inline(rans, "_refill", "_step", "_too_far", "_take_symbol", "take_long", "_take", "read_out")
_inline(rans, "next_table", "gap_row", "take_pair")
_inline(lanes, "_spread", "spread_tables", "_take_long", "_take_lanes", "take_next")
_inline(moving, "_add_up", "_locate", "_move")
_inline(graph, "_rise", "_sink")
_inline(outer, "_fires", "_stepped")
_inline(exponents, "_mark", "_encode", "_push", "_pull", "_join", "_push_three", "_pull_three", "_meet", "_outside")
_inline(exponents, "_count", "_place", "_places", "_find", "_window")
