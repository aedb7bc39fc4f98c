"""Prices: what fetching and decoding cost beside bytes, in bytes, so that routes can be compared by one number.

While a request waits for its answer, its connection could have carried latency x bandwidth bytes: so many bytes more
are a fair price for one object less. While a changed cell is decoded, it could have carried bytes as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

DECODE_SECONDS: Final = 20e-9
"""A thread's time to decode a changed cell, check it and move it: ``benchmarks.growth.chains``, BF16."""


class Priced(Protocol):
    """What is fetched and decoded: a leg, or a route."""

    @property
    def nbytes(self) -> int:
        """Bytes to fetch."""
        ...

    @property
    def objects(self) -> int:
        """Objects to fetch."""
        ...

    @property
    def decoded(self) -> int:
        """Changed cells to decode."""
        ...


class Prices(NamedTuple):
    """What one more object is worth, and one more changed cell to decode: bytes that a link carries meanwhile.

    Where nothing is measured: those of a link of 100 MB/s that answers in under a millisecond.
    """

    object_cost: int = 65536
    cell_cost: int = 2

    def of(self, what: Priced) -> int:
        """Return what something costs in all, in bytes."""
        return what.nbytes + self.object_cost * what.objects + self.cell_cost * what.decoded


USUAL: Final = Prices()
"""The prices where nothing is measured or said."""
