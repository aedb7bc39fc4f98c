"""The kernels' backend as a registry takes it: by name, with an error that callers of this library know."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from pulse_kernels import (
    Backend,
    BackendName,
    BackendUnavailable,
    get_backend,
    loops_cached,
    loops_exposed,
    loops_folder,
)
from pulse_registry.errors import InvalidArgument

_COMPILES: Final = (
    "this process compiles them, for some ten seconds of one core, from its first push or pull on, "
    "and those may wait for it. "
)
_NOWHERE: Final = (
    f"no folder can be written to keep the compiled kernels in: {_COMPILES}Set NUMBA_CACHE_DIR to a folder that this "
    "user can write, filled by `pulse warm-up --to DIR`"
)
_EXPOSED: Final = (
    f"the kernels in {{}} are not used, as {{}}, and whoever changes them there runs code as this user: {_COMPILES}"
    "Take the right to write away from others, or set NUMBA_CACHE_DIR to a folder that is this user's alone"
)
_NOT_YET: Final = (
    f"there are no compiled kernels in {{}} yet: {_COMPILES}Later processes find them there. Call warm_up() before the "
    "first step, or run `pulse warm-up` when this host is set up"
)

_found_well: set[Path] = set()
"""Folders of kernels that have nothing to tell. A process looks once: of each it reads all names and modes (8 ms for
700 files), and what it loads from there was decided by then."""


def backend_of(name: BackendName) -> Backend:
    """Return a backend by name; see ``pulse_kernels.get_backend``.

    Raises:
        InvalidArgument: there is no such backend, or it can't run here; what it lacks is said.
    """
    try:
        return get_backend(name)
    except BackendUnavailable as error:
        raise InvalidArgument(f"backend={name!r}: {error}; auto takes what is there") from error


def check_backend(name: BackendName) -> None:
    """Refuse a backend that was named and is not there; ``auto`` always finds one, and is left to be loaded later.

    Raises:
        InvalidArgument: as `backend_of`.
    """
    if name != "auto":
        backend_of(name)


def what_compiles(name: BackendName) -> str | None:
    """Return what a process should be told that finds no compiled kernels on disk, and compiles some; None if it won't.

    Looks at files alone: nothing is loaded.
    """
    if name == "reference" or importlib.util.find_spec("numba") is None:
        return None
    folder = loops_folder()
    if folder is None:
        return _NOWHERE
    if folder in _found_well:
        return None
    why = loops_exposed(folder)
    if why is not None:
        return _EXPOSED.format(folder, why)
    if not loops_cached(folder):
        return _NOT_YET.format(folder)
    _found_well.add(folder)
    return None
