"""The backend protocol: array functions on cells that each implementation has, and the types that they pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pulse_kernels.cells import Cells, CellType, Index
from pulse_kernels.spans import Spans

BackendName = Literal["auto", "reference", "numba"]
Kinds: TypeAlias = npt.NDArray[np.uint8]
"""A small number for each of some cells or classes."""
Lanes: TypeAlias = tuple[int, int]
"""Two digest lanes, each an integer mod 2**64."""
Advanced: TypeAlias = tuple[Index, Cells, Cells, Lanes, Lanes]
"""Index, old and new cells; the sums of h over the old and over the new ones."""
Stepped: TypeAlias = tuple[Cells, Cells, Lanes, Lanes]
"""Old and new cells; the sums of h over the old and over the new ones."""
Heads: TypeAlias = npt.NDArray[Any]
"""The heads of coded exponents, of type ``format.exponents.HEAD``, one a tile."""


Floats: TypeAlias = npt.NDArray[np.float32]
Levels: TypeAlias = npt.NDArray[np.int16]
Totals: TypeAlias = npt.NDArray[np.int64]
"""Sums of levels over the members of a round, each by its weight."""
Gated: TypeAlias = tuple[Index, Levels]
"""Which cells are sent, and how many steps each."""
Weighted: TypeAlias = tuple[Index, Levels, int]
"""A member's levels, and the factor by which they count."""
LEVELS: Final = 2**15 - 1
"""The largest level."""


@dataclass(frozen=True, slots=True)
class Coded:
    """Parts of a coded group.

    Attributes:
        first: the first class; 0 for ``gap``.
        counts: uint32, changed cells of each class; for ``gap`` one number, of all.
        parameters: uint8, the gap parameter of each class; None for ``gap``.
        tables: uint8, the stored tables end to end.
        sizes: uint16, the words of each chunk.
        words: uint16, all chunks' words end to end.
    """

    first: int
    counts: Index
    parameters: npt.NDArray[np.uint8] | None
    tables: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.uint16]
    words: npt.NDArray[np.uint16]


class Backend(Protocol):
    """Array functions on cells. All arrays are 1-D and C-contiguous; none is kept; inputs are not changed unless said.

    Implementations release the GIL while they work, so that threads over groups scale.
    """

    name: str

    def warm_up(self, width: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Do now what the first calls on cells of ``width`` bytes would otherwise wait for. Idempotent.

        It is done step by step; ``stopped`` is asked before each, and ends it early.
        """

    def diff(self, live: Cells, base: Cells) -> tuple[Index, Cells, Cells]:
        """Return (index, old, new): where ``live`` differs from ``base`` as bits, and both values there."""

    def step(self, cells: Cells, index: Index, distance: Cells, cell_type: CellType, start: int) -> Stepped:
        """Return (old, new, lanes_old, lanes_new): ``cells[index]``, the same moved by ``distance``, both sums of h.

        The cells are only read; raises IndexError when an index is out of range.
        """

    def advance_spans(self, live: Spans, base: Spans, start: int) -> Advanced:
        """``diff`` that also makes ``base`` equal to ``live``: return (index, old, new, lanes_old, lanes_new).

        It is of spans, at least one, as if they lay end to end: a group of many tensors in one call. The index counts
        from the first span's start on; ``start`` is the flat index of the cell there. The lanes are the sums of h over
        the old and over the new changed cells. Live spans of uint32 over a base of uint16 are float32 patterns, which
        are rounded to BF16 as ``cast_f32`` does. Raises ValueError where the sizes of live and base spans differ.
        """

    def step_spans(self, spans: Spans, index: Index, distance: Cells, cell_type: CellType, start: int) -> Stepped:
        """``step`` of spans, at least one, as if they lay end to end."""

    def move_spans(
        self, spans: Spans, index: Index, distance: Cells, cell_type: CellType, start: int
    ) -> tuple[Lanes, Lanes]:
        """Move the cells at ``index`` by ``distance``, in place; return the sums of h over them, before and after.

        Spans, at least one, count as if they lay end to end. Raises IndexError when an index is out of range; what the
        cells hold then is not said.
        """

    def gather_spans(self, spans: Spans, index: Index) -> Cells:
        """``gather`` from spans, at least one, as if they lay end to end."""

    def scatter_spans(self, spans: Spans, index: Index, values: Cells) -> None:
        """``scatter`` into spans, at least one, as if they lay end to end."""

    def digest_spans(self, spans: Spans, start: int) -> Lanes:
        """``digest`` of spans, at least one, as if they lay end to end."""

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

    def digest_changes(self, index: Index, old: Cells, new: Cells, start: int) -> tuple[Lanes, Lanes]:
        """Return ``digest_sparse`` of the old values and of the new ones, in one pass."""

    def count_classes(self, cells: Cells, cell_type: CellType) -> Index:
        """Return how many of the cells have each of the 256 class values."""

    def class_ranks(
        self, spans: Spans, index: Index, old: Cells, cell_type: CellType, first: int, classes: int
    ) -> tuple[Index, Kinds, Index]:
        """Return (rank, kind, population): each indexed cell's rank among the cells of its class, in index order.

        ``spans`` are laid end to end; the indexed cells count as ``old``, whatever lies there. Class values are cut to
        ``first`` to ``first + classes - 1``; a kind is what is above ``first``. ``population`` counts the cells of
        each kind.
        """

    def class_select(
        self, spans: Spans, counts: Index, ranks: Index, cell_type: CellType, first: int, classes: int
    ) -> tuple[Index, Index, Cells]:
        """Invert ``class_ranks``: from kind-major ``ranks`` (``counts[k]`` of kind k) return (index, source, old).

        ``index`` is strictly increasing; ``source[k]`` is the position in ``ranks`` that gave ``index[k]``;
        ``old[k]`` is the cell there.

        Raises:
            RankError: a rank is not below its class's population.
        """

    def encode_changes(
        self,
        cell_type: CellType,
        places: Index,
        kinds: Kinds | None,
        counts: Index,
        parameters: Kinds | None,
        old: Cells,
        new: Cells,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        """Code the changes of a group: return (stored tables, words of each chunk, words).

        Args:
            cell_type: of the cells.
            places: indices, or with ``kinds`` ranks.
            kinds: ``class``: the kind of each change; None for ``gap``.
            counts: changes of each kind; for ``gap`` of all.
            parameters: ``class``: the gap parameter of each kind; None for ``gap``.
            old: changed cells as they were.
            new: as they are now.
        """

    def decode_changes(self, coded: Coded, cell_type: CellType, limit: int) -> tuple[Index, Cells]:
        """Invert ``encode_changes``: return (places, steps) in coding order.

        Steps are distances for ``gap``; for ``class``, outward ones, kind after kind.

        Raises:
            CodecError: a table or a chunk breaks a rule, or a place reaches ``limit``.
        """

    def move_coded(self, coded: Coded, cells: Cells, cell_type: CellType, start: int) -> tuple[Lanes, Lanes]:
        """Do what ``decode_changes`` of ``gap`` and ``move_spans`` do, in less time; return the sums of h.

        Raises:
            CodecError: as ``decode_changes``; what the cells hold then is not said.
        """

    def step_coded(self, coded: Coded, spans: Spans, cell_type: CellType, start: int) -> Advanced:
        """Do what ``decode_changes`` of ``gap`` and ``step_spans`` do, in less time.

        Returns:
            Index, old and new cells, and the sums of h over the old and over the new ones. The cells are only read.

        Raises:
            CodecError: as ``decode_changes``.
        """

    def inward(self, old: Cells, source: Index, steps: Cells, cell_type: CellType) -> Cells:
        """Return the distance of each old cell: ``steps[source]``, negated where the old cell of a float dtype is."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The arrays that cells with coded exponents are made of, over one buffer."""

    planes: npt.NDArray[np.uint16]
    marks: npt.NDArray[np.uint8]
    escapes: npt.NDArray[np.uint8]


class ExponentLoops(Protocol):
    """Array functions of the coding of exponents. They release the GIL while they work."""

    def fit(self, cells: Cells) -> Heads:
        """Choose each tile's window, from the cells alone, and count what escapes it."""

    def split(self, cells: Cells, heads: Heads, out: Sections) -> bool:
        """Write all sections; tell whether the cells have as many escapes as the heads say."""

    def join(self, heads: Heads, sections: Sections, out: Cells) -> bool:
        """Write all cells; tell whether the codes fit the heads' escapes and no place without a cell has a code."""


@dataclass(frozen=True, slots=True)
class OuterRates:
    """Learning rate and momentum of the outer optimizer, which round to float32 before they are used."""

    rate: float
    momentum: float


class OuterLoops(Protocol):
    """Array functions of the outer optimizer, on float32 cells: gate, levels, residual, step.

    Each operation is rounded by itself, to nearest, ties to even: no fused multiply-add, no flush of subnormal numbers.
    So that all implementations give the same bits. They release the GIL while they work; arrays are 1-D and
    C-contiguous, and none is kept.
    """

    def collect(self, theta: Floats, local: Floats, residual: Floats, sums: Floats) -> float:
        """Add the pseudo-gradient: ``sums = residual + (theta - local)``; return the largest magnitude of these.

        ``theta`` are the weights of the round's start, ``local`` those after the inner steps; ``sums`` may be
        ``residual``. NaN or infinite: so is a sum.
        """

    def square(self, theta: Floats, residual: Floats, gain: float) -> tuple[int, float]:
        """Return how many cells the gate passes, and the sum of their squares; its last bits may be other ones."""

    def gate(self, theta: Floats, residual: Floats, gain: float, exponent: int) -> Gated:
        """Return (index, levels) of what would change the next forward pass, in steps of ``2 ** exponent``.

        A cell passes where BF16(theta) and BF16(theta - gain * residual) are other bits (``gain`` 1 is the rule of the
        PULSE paper; an infinite one passes all cells). Its level is ``residual / 2 ** exponent``, rounded, and cut to
        ``LEVELS``; level 0 is not sent.
        ``residual`` must be finite, and below ``2 ** (24 + exponent)``: then ``settle`` is exact. ``exponent`` is from
        -126 to 100.
        """

    def passed(self, theta: Floats, residual: Floats, gain: float) -> Index:
        """Return which cells the gate passes, but for those whose residual is 0; see ``gate``."""

    def settle(self, residual: Floats, index: Index, levels: Levels, exponent: int) -> None:
        """Take from the residual what was sent, exactly: ``residual[index] -= levels * 2 ** exponent``."""

    def add(self, total: Totals, index: Index, levels: Levels, factor: int) -> None:
        """Add a member's levels to a sum, exactly: ``total[index] += levels * factor``, in 64 bits."""

    def fold(self, theta: Floats, momentum: Floats, parts: Sequence[Weighted], scale: float, rates: OuterRates) -> None:
        """Make a step by the levels of all members, in place; see ``step``.

        The gradient is the sum of levels times factors, exact in 64 bits, rounded to float32, times ``scale`` in
        float32.
        """

    def step(self, theta: Floats, momentum: Floats, index: Index, gradient: Floats, rates: OuterRates) -> None:
        """Make a step of SGD with Nesterov's momentum, in place, on all cells.

        ``g`` is ``gradient`` at ``index``, 0 elsewhere; ``momentum = mu * momentum + g``;
        ``theta -= lr * (g + mu * momentum)``.
        """
