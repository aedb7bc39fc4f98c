"""Small layouts, weights and groups for unit tests: groups of 64 bytes, so that a few cells make several of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from pulse_kernels import Backend, Cells, get_backend
from pulse_kernels.format import group as kernel_group
from pulse_registry.weights import cell_space as geometry_module
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import PublishDtype, layout_of, read_model

SMALL_GROUP = 64
"""Bytes of a small group: 32 BF16 cells."""


@contextmanager
def small_groups(group_bytes: int = SMALL_GROUP) -> Iterator[None]:
    """Cut layouts into groups of so few bytes that a handful of cells makes several, in the library and the kernels."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(geometry_module, "GROUP_BYTES", group_bytes)
        patched.setattr(kernel_group, "GROUP_BYTES", group_bytes)
        yield


def geometry_of(model: Mapping[str, Any], publish: PublishDtype = "keep", group_bytes: int = SMALL_GROUP) -> Geometry:
    """Return the geometry of a model in small groups."""
    with small_groups(group_bytes):
        return Geometry(layout_of(read_model(model), publish))


def numbered(shape: tuple[int, ...], start: int, dtype: str = "u2") -> np.ndarray[Any, Any]:
    """Return an array whose cells count up from ``start``."""
    return (np.arange(np.prod(shape, dtype=int)) + start).astype(dtype).reshape(shape)


def mixed_model() -> dict[str, np.ndarray[Any, Any]]:
    """Return a model of 7 tensors, three widths, one empty and one of no dimension, in 7 small groups."""
    return {
        "a": numbered((5, 7), 100),
        "b": numbered((0, 4), 0),
        "c": numbered((50,), 1000),
        "d": numbered((), 7),
        "e": numbered((3, 3), 50, "u4"),
        "f": numbered((10,), 2, "f4"),
        "g": numbered((70,), 0, "u1"),
    }


def strided(model: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return equal tensors, none of them with more than one cell contiguous."""
    out = {}
    for name, array in model.items():
        wide = np.zeros((*array.shape, 2), array.dtype)
        out[name] = wide[..., 0]
        out[name][...] = array
    return out


def weights_of(geometry: Geometry, model: Mapping[str, Any]) -> Weights:
    """Return the weights that are a model's memory."""
    return Weights.into(geometry, read_model(model))


def flat_cells(geometry: Geometry, model: Mapping[str, Any]) -> list[int]:
    """Return all cells of a model in flat order, by the plainest way."""
    views = read_model(model)
    return [cell for tensor in geometry.layout.tensors for cell in views[tensor.name].cells.reshape(-1).tolist()]


def group_cells(geometry: Geometry, model: Mapping[str, Any], number: int) -> Cells:
    """Return one group's cells, by the plainest way."""
    group = geometry.groups[number]
    cells = flat_cells(geometry, model)[group.start : group.start + group.cells]
    return np.array(cells, group.cell_type.dtype)


def numba() -> Backend:
    return get_backend("numba")
