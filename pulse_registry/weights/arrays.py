"""The cells of one layout in memory: a trainer's shadow, a worker's live weights, or a file's memory map.

Reads and writes go by group and group-local index, whatever tensors the group's spans lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from pulse_kernels import CELL_TYPES, Backend, Cells, Index, Spans, SpanTable
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.weights.cell_access import Place, Strided, Where
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.fit import Fit, fit
from pulse_registry.weights.model import View
from pulse_registry.weights.reading import Reading


class Weights:
    """Arrays of cells, one a stored tensor of the layout, in layout order.

    Contiguous tensors are read and written where they are; of others, spans are copied for reading and single cells
    are written through their strides.

    Attributes:
        geometry: the layout's.
        arrays: one a tensor.
        tied: pairs of tensors, by number, that are one in memory.
        plain: whether all cells are those of the arrays, and nothing beside them.
    """

    def __init__(
        self,
        geometry: Geometry,
        arrays: Sequence[npt.NDArray[Any]],
        places: Mapping[int, Place] | None = None,
        tied: Sequence[tuple[int, int]] = (),
        tables: dict[int, SpanTable | None] | None = None,
        pieces: Sequence[npt.NDArray[np.uint8]] = (),
    ) -> None:
        """Take the arrays; ``places`` are those of tensors, by number, whose cells are not simply their array's.

        ``tables`` are those of ``where`` that were made for other weights over the same memory, which get those that
        are made here, too. ``pieces`` are memory in each of which the cells of consecutive tensors lie end to end.
        """
        self.geometry = geometry
        self.tied = list(tied)
        self._pieces = pieces
        self._take(arrays, places or {}, {} if tables is None else tables)

    @classmethod
    def empty(cls, geometry: Geometry) -> Self:
        """Allocate cells that hold nothing in particular.

        Raises:
            InvalidArgument: there is not so much memory.
        """
        return cls(geometry, [_allocated(geometry, tensor.shape, tensor.dtype) for tensor in geometry.layout.tensors])

    @classmethod
    def in_one_piece(cls, geometry: Geometry) -> Self:
        """Allocate cells that hold nothing in particular, end to end.

        Small tensors then lie in huge pages as well (NumPy asks for them from 4 MiB on): a pass over them misses less.

        Raises:
            InvalidArgument: there is not so much memory.
        """
        return cls.over(geometry, allocated(geometry))

    @classmethod
    def over(cls, geometry: Geometry, piece: npt.NDArray[np.uint8]) -> Self:
        """Take memory in which all cells lie end to end."""
        return cls(geometry, arrays_over(geometry, piece), pieces=[piece])

    @classmethod
    def into(cls, geometry: Geometry, views: Mapping[str, View], *, cast: bool = False) -> Self:
        """Take a worker's tensors as the place to write; see ``fit``.

        Raises:
            LayoutMismatch: names, dtypes or shapes differ from the layout; the first difference is named.
            InvalidModel: a tensor can't be written in place.
        """
        if not isinstance(views, Reading):
            return cls._fitted(geometry, _writable(geometry, views, cast=cast))
        found: list[Fit] = []

        def simple() -> _Simple | None:
            found.append(_writable(geometry, views, cast=cast))
            return None if found[0].places else _Simple(found[0].tied, {})

        known = views.once(("into", geometry.id, cast), simple)
        if known is None:
            return cls._fitted(geometry, found[0] if found else _writable(geometry, views, cast=cast))
        return cls(geometry, LiveArrays(geometry, views), None, known.tied, known.tables)

    @classmethod
    def of(cls, geometry: Geometry, views: Mapping[str, View], *, cast: bool = False) -> Self:
        """Take tensors to be read alone; see ``fit``.

        Raises:
            LayoutMismatch: as ``into``.
        """
        return cls._fitted(geometry, fit(geometry.layout, views, cast=cast))

    def adopt(self, other: Self) -> None:
        """Become the arrays of other weights of the layout; the own ones are let go of."""
        self._take(other.arrays, {}, {})
        self._pieces = ()

    def holds(self, group: Group) -> bool:
        """Tell whether all cells of the group are here: they are."""
        return True

    def spans(self, group: Group) -> list[Cells]:
        """Return the group's cells as 1-D arrays, end to end: views where the tensor is contiguous."""
        return [self.cells(span.tensor, slice(span.start, span.stop)) for span in group.spans]

    def where(self, group: Group) -> SpanTable | None:
        """Return where the group's cells are, a table that is made once; None if a tensor of theirs is not contiguous.

        For as long as these weights are there, and not given other arrays.
        """
        number = group.number
        if number not in self._tables:
            spans = self._views(group)
            self._tables[number] = None if spans is None else SpanTable.of(spans, group.cell_type.dtype)
        return self._tables[number]

    def laid_out(self, group: Group) -> Spans:
        """Return ``where``, or, if there is none, ``spans``, of which some are copies then."""
        return self.where(group) or self.spans(group)

    def gather(self, backend: Backend, group: Group, index: Index) -> Cells:
        """Return the cells at group-local ``index`` (strictly increasing)."""
        spans = self.where(group)
        if spans is not None:
            return backend.gather_spans(spans, index)
        found = [self._place(number).read(places) for number, places, _ in parts(group, index)]
        return np.concatenate([*found, np.empty(0, group.cell_type.dtype)])

    def step(
        self, backend: Backend, group: Group, index: Index, distance: Cells
    ) -> tuple[Cells, Cells, Digest, Digest]:
        """Return the cells at group-local ``index``, the same moved by ``distance``, and both sums of h; only reads."""
        spans = self.where(group)
        if spans is not None:
            old, new, *sums = backend.step_spans(spans, index, distance, group.cell_type, group.start)
        else:
            old = self.gather(backend, group, index)
            new = backend.move(old, distance, group.cell_type)
            sums = list(backend.digest_changes(index, old, new, group.start))
        return old, new, Digest(*sums[0]), Digest(*sums[1])

    def scatter(self, backend: Backend, group: Group, index: Index, values: Cells) -> None:
        """Store ``values`` at group-local ``index`` (strictly increasing, below the group's cells). Idempotent."""
        if len(index) and int(index[-1]) >= group.cells:
            raise IndexError(f"index {int(index[-1])} is past the {group.cells} cells of group {group.number}")
        spans = self.where(group)
        if spans is not None:
            backend.scatter_spans(spans, index, values)
            return
        for number, places, chosen in parts(group, index):
            self._place(number).write(places, values[chosen])

    def cells(self, number: int, where: Where) -> Cells:
        """Return some cells of a tensor, by their flat indices in it: a view of contiguous ones."""
        flat = self._run(number)
        return self._place(number).read(where) if flat is None else flat[where]

    def store(self, number: int, start: int, cells: Cells) -> None:
        """Store a run of a tensor's cells."""
        self._place(number).write(slice(start, start + len(cells)), cells)

    def fill(self, group: Group, cells: Cells) -> None:
        """Store all cells of the group."""
        done = 0
        for span in group.spans:
            size = span.stop - span.start
            self._place(span.tensor).write(slice(span.start, span.stop), cells[done : done + size])
            done += size

    def copy_of(self, group: Group) -> Cells:
        """Return the group's cells as one new array."""
        return np.concatenate(self.spans(group))

    def in_piece(self, group: Group) -> Cells | None:
        """Return the group's cells as one array where they are; None if they lie in no piece."""
        if not self._pieces:
            return None
        first, dtype = self.spans(group)[0], group.cell_type.dtype
        nbytes = group.cells * dtype.itemsize
        for piece in self._pieces:
            at = first.ctypes.data - piece.ctypes.data
            if 0 <= at <= len(piece) - nbytes:
                return piece[at : at + nbytes].view(dtype)
        return None

    def exact_at(self, group: Group, index: Index) -> bool:
        """Whether memory holds there what ``gather`` returns: no replica that differs, and no further bits."""
        return self.plain or all(self._place(number).exact(places) for number, places, _ in parts(group, index))

    def digest(self, backend: Backend, map_: Callable[..., Iterator[Digest]]) -> Digest:
        """Return the state digest by a full pass; ``map_`` is ``map`` or an executor's."""
        return sum(map_(lambda group: self.digest_of(backend, group), self.geometry.groups), Digest())

    def digest_of(self, backend: Backend, group: Group) -> Digest:
        """Return one group's share of the state digest; another one, where memory holds more than the cells."""
        digest = Digest(*backend.digest_spans(self.laid_out(group), group.start))
        exact = self.plain or all(self._place(span.tensor).exact(slice(span.start, span.stop)) for span in group.spans)
        return digest if exact else digest + Digest(1, 1)

    def _views(self, group: Group) -> list[Cells] | None:
        """Return the group's cells where they are; None if a tensor of theirs is not contiguous."""
        flats = [(self._run(span.tensor), span) for span in group.spans]
        spans = [flat[span.start : span.stop] for flat, span in flats if flat is not None]
        return spans if len(spans) == len(flats) else None

    @classmethod
    def _fitted(cls, geometry: Geometry, found: Fit) -> Self:
        arrays = [view.cells for view in found.views[: len(geometry.layout.tensors)]]
        return cls(geometry, arrays, found.places, found.tied)

    def _take(
        self, arrays: Sequence[npt.NDArray[Any]], places: Mapping[int, Place], tables: dict[int, SpanTable | None]
    ) -> None:
        self.arrays = arrays
        self.plain = not places
        self._places = places
        self._tables = tables

    def _run(self, number: int) -> Cells | None:
        """Return a tensor's cells where they are, in one run; None if they do not lie so."""
        array = self.arrays[number]
        return array.reshape(-1) if array.flags.c_contiguous and number not in self._places else None

    def _place(self, number: int) -> Place:
        return self._places.get(number) or Strided(self.arrays[number])


class LiveArrays(Sequence[npt.NDArray[Any]]):
    """The arrays of a model's tensors in layout order, each made when it is asked for. Keeps the tensors' memory."""

    def __init__(self, geometry: Geometry, views: Mapping[str, View]) -> None:
        """Take tensors that fit the layout."""
        self._tensors, self._views = geometry.layout.tensors, views

    def __len__(self) -> int:
        return len(self._tensors)

    @overload
    def __getitem__(self, number: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[npt.NDArray[Any]]: ...
    def __getitem__(self, number: int | slice) -> npt.NDArray[Any] | Sequence[npt.NDArray[Any]]:
        """Return an array, or those of a slice."""
        if isinstance(number, slice):
            return [self._views[tensor.name].cells for tensor in self._tensors[number]]
        return self._views[self._tensors[number].name].cells


@dataclass(frozen=True, slots=True)
class _Simple:
    """Tensors that a layout's cells simply lie in, and may be written to.

    Attributes:
        tied: see ``Fit``.
        tables: see ``Weights.where``.
    """

    tied: list[tuple[int, int]]
    tables: dict[int, SpanTable | None]


def _writable(geometry: Geometry, views: Mapping[str, View], *, cast: bool) -> Fit:
    """Find where the cells of a layout go in tensors that are to be written; raises as ``Weights.into``."""
    for view in views.values():
        if not view.on_host:
            raise InvalidModel(f"tensor {view.name!r} is not in host memory and can't be changed in place here")
    found = fit(geometry.layout, views, cast=cast)
    for view in found.views:
        if not view.cells.flags.writeable:
            raise InvalidModel(f"tensor {view.name!r} is read-only memory")
        if _overlaps_itself(view.cells):
            raise InvalidModel(f"tensor {view.name!r} is expanded: several of its cells share memory")
    return found


def _overlaps_itself(array: npt.NDArray[Any]) -> bool:
    if array.flags.c_contiguous:
        return False
    # From the smallest stride up, each must step over all that the smaller ones reach.
    reach = array.itemsize - 1
    for stride, length in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride <= reach:
            return array.size > 0
        reach += (length - 1) * stride
    return False


def arrays_over(
    geometry: Geometry, memory: npt.NDArray[np.uint8], tensors: range | None = None, at: int = 0
) -> list[npt.NDArray[Any]]:
    """Return arrays over memory in which tensors of a layout lie end to end, in layout order.

    A layout's wide dtypes come first, so that each tensor is aligned where the first one is.

    Args:
        geometry: of the layout.
        memory: that they lie in.
        tensors: numbers of those that do; None: all.
        at: the byte at which the first one begins.
    """
    arrays = []
    for number in range(len(geometry.sizes)) if tensors is None else tensors:
        tensor, end = geometry.layout.tensors[number], at + geometry.tensor_bytes(number)
        arrays.append(memory[at:end].view(CELL_TYPES[tensor.dtype].dtype).reshape(tensor.shape))
        at = end
    return arrays


def parts(group: Group, index: Index) -> Iterator[tuple[int, npt.NDArray[np.int64], slice]]:
    """Split an index by spans: yield (tensor, places in it, which part of the index they are).

    Takes the time of the index or of the spans, whichever are fewer.
    """
    ends, spans = group.ends, group.spans
    if len(index) < len(spans):
        met = np.unique(np.searchsorted(ends, index, side="right") - 1)
    else:
        met = np.arange(len(spans))
    first, stop = np.searchsorted(index, ends[met]), np.searchsorted(index, ends[met + 1])
    for number, at, to in zip(met.tolist(), first.tolist(), stop.tolist(), strict=True):
        if to > at:
            span = spans[number]
            yield span.tensor, index[at:to].astype(np.int64) + (span.start - int(ends[number])), slice(at, to)


def allocated(geometry: Geometry) -> npt.NDArray[np.uint8]:
    """Allocate memory for all cells of a layout, end to end, of which the caller may give back the end.

    Raises:
        InvalidArgument: there is not so much memory.
    """
    return _allocated(geometry, (geometry.nbytes,), "U8")


def _allocated(geometry: Geometry, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    try:
        return np.empty(shape, CELL_TYPES[dtype].dtype)
    except MemoryError as error:
        raise InvalidArgument(
            f"the layout {geometry.id} has {geometry.nbytes:,} bytes of cells, and this process can't have as much "
            "memory: see that it is the layout that you mean (`pulse inspect`), or take a machine with more"
        ) from error
