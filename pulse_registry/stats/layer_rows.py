"""Rows of groups, by the layer that each begins in: what heads of patches tell of layers without decoding anything.

A directory says how many cells of each group change. A group has 16 MiB, so that those of a large model lie within a
layer, nearly all; one that goes on in others is counted where it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from pulse_registry.errors import CorruptObject, about
from pulse_registry.format.directory import Directory
from pulse_registry.format.patch import check_directory
from pulse_registry.format.patch_head import committed_head, most_head_bytes
from pulse_registry.stats.counts import Counts
from pulse_registry.stats.tensor_names import in_order, layer_of
from pulse_registry.store import Store
from pulse_registry.store.verified_read import checked
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import PatchRef

MOST_ROWS: Final = 256
"""All layers after these are one row."""
_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class LayerRow:
    """The groups that begin in a layer.

    Attributes:
        name: the layer.
        layers: what the groups hold cells of, the first eight; it is among them.
        cells: of all of them.
    """

    name: str
    layers: tuple[str, ...]
    cells: int


class LayerRows:
    """The rows of a layout, in the order of their layers.

    Attributes:
        geometry: of the layout.
        rows: those that there are.
    """

    def __init__(self, geometry: Geometry) -> None:
        """Find the layer of each group, in time by the tensors and the groups; no group is made."""
        self.geometry = geometry
        layer_of_tensor = [layer_of(tensor.name) for tensor in geometry.layout.tensors]
        numbers, offsets = np.arange(len(geometry.groups)), np.array([geometry.tensor_start(n) for n in _all(geometry)])
        starts = geometry.groups.starts(numbers)
        first, last = (
            np.searchsorted(offsets, flat, side="right") - 1 for flat in (starts, starts + geometry.groups.cells - 1)
        )
        begins = [layer_of_tensor[tensor] for tensor in first.tolist()]
        names = in_order(set(begins))
        place = {name: min(number, MOST_ROWS - 1) for number, name in enumerate(names)}
        self._row_of = np.array([place[name] for name in begins], np.int64)
        cells = np.bincount(self._row_of, geometry.groups.cells, min(len(names), MOST_ROWS)).astype(np.int64)
        held: list[dict[str, None]] = [{} for _ in cells]
        for row, begin, end in zip(self._row_of.tolist(), first.tolist(), last.tolist(), strict=True):
            tensors = range(begin, min(end, begin + 1000) + 1)
            held[row].update((layer_of_tensor[tensor], None) for tensor in tensors if geometry.sizes[tensor])
        self.rows = tuple(
            LayerRow(name, tuple(in_order(set(layers)))[:_NAMED], int(count))
            for name, layers, count in zip(names, held, cells, strict=False)
        )

    def changed(self, directory: Directory) -> Counts:
        """Return how many cells of each row a patch changes."""
        return np.bincount(self._row_of[directory.groups], directory.changed, len(self.rows)).astype(np.int64)


def fetch_directory(store: Store, geometry: Geometry, ref: PatchRef) -> Directory:
    """Fetch the head of a patch, and nothing else of it; return its directory, checked against the layout.

    Raises:
        CorruptObject: it is not what was committed, or does not fit the layout.
        UnsupportedFormat: written by another release.
        NotFound, StoreUnavailable: as the store.
    """
    key = ref.object.key
    if ref.head_size > most_head_bytes(geometry):
        raise CorruptObject(f"{key}: a head of {ref.head_size} bytes was committed, and its layout allows less")
    with about(key):
        head, directory = checked(partial(store.get, key, (0, ref.head_size)), partial(committed_head, ref))
    if head.layout != geometry.id:
        raise CorruptObject(f"{key}: it is not the patch that the record names")
    check_directory(key, geometry, directory, head.changed)
    return directory


def _all(geometry: Geometry) -> range:
    return range(len(geometry.sizes))
