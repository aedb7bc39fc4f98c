"""The choice of an implementation: the one module that imports them.

``get_backend()`` takes the fastest one that runs here; ``get_backend("numba")`` takes that one or raises.
"""

from __future__ import annotations

import functools
from typing import get_args

from pulse_kernels.cpu.compile_lock import COMPILING
from pulse_kernels.errors import BackendUnavailable
from pulse_kernels.protocol import Backend, BackendName, ExponentLoops, OuterLoops
from pulse_kernels.reference.backend import ReferenceBackend
from pulse_kernels.reference.exponents import ReferenceLoops
from pulse_kernels.reference.outer import ReferenceOuter


@functools.cache
def get_backend(name: BackendName = "auto") -> Backend:
    """Return a backend by name; ``auto`` takes numba where it imports and the NumPy reference elsewhere.

    Raises:
        BackendUnavailable: the named backend is unknown or can't be imported here.
    """
    if name not in get_args(BackendName):
        raise BackendUnavailable(f"no backend is called {name!r}; there are {', '.join(get_args(BackendName))}")
    if name == "reference":
        return ReferenceBackend()
    try:
        with COMPILING:
            from pulse_kernels.cpu.backend import NumbaBackend
    except ImportError as error:
        if name == "numba":
            raise BackendUnavailable(f"the numba backend can't be imported: {error}") from error
        return ReferenceBackend()
    return NumbaBackend()


@functools.cache
def exponent_loops(backend: str = "auto") -> ExponentLoops:
    """Return the loops of a backend that code exponents: NumPy's for ``reference`` or without numba, else compiled."""
    if backend == "reference":
        return ReferenceLoops()
    try:
        from pulse_kernels.cpu.exponents import CompiledLoops
    except ImportError:
        return ReferenceLoops()
    return CompiledLoops()


@functools.cache
def outer_loops(backend: str = "auto") -> OuterLoops:
    """Return the loops of a backend for the outer optimizer: NumPy's for ``reference`` or without numba."""
    if backend == "reference":
        return ReferenceOuter()
    try:
        from pulse_kernels.cpu.outer import CompiledOuter
    except ImportError:
        return ReferenceOuter()
    return CompiledOuter()
