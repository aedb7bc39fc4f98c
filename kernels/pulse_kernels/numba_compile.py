"""Compilation of the numba loops: one specialization a cell width, made once a process, cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numba
from numba import types

from pulse_kernels import numba_kernels, numba_streams

_U8, _U32, _U64, _INT = types.uint8, types.uint32, types.uint64, types.int64


def _read(cell: Any) -> Any:
    # The widest array type: whatever is aligned and writable converts to it, so one specialization serves all.
    return types.Array(cell, 1, "C", readonly=True, aligned=False)


def _write(cell: Any) -> Any:
    return types.Array(cell, 1, "C", aligned=False)


_COMPILING = threading.Lock()
_done: dict[tuple[str, int], Callable[..., Any]] = {}


def compiled(name: str, width: int) -> Callable[..., Any]:
    """Return one loop for cells of ``width`` bytes: compiled once, by whichever thread needs it first."""
    function = _done.get((name, width))
    if function is None:
        with _COMPILING:
            function = _done.get((name, width)) or _compile(name, width)
            _done[name, width] = function
    return function


def compile_all(width: int) -> None:
    """Compile, or load, every loop that cells of ``width`` bytes need."""
    for name in ("diff", "gather", "scatter", "distance", "move", "merge", "digest", "digest_sparse"):
        compiled(name, width)
    for name in ("class_ranks", "class_select", "tokens", "raw_bits", "unpack"):
        compiled(name, width)
    for name in ("gather", "scatter", "union", "locate"):
        compiled(name, 4)
    if width == 2:
        compiled("cast_f32", 2)
        compiled("diff_f32", 2)


def _compile(name: str, width: int) -> Callable[..., Any]:
    """Compile one loop, or load it from numba's cache on disk."""
    cell = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}[width]
    tables = (_read(_U64), _read(_U32), _read(_U32), _write(_U64))
    signatures: dict[str, tuple[Any, ...]] = {
        "diff": (_read(cell), _read(cell), _INT, _write(_U32), _write(cell), _write(cell)),
        "diff_f32": (_read(_U32), _read(cell), _INT, _write(_U32), _write(cell), _write(cell)),
        "cast_f32": (_read(_U32), _write(cell)),
        "gather": (_read(cell), _read(_U32), _write(cell)),
        "scatter": (_write(cell), _read(_U32), _read(cell)),
        "distance": (_read(cell), _read(cell), cell, cell, _write(cell)),
        "move": (_read(cell), _read(cell), cell, cell, _write(cell)),
        "merge": (_read(_U32), _read(cell), _read(_U32), _read(cell), _write(_U32), _write(cell)),
        "union": (_read(_U32), _read(_U32), _write(_U32)),
        "locate": (_read(_U32), _read(_U32), _write(_U32)),
        "digest": (_read(cell), _INT, _INT, *tables),
        "digest_sparse": (_read(_U32), _read(cell), _INT, _INT, *tables),
        "class_ranks": (
            *(_read(cell), _read(_U32), _INT, _INT, cell, cell),
            *(_write(_U32), _write(_U32), _write(_U8)),
        ),
        "class_select": (
            *(_read(cell), _INT, cell, cell, _write(_U32), _write(_U32), _write(_INT), _read(_INT)),
            *(_read(_U32), _write(_U32), _write(_U32), _INT),
        ),
        "tokens": (_read(_U32), _read(cell), _INT, _read(_U32), _read(_U8), _write(_U8), _write(_U8)),
        "raw_bits": (_read(_U32), _read(cell), _INT, _read(_U32), _read(_U8), _write(_U8)),
        "unpack": (
            *(_read(_U8), _read(_U8), _read(_U8), _read(_U32), _read(_U8), _INT, _INT),
            *(_write(_U32), _write(cell)),
        ),
    }
    loop = getattr(numba_streams if hasattr(numba_streams, name) else numba_kernels, name)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        function: Callable[..., Any] = numba.njit(signatures[name], cache=True, **options)(loop)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        # No folder can be written, not even the user's: every process compiles for itself.
        function = numba.njit(signatures[name], **options)(loop)
    return function


def _inline(module: Any, *names: str) -> None:
    """Let the loops of a module call its helpers."""
    for name in names:
        setattr(module, name, numba.njit(nogil=True, error_model="numpy")(getattr(module, name)))


_inline(numba_kernels, "_bf16", "_mix")
_inline(numba_streams, "_length", "_low", "_magnitude", "_flush", "_fill", "_extra")
