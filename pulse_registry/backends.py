"""The kernels' backend as a registry takes it: by name, with an error that callers of this library know."""

from __future__ import annotations

from pulse_kernels import Backend, BackendName, BackendUnavailable, get_backend
from pulse_registry.errors import InvalidArgument


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
