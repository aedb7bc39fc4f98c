"""The cells of one layout in memory: a trainer's shadow, a worker's live weights, or a file's memory map.

Reads and writes go by group and group-local index, whatever tensors the group's spans lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pulse_kernels import CELL_TYPES, Backend, Cells, Index
from pulse_registry.digest import Digest
from pulse_registry.errors import InvalidModel, LayoutMismatch
from pulse_registry.geometry import Geometry, Group
from pulse_registry.model import View
from pulse_schemas import Layout


class Weights:
    """Arrays of cells, one a stored tensor of the layout, in layout order.

    Contiguous tensors are read and written where they are; of others, spans are copied for reading and single cells
    are written through their strides.
    """

    def __init__(self, geometry: Geometry, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.geometry = geometry
        self._take(arrays)

    @classmethod
    def empty(cls, geometry: Geometry) -> Self:
        """Allocate cells that hold nothing in particular."""
        return cls(
            geometry,
            [np.empty(tensor.shape, CELL_TYPES[tensor.dtype].dtype) for tensor in geometry.layout.tensors],
        )

    @classmethod
    def in_one_piece(cls, geometry: Geometry) -> Self:
        """Allocate cells that hold nothing in particular, those of a dtype end to end.

        Small tensors then lie in huge pages as well (NumPy asks for them from 4 MiB on): a pass over them misses less.
        """
        sizes: dict[str, int] = {}
        for tensor, size in zip(geometry.layout.tensors, geometry.sizes, strict=True):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + size
        left = {dtype: np.empty(size, CELL_TYPES[dtype].dtype) for dtype, size in sizes.items()}
        arrays = []
        for tensor, size in zip(geometry.layout.tensors, geometry.sizes, strict=True):
            arrays.append(left[tensor.dtype][:size].reshape(tensor.shape))
            left[tensor.dtype] = left[tensor.dtype][size:]
        return cls(geometry, arrays)

    @classmethod
    def into(cls, geometry: Geometry, views: Mapping[str, View]) -> Self:
        """Take a worker's tensors as the place to write.

        Raises:
            LayoutMismatch: names, dtypes or shapes differ from the layout; the first difference is named.
            InvalidModel: a tensor can't be written in place.
        """
        check_layout(geometry.layout, views)
        arrays = []
        for tensor in geometry.layout.tensors:
            view = views[tensor.name]
            if not view.on_host:
                raise InvalidModel(f"tensor {tensor.name!r} is not in host memory and can't be changed in place here")
            if not view.cells.flags.writeable:
                raise InvalidModel(f"tensor {tensor.name!r} is read-only memory")
            if _overlaps_itself(view.cells):
                raise InvalidModel(f"tensor {tensor.name!r} is expanded: several of its cells share memory")
            arrays.append(view.cells)
        return cls(geometry, arrays)

    def adopt(self, other: Self) -> None:
        """Become the arrays of other weights of the layout; the own ones are let go of."""
        self._take(other.arrays)

    def spans(self, group: Group) -> list[Cells]:
        """Return the group's cells as 1-D arrays, end to end: views where the tensor is contiguous."""
        return [self._span(span.tensor, span.start, span.stop) for span in group.spans]

    def gather(self, backend: Backend, group: Group, index: Index) -> Cells:
        """Return the cells at group-local ``index`` (strictly increasing)."""
        spans = self._views(group)
        if spans is not None:
            return backend.gather_spans(spans, index)
        parts = [self.arrays[number].flat[places] for number, places, _ in _parts(group, index)]
        return np.concatenate([*parts, np.empty(0, group.cell_type.dtype)])

    def step(
        self, backend: Backend, group: Group, index: Index, distance: Cells
    ) -> tuple[Cells, Cells, Digest, Digest]:
        """Return the cells at group-local ``index``, the same moved by ``distance``, and both sums of h; only reads."""
        spans = self._views(group)
        if spans is not None:
            old, new, *sums = backend.step_spans(spans, index, distance, group.cell_type, group.start)
        else:
            old = self.gather(backend, group, index)
            new = backend.move(old, distance, group.cell_type)
            sums = [backend.digest_sparse(index, cells, group.start) for cells in (old, new)]
        return old, new, Digest(*sums[0]), Digest(*sums[1])

    def scatter(self, backend: Backend, group: Group, index: Index, values: Cells) -> None:
        """Store ``values`` at group-local ``index`` (strictly increasing, below the group's cells). Idempotent."""
        if len(index) and int(index[-1]) >= group.cells:
            raise IndexError(f"index {int(index[-1])} is past the {group.cells} cells of group {group.number}")
        spans = self._views(group)
        if spans is not None:
            backend.scatter_spans(spans, index, values)
            return
        for number, places, chosen in _parts(group, index):
            self.arrays[number].flat[places] = values[chosen]

    def fill(self, group: Group, cells: Cells) -> None:
        """Store all cells of the group."""
        done = 0
        for span in group.spans:
            size = span.stop - span.start
            flat = self._flat[span.tensor]
            if flat is None:
                self.arrays[span.tensor].flat[span.start : span.stop] = cells[done : done + size]
            else:
                flat[span.start : span.stop] = cells[done : done + size]
            done += size

    def copy_of(self, group: Group) -> Cells:
        """Return the group's cells as one new array."""
        return np.concatenate(self.spans(group))

    def digest(self, backend: Backend, map_: Callable[..., Iterator[Digest]]) -> Digest:
        """Return the state digest by a full pass; ``map_`` is ``map`` or an executor's."""
        return sum(map_(lambda group: self.digest_of(backend, group), self.geometry.groups), Digest())

    def digest_of(self, backend: Backend, group: Group) -> Digest:
        """Return one group's share of the state digest."""
        return Digest(*backend.digest_spans(self.spans(group), group.start))

    def _views(self, group: Group) -> list[Cells] | None:
        """Return the group's cells where they are; None if a tensor of theirs is not contiguous."""
        flats = [(self._flat[span.tensor], span) for span in group.spans]
        spans = [flat[span.start : span.stop] for flat, span in flats if flat is not None]
        return spans if len(spans) == len(flats) else None

    def _take(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.arrays = list(arrays)
        self._flat = [a.reshape(-1) if a.flags.c_contiguous else None for a in self.arrays]

    def _span(self, number: int, start: int, stop: int) -> Cells:
        flat = self._flat[number]
        if flat is not None:
            return flat[start:stop]
        return np.ascontiguousarray(self.arrays[number].flat[start:stop])


def check_layout(layout: Layout, views: Mapping[str, View]) -> None:
    """Raise LayoutMismatch, naming the first difference, unless ``views`` are the layout's tensors."""
    wanted = {tensor.name: tensor for tensor in layout.tensors}
    for name, tensor in wanted.items():
        view = views.get(name)
        if view is None:
            raise LayoutMismatch(f"tensor {name!r} of the version is not in the model")
        if (view.dtype, view.shape) != (tensor.dtype, tensor.shape):
            raise LayoutMismatch(
                f"tensor {name!r} is {view.dtype} {list(view.shape)} in the model and "
                f"{tensor.dtype} {list(tensor.shape)} in the version"
            )
    for name, view in views.items():
        if name in wanted:
            continue
        stored = layout.tied.get(name)
        if stored is None:
            raise LayoutMismatch(f"tensor {name!r} of the model is not in the version")
        if view.size and view.identity != views[stored].identity:
            raise LayoutMismatch(f"tensor {name!r} is tied to {stored!r} in the version, not in the model")
    seen: dict[tuple[Any, ...], str] = {}
    for name in wanted:
        if views[name].size and (first := seen.setdefault(views[name].identity, name)) != name:
            raise LayoutMismatch(f"tensor {name!r} is tied to {first!r} in the model, not in the version")


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


def _parts(group: Group, index: Index) -> Iterator[tuple[int, npt.NDArray[np.int64], slice]]:
    """Split an index by spans: yield (tensor, places in it, which part of the index they are)."""
    base = at = 0
    for span in group.spans:
        end = base + span.stop - span.start
        to = int(np.searchsorted(index, end))
        if to > at:
            yield span.tensor, index[at:to].astype(np.int64) + (span.start - base), slice(at, to)
        base, at = end, to
