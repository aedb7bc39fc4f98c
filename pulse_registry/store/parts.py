"""Parts: a body cut into pieces of one size, to be sent one by one, several at a time.

A Stream's parts are buffered as it makes them; the others' are views of the body's own buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pulse_registry.store.body import Body, Stream, body_views
from pulse_registry.store.streaming_body import Growing

Part = tuple[int, Sequence[memoryview]]
"""A part's number, from 1, and its bytes."""
MAX_PARTS: Final = 10_000
_MIB: Final = 1 << 20


def part_size(size: int, part_bytes: int) -> int:
    """Return how large an object's parts are: as large as asked for, or more if there were too many of them."""
    least = -(-size // MAX_PARTS)
    return part_bytes if part_bytes >= least else -(-least // _MIB) * _MIB


def parts_of(data: Body, size: int) -> Iterator[Sequence[memoryview]]:
    """Cut a body into parts of a size, the last one shorter. Buffers are not copied, but those of a Stream are."""
    return _stream_parts(data, size) if isinstance(data, Stream) else _view_parts(body_views(data), size)


def growing_parts(data: Growing, least: int, size: int) -> Iterator[Part]:
    """Cut what grows into parts of a size, each given as soon as it is full; the first one, of ``least``, comes last.

    The first part also holds the first buffer, whatever its size.
    """
    held: list[memoryview] = []

    def behind() -> Iterator[memoryview]:
        room = least
        for view in (view for buffer in data.rest() for view in body_views(buffer)):
            if room:
                held.append(view[:room])
            yield view[room:]
            room -= min(room, view.nbytes)

    yield from enumerate(_view_parts(behind(), size), 2)
    yield 1, [*body_views(data.first()), *held]


def _view_parts(views: Iterable[memoryview], size: int) -> Iterator[Sequence[memoryview]]:
    part: list[memoryview] = []
    room = size
    for view in views:
        rest = view
        while rest.nbytes:
            taken, rest = rest[:room], rest[room:]
            part.append(taken)
            room -= taken.nbytes
            if not room:
                yield part
                part, room = [], size
    if part:
        yield part


def _stream_parts(stream: Stream, size: int) -> Iterator[Sequence[memoryview]]:
    left = stream.nbytes
    part = memoryview(bytearray(min(size, left)))
    at = 0
    for view in body_views(stream):
        rest = view
        while rest.nbytes:
            taken, rest = rest[: part.nbytes - at], rest[part.nbytes - at :]
            if not taken.nbytes:
                break  # more than it has announced, which body_views refuses at the end
            part[at : at + taken.nbytes] = taken
            at += taken.nbytes
            if at == part.nbytes:
                yield [part]
                left -= at
                part, at = memoryview(bytearray(min(size, left))), 0
