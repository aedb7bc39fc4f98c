"""The tag of a collective: its number, its name and what it is for, which must be the same on all ranks."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from pulse_registry.errors import InvalidArgument, UnsupportedFormat
from pulse_registry.quoting import quoted

_HEADER: Final = struct.Struct("<4sIQ128s")
_MAGIC: Final = b"PPC1"
_MOST_WHAT: Final = 64
_MOST_FAULT: Final = 128
_MOST_NAMED: Final = 8


class Collective(IntEnum):
    """Which collective a call is. Values go over the wire: they are only ever added."""

    ALL_GATHER = 1
    GATHER = 2
    BROADCAST = 3
    EXCHANGE = 4
    REFUSED = 5
    """The arguments can't be sent; the rank makes the call nevertheless, so that the others hear of it."""

    @property
    def title(self) -> str:
        """How messages call it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call of a collective.

    Attributes:
        number: of the rank's calls, from 1 on.
        collective: which one.
        what: it is for; of a refused call, why it was refused.
    """

    number: int
    collective: Collective
    what: str = ""

    SIZE = _HEADER.size

    def __str__(self) -> str:
        if self.collective is Collective.REFUSED:
            return f"an impossible call {self.number}: {self.what}"
        return self.place

    @property
    def place(self) -> str:
        """The call as messages name it."""
        named = f" {quoted(self.what)}" if self.what else ""
        return f"{self.collective.title}{named}, call {self.number}"

    def fitted(self) -> Self:
        """Return the call as the other ranks see it: what it is for is cut."""
        most = _MOST_FAULT if self.collective is Collective.REFUSED else _MOST_WHAT
        cut = self.what.encode("utf-8", "replace").replace(b"\0", b"?")[:most].decode("utf-8", "ignore")
        return type(self)(self.number, self.collective, cut)

    def to_bytes(self) -> bytes:
        """Return the call as ``SIZE`` bytes; it is ``fitted`` before."""
        return _HEADER.pack(_MAGIC, self.collective, self.number, self.what.encode())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, rank: int) -> Self:
        """Read what ``to_bytes`` of another rank wrote.

        Raises:
            UnsupportedFormat: it is nothing that this release writes.
        """
        try:
            magic, collective, number, what = _HEADER.unpack(data)
            if magic != _MAGIC:
                raise ValueError("another magic")
            return cls(number, Collective(collective), what.rstrip(b"\0").decode())
        except (struct.error, ValueError) as error:
            raise UnsupportedFormat(
                f"rank {rank} sent what this release does not read: have all ranks run the same release"
            ) from error


def check_same(calls: Sequence[Call]) -> None:
    """Check that all ranks, by rank, made the same call. What it raises is the same on all ranks.

    Raises:
        InvalidArgument: they did not, or one of them refused its own; says which ranks did what.
    """
    if calls.count(calls[0]) == len(calls) and calls[0].collective is not Collective.REFUSED:
        return
    ranks: dict[Call, list[int]] = {}
    for rank, call in enumerate(calls):
        ranks.setdefault(call, []).append(rank)
    said = [f"{named(where)} made {call}" for call, where in ranks.items()]
    more = f"; {len(said) - _MOST_NAMED} more" if len(said) > _MOST_NAMED else ""
    raise InvalidArgument(
        f"the ranks of a sharded model must make the same calls in the same order: {'; '.join(said[:_MOST_NAMED])}"
        f"{more}. Push and pull on every rank, with the same arguments"
    )


def named(ranks: Iterable[int]) -> str:
    """Return ranks as a message names them: ``rank 2``, ``ranks 0, 2, 5``; of many, the first."""
    every = list(ranks)
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return f"rank{'s' if len(every) > 1 else ''} {', '.join(map(str, every[:_MOST_NAMED]))}{more}"
