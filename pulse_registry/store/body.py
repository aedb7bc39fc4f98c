"""Body of a put: bytes, a sequence of buffers, or a stream that makes them as they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from pulse_registry.errors import InvalidArgument

Buffer: TypeAlias = bytes | bytearray | memoryview


class Stream(ABC):
    """An object's data, made as it is written, so that it is never in memory as a whole.

    It may be iterated more than once (a put that is retried) and gives the same bytes each time, ``nbytes`` in all. A
    buffer that it has given stays as it is until the next one is asked for.
    """

    nbytes: int

    @abstractmethod
    def __iter__(self) -> Iterator[Buffer]:
        """Begin anew."""


Body: TypeAlias = Buffer | Sequence[Buffer] | Stream
"""What a put is given. Not kept: the caller may change its buffers once the put has returned."""


def body_views(data: Body) -> Iterable[memoryview]:
    """Return flat byte views of a body's buffers, in order, empty ones left out; nothing is copied.

    Those of a Stream are made as they are asked for, once; the others are checked at once.

    Raises:
        InvalidArgument: a part is not a buffer, or is not contiguous; or, at its end, a Stream's size is not its
            ``nbytes``.
    """
    if isinstance(data, Stream):
        return _stream_views(data)
    parts: Sequence[Buffer] = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    return tuple(view for view in map(flat, parts) if view.nbytes)


def body_size(data: Body) -> int:
    """Return a body's size in bytes, without making a Stream's data."""
    return data.nbytes if isinstance(data, Stream) else sum(view.nbytes for view in body_views(data))


def _stream_views(data: Stream) -> Iterator[memoryview]:
    total = 0
    for part in data:
        view = flat(part)
        total += view.nbytes
        yield view
    if total != data.nbytes:
        raise InvalidArgument(f"a stream gave {total} bytes and had announced {data.nbytes}")


def flat(part: Buffer) -> memoryview:
    """Return a buffer as a view of its bytes.

    Raises:
        InvalidArgument: it is no buffer, or is not contiguous.
    """
    try:
        view = memoryview(part)
        return view.cast("B") if view.nbytes else view
    except TypeError as error:
        raise InvalidArgument(
            f"an object's data must be contiguous bytes, or a sequence of them; got {type(part).__name__}: {error}"
        ) from None
