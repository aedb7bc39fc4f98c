"""Sliced keyframe: the cells of a stored keyframe that slices hold, in memory; nothing else of it is fetched."""

from __future__ import annotations

from typing import Self

from pulse_kernels import Cells
from pulse_registry.errors import CorruptObject, about
from pulse_registry.process.parallel import Map
from pulse_registry.pull.keyframe_slices import fetch_cells
from pulse_registry.store import Store
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.slice_map import SliceMap, fill_slices
from pulse_schemas import KeyframeRef


class SlicedKeyframe:
    """The checked cells of a keyframe, as far as slices hold them; see ``KeyframeCells``.

    Attributes:
        weights: the cells, of the local layout.
        nbytes: how many bytes were fetched.
        in_memory: False: the cells are copied where they are to go.
    """

    in_memory = False

    def __init__(self, weights: Weights, nbytes: int) -> None:
        self.weights, self.nbytes = weights, nbytes

    @classmethod
    def fetch(cls, store: Store, slices: SliceMap, ref: KeyframeRef, map_: Map) -> Self:
        """Fetch and check the pieces that hold a cell of the slices.

        Raises:
            InvalidArgument: there is not enough memory for the slices.
            CorruptObject: a piece is not what was committed.
            NotFound, StoreUnavailable: as the store.
        """
        weights = Weights.empty(slices.local)
        filled: list[int] = []

        def take(tensor: int, start: int, cells: Cells) -> None:
            for one, local, found in fill_slices(slices.of_tensor(tensor), start, cells):
                weights.store(one.number, local, found)
                filled.append(len(found))

        with about(ref.index.key):
            nbytes = fetch_cells(store, slices.geometry, ref, slices.wanted, take, map_)
            if sum(filled) != slices.local.cells:
                raise CorruptObject(
                    f"{ref.index.key}: the keyframe holds {sum(filled)} of {slices.local.cells} cells of the slices"
                )
        return cls(weights, nbytes)

    def release(self, group: Group) -> None:
        """Do nothing: the memory goes with the last array of it."""

    def close(self) -> None:
        """Do nothing."""
