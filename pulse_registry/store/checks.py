"""Argument checks that all stores share, and the errors that all of them raise in the same words."""

from __future__ import annotations

from pulse_registry.errors import AlreadyExists, CorruptObject, InvalidArgument, NotFound
from pulse_registry.store.body import Buffer, flat

ByteRange = tuple[int, int]
"""A half-open range of an object: from which byte on, and before which."""


def check_buffer(key: str, byte_range: ByteRange, buffer: Buffer) -> memoryview:
    """Return a flat view of a buffer that a range is to be read into.

    Raises:
        InvalidArgument: the range is not valid, or the buffer is not writable, contiguous and as long.
    """
    check_range(key, byte_range)
    view = flat(buffer)
    if view.readonly or view.nbytes != byte_range[1] - byte_range[0]:
        kind = "is read-only" if view.readonly else f"has {view.nbytes} bytes"
        raise InvalidArgument(f"the buffer for bytes {byte_range[0]} to {byte_range[1]} of {key!r} {kind}")
    return view


def check_whole(key: str, url: str, size: int, max_bytes: int) -> None:
    """Check that an object may be read whole, before memory is taken for it.

    Raises:
        CorruptObject: it has more bytes than that.
    """
    if size > max_bytes:
        raise too_long(key, url, f"{size} bytes", max_bytes)


def too_long(key: str, url: str, size: str, max_bytes: int) -> CorruptObject:
    """Return the error of an object that is longer than anything of ours under its key."""
    return CorruptObject(
        f"object {key!r} in {url} has {size}, and {max_bytes} are the most that are read of it: it is not what was "
        "written there; restore it or use another route"
    )


def check_range(key: str, byte_range: ByteRange) -> None:
    """Check that a byte range is half-open and counts from the start of the object.

    Raises:
        InvalidArgument: it is not 0 <= start <= stop.
    """
    start, stop = byte_range
    if not 0 <= start <= stop:
        raise InvalidArgument(f"byte range ({start}, {stop}) of {key!r} is not 0 <= start <= stop")


def too_short(key: str, url: str, byte_range: ByteRange, size: int | None) -> CorruptObject:
    """Return the error of a range that reaches past the end of its object, of ``size`` bytes where that is known."""
    start, stop = byte_range
    length = "fewer" if size is None else f"{size} bytes"
    return CorruptObject(
        f"object {key!r} in {url} has {length}, but bytes {start} to {stop} of it were asked for: "
        "it is cut short, or what names the range is damaged; restore it or use another route"
    )


def short_answer(key: str, url: str, byte_range: ByteRange, nbytes: int) -> CorruptObject:
    """Return the error of a range of which another number of bytes came."""
    return CorruptObject(f"{key!r} in {url}: {nbytes} bytes came of bytes {byte_range}")


def not_found(key: str, url: str) -> NotFound:
    """Return the error of an object that is not there."""
    return NotFound(f"there is no object {key!r} in {url}")


def folder_of_another(key: str, url: str) -> InvalidArgument:
    """Return the error of a put whose key is, or has among its folders, another object's."""
    return InvalidArgument(
        f"can't put {key!r} in {url}: this store can't hold a key that is the folder of another; choose another key"
    )


def already_exists(key: str, url: str) -> AlreadyExists:
    """Return the error of a create whose key is taken."""
    return AlreadyExists(f"object {key!r} is already in {url}")
