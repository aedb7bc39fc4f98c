"""The seam between what is computed and how: a protocol of array functions, and the registry of its implementations.

``get_backend()`` takes the fastest one that runs here; ``get_backend("numba")`` takes that one or raises.
"""

from __future__ import annotations

import functools
from typing import Literal, Protocol, get_args

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.errors import BackendUnavailable
from pulse_kernels.streams import Streams

BackendName = Literal["auto", "reference", "numba"]
Lanes = tuple[int, int]
"""Two digest lanes, each an integer mod 2**64."""


class Backend(Protocol):
    """Array functions on cells. All arrays are 1-D and C-contiguous; none is kept; inputs are not changed unless said.

    Implementations release the GIL while they work, so that threads over groups scale.
    """

    name: str

    def warm_up(self, width: int) -> None:
        """Do now what the first calls on cells of ``width`` bytes would otherwise wait for. Idempotent."""

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """Return (index, old, new): where ``live`` differs from ``base`` as bits, and both values there."""

    def diff_f32(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """``diff`` of float32 patterns (uint32), rounded to BF16 as ``cast_f32`` does, against BF16 cells (uint16)."""

    def cast_f32(self, live: Cells, out: Cells) -> None:
        """Round float32 patterns (uint32) to BF16 cells into ``out``: to nearest, ties to even; NaN stays NaN.

        A NaN keeps its sign and its payload's top 6 bits and becomes quiet.
        """

    def gather(self, cells: Cells, index: Index) -> Cells:
        """Return ``cells[index]``; raises IndexError when an index is out of range."""

    def scatter(self, cells: Cells, index: Index, values: Cells) -> None:
        """Store ``cells[index] = values``; raises IndexError, with nothing written, when an index is out of range."""

    def distance(self, old: Cells, new: Cells, cell_type: CellType) -> Cells:
        """Return order(new) - order(old) mod 2**bits."""

    def move(self, old: Cells, distance: Cells, cell_type: CellType) -> Cells:
        """Return the patterns that lie ``distance`` after ``old`` in the order: the inverse of ``distance``."""

    def merge(self, first: tuple[Index, Cells], second: tuple[Index, Cells]) -> tuple[Index, Cells]:
        """Join two (index, distance) lists: distances at the same index add mod 2**bits, zeros drop out."""

    def union(self, first: Index, second: Index) -> Index:
        """Return the indices that are in either list, strictly increasing as both are."""

    def locate(self, among: Index, index: Index) -> Index:
        """Return the places of ``index`` in ``among``, which contains it; both strictly increase."""

    def digest(self, cells: Cells, start: int) -> Lanes:
        """Return the sum of h(start + k, cells[k]) over all cells, mod 2**64 a lane."""

    def digest_sparse(self, index: Index, values: Cells, start: int) -> Lanes:
        """Return the sum of h(start + index[k], values[k]), mod 2**64 a lane."""

    def class_ranks(self, spans: list[Cells], index: Index, cell_type: CellType) -> tuple[Index, Cells, Index]:
        """Return (rank, class, population): each indexed cell's rank among the cells of its class, in index order.

        ``spans`` are laid end to end; ``population`` counts the cells of each of the 256 classes.
        """

    def class_select(self, spans: list[Cells], counts: Index, ranks: Index, cell_type: CellType) -> tuple[Index, Index]:
        """Invert ``class_ranks``: from class-major ``ranks`` (``counts[c]`` of class c) return (index, source).

        ``index`` is strictly increasing; ``source[k]`` is the position in ``ranks`` that gave ``index[k]``.

        Raises:
            RankError: a rank is not below its class's population.
        """

    def pack(self, gaps: Index, distance: Cells, counts: Index, shifts: Cells) -> Streams:
        """Code gaps and non-zero distances; ``counts[m]`` consecutive ones have the shift ``shifts[m]``."""

    def unpack(
        self, streams: Streams, counts: Index, shifts: Cells, cell_type: CellType, limit: int
    ) -> tuple[Index, Cells]:
        """Invert ``pack`` and sum the gaps up within each run: return (position, distance).

        Raises:
            CodecError: a position reaches ``limit``, a distance is out of range, or bits are missing or left over.
        """


@functools.cache
def get_backend(name: BackendName = "auto") -> Backend:
    """Return a backend by name; ``auto`` takes numba where it imports and the NumPy reference elsewhere.

    Raises:
        BackendUnavailable: the named backend is unknown or can't be imported here.
    """
    if name not in get_args(BackendName):
        raise BackendUnavailable(f"no backend is called {name!r}; there are {', '.join(get_args(BackendName))}")
    if name == "reference":
        return _reference()
    try:
        from pulse_kernels.numba_backend import NumbaBackend
    except ImportError as error:
        if name == "numba":
            raise BackendUnavailable(f"the numba backend can't be imported: {error}") from error
        return _reference()
    return NumbaBackend()


def _reference() -> Backend:
    from pulse_kernels.reference import ReferenceBackend

    return ReferenceBackend()
