"""Mapping of the operating system's errors to those of a store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pulse_registry.errors import CorruptObject, InvalidArgument, PulseError, StoreUnavailable
from pulse_registry.store.base import Verb
from pulse_registry.store.checks import folder_of_another, not_found
from pulse_registry.store.root import Misplaced

_ADVICE = {
    errno.ENOSPC: "the disk is full: free space, then try again",
    errno.EDQUOT: "the disk quota is used up: free space, then try again",
    errno.EFBIG: "the object is larger than a file may be here: raise ulimit -f, or use another file system",
    errno.EACCES: "permission denied: give this user read and write access to the folder",
    errno.EPERM: "not permitted: give this user read and write access to the folder",
    errno.EROFS: "the file system is read-only: mount it writable",
    errno.EMFILE: "too many open files: raise ulimit -n",
}
_LASTING = frozenset(_ADVICE) - {errno.EMFILE}
"""What no store gets over by itself."""


@contextmanager
def translated(verb: Verb, key: str, url: str) -> Iterator[None]:
    """Raise the operating system's errors in this block as the registry's own; others pass as they are."""
    try:
        yield
    except OSError as error:
        raise _as_pulse_error(error, verb, key, url) from error


def _as_pulse_error(error: OSError, verb: Verb, key: str, url: str) -> PulseError:
    """Return the error that tells the caller of a verb what the operating system's error means to it."""
    if isinstance(error, Misplaced):
        return CorruptObject(
            f"could not {verb} {key!r} in {url}: {error.strerror}, where only files and folders may be, and is not "
            "gone through: find out who put it there, remove it, and put back what belongs in its place"
        )
    missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    if missing and verb in ("get", "size", "exists"):
        return not_found(key, url)
    if verb == "put" and isinstance(error, NotADirectoryError | IsADirectoryError):
        return folder_of_another(key, url)
    if error.errno == errno.ENAMETOOLONG:
        return InvalidArgument(
            f"can't {verb} {key!r} in {url}: the path is too long for the file system; use a shorter one"
        )
    reason = error.strerror or str(error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check that the store can be reached, then try again")
    failure = StoreUnavailable(f"could not {verb} {key!r} in {url}: {reason}; {advice}")
    failure.lasting = error.errno in _LASTING
    return failure
