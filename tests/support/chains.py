"""Random layouts and chains of states over them, as weights of raw cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Backend, CellType
from pulse_kernels.reference.backend import order, unorder
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_schemas import DTYPE_ORDER, Layout, Tensor

_SHAPES = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 70)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5)),
)


@dataclass(frozen=True)
class Chain:
    """Consecutive states of one layout, cut into groups of ``group_bytes``."""

    layout: Layout
    states: tuple[tuple[np.ndarray[Any, Any], ...], ...]
    group_bytes: int

    def weights(self, geometry: Geometry, number: int) -> Weights:
        """Return a copy of one state."""
        return Weights(geometry, [array.copy() for array in self.states[number]])

    def models(self, tied: str | None = None) -> list[dict[str, Any]]:
        """Return the states as models of the tensors' own dtypes; ``tied`` is one more name of the first tensor."""
        found = []
        for state in self.states:
            pairs = zip(self.layout.tensors, state, strict=True)
            model = {t.name: a.reshape(-1).view(numpy_dtype(t.dtype)).reshape(a.shape) for t, a in pairs}
            found.append(model | ({tied: model[self.layout.tensors[0].name]} if tied else {}))
        return found


@st.composite
def chains(draw: st.DrawFn, length: int = 2) -> Chain:
    """Draw a layout of one to five tensors and ``length`` states."""
    kind = st.tuples(st.sampled_from(DTYPE_ORDER), _SHAPES).filter(lambda kind: kind != ("F4", ()))
    kinds = draw(st.lists(kind, min_size=1, max_size=5))
    tensors = [Tensor(name=f"t{n}", dtype=dtype, shape=shape) for n, (dtype, shape) in enumerate(kinds)]
    tensors.sort(key=lambda tensor: (DTYPE_ORDER.index(tensor.dtype), tensor.name))
    layout = Layout(tensors=tuple(tensors))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    states = [tuple(_random(rng, CELL_TYPES[t.dtype], t.shape) for t in tensors)]
    for _ in range(length - 1):
        how = draw(st.sampled_from(["none", "few", "near", "many", "all", "back"]))
        states.append(
            states[rng.integers(len(states))]
            if how == "back"
            else tuple(_changed(rng, how, a, CELL_TYPES[t.dtype]) for a, t in zip(states[-1], tensors, strict=True))
        )
    return Chain(layout, tuple(states), draw(st.sampled_from([8, 64, 256])))


def _random(rng: np.random.Generator, cell_type: CellType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    cells = np.frombuffer(rng.bytes(int(np.prod(shape, dtype=int)) * cell_type.width), cell_type.dtype).copy()
    odd = np.array(special_bits(cell_type), cell_type.dtype)
    at = rng.random(len(cells)) < 0.3
    cells[at] = rng.choice(odd, int(at.sum()))
    return cells.reshape(shape)


def special_bits(cell_type: CellType) -> list[int]:
    """Return the patterns at the ends of everything: zeros, signs, infinities and NaNs, denormals, all ones."""
    bits = cell_type.bits
    infinity = cell_type.class_mask << cell_type.class_shift
    found = {0, 1, 2, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) + 1, (1 << (bits - 1)) - 1}
    found |= {infinity, infinity | 1, infinity | 1 << (bits - 1), infinity - 1}
    return sorted(value for value in found if 0 <= value < 1 << bits)


def _changed(
    rng: np.random.Generator, how: str, before: np.ndarray[Any, Any], cell_type: CellType
) -> np.ndarray[Any, Any]:
    cells = before.reshape(-1).copy()
    share = {"none": 0.0, "few": 0.05, "near": 0.2, "many": 0.5, "all": 1.0}[how]
    at = np.flatnonzero(rng.random(len(cells)) < share)
    if how in ("few", "near"):
        step = rng.integers(-2, 3, len(at)).astype(f"i{cell_type.width}").view(cell_type.dtype)
        cells[at] = unorder(order(cells[at], cell_type) + step, cell_type)
    else:
        cells[at] = _random(rng, cell_type, (len(at),))
    return cells.reshape(before.shape)


def difference(backend: Backend, old: Weights, new: Weights) -> list[SparseUpdate]:
    """Return what differs, group by group; groups that are equal too."""
    return [SparseUpdate(group, *backend.diff(new.copy_of(group), old.copy_of(group))) for group in old.geometry.groups]
