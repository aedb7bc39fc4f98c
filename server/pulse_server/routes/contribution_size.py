"""The bound on what a member of outer rounds stores: what a contribution or a checkpoint can be, and no more."""

from __future__ import annotations

from typing import Final

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_server.routes.dependencies import RunRequest
from pulse_server.routes.params import is_outer

_A_BYTE: Final = 8
"""Bytes for each byte of a version, at most: a BF16 cell, of 2 bytes, gives 4 of place and 8 of a sum, or of state."""
_HEAD: Final = 1 << 20


async def check_size(run: RunRequest, key: str, size: int) -> None:
    """Check that an object of outer rounds, if a key is one of these, is no larger than one can be.

    Raises:
        NotFound: there is no such run.
        InvalidArgument: it is.
        StoreUnavailable: the run's layout can't be read now.
    """
    if not is_outer(key):
        return
    feed = await run.feed()
    nbytes = await run.service.sizes.newest(feed.state)
    if nbytes is None:
        raise StoreUnavailable(f"run {run.name!r}: the layout of its newest version can't be read; try again")
    most = _A_BYTE * nbytes + _HEAD
    if size > most:
        raise InvalidArgument(f"run {run.name!r}: {key} has {most:,} bytes at most, and not {size:,}")
