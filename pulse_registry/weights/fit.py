"""Fit of a version to a model: whether its tensors can take it, and where in them its cells go.

Names and shapes are the version's. A model that is F32 where the version is BF16 or F16 takes it widened, if that is
asked for; tensors may be tied otherwise than in the version, as far as their cells agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pulse_registry.errors import LayoutMismatch
from pulse_registry.weights.cell_access import WIDENED, Place, Replicas, Strided
from pulse_registry.weights.model import View
from pulse_schemas import Layout, Tensor


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the cells of a layout's tensors go.

    Attributes:
        views: all whose memory is written: of each tensor of the layout one, then those of further places.
        places: of tensors, by number, whose cells are not simply the memory of their view.
        tied: pairs of tensors, by number, that are one in the model: a version fits if their cells agree.
    """

    views: list[View]
    places: dict[int, Place] = field(default_factory=dict)
    tied: list[tuple[int, int]] = field(default_factory=list)


def fit(layout: Layout, views: Mapping[str, View], *, cast: bool = False) -> Fit:
    """Find where the cells of a layout go in tensors in host memory; ``cast`` lets BF16 and F16 cells go into F32.

    Raises:
        LayoutMismatch: the tensors can't take it; the first difference is named.
    """
    _check_names(layout, views)
    aliases: dict[str, list[str]] = {}
    for alias, name in layout.tied.items():
        if alias in views:
            aliases.setdefault(name, []).append(alias)
    found, further = Fit([]), []
    numbers: dict[tuple[Any, ...], int] = {}
    for number, tensor in enumerate(layout.tensors):
        first, same = views[tensor.name], [views[alias] for alias in aliases.get(tensor.name, ())]
        for view in (first, *same):
            _check_tensor(tensor, view, cast=cast)
        others = _others(first, same) if same else same
        for view in (first, *others):
            other = numbers.setdefault(view.identity, number) if view.size else number
            if other != number:
                _check_tied(layout.tensors[other], tensor)
                found.tied.append((other, number))
        found.views.append(first)
        further += others
        if others:
            found.places[number] = Replicas([_place(tensor, view) for view in (first, *others)])
        elif first.dtype != tensor.dtype:
            found.places[number] = _place(tensor, first)
    found.views.extend(further)
    return found


def _others(first: View, aliases: list[View]) -> list[View]:
    """Return the views of further memory among those of names that the version ties to the first."""
    others: list[View] = []
    for view in aliases:
        seen = [first, *others]
        if view.size and all(view.identity != one.identity for one in seen):
            _check_apart(seen, view)
            others.append(view)
    return others


def _place(tensor: Tensor, view: View) -> Place:
    return WIDENED.get((tensor.dtype, view.dtype), Strided)(view.cells)


def check_layout(layout: Layout, views: Mapping[str, View]) -> None:
    """Raise LayoutMismatch, naming the first difference, unless ``views`` are the layout's tensors, and tied so."""
    _check_names(layout, views)
    wanted = {tensor.name: tensor for tensor in layout.tensors}
    for name, tensor in wanted.items():
        _check_tensor(tensor, views[name])
    for name, stored in layout.tied.items():
        if name in views and views[name].size and views[name].identity != views[stored].identity:
            raise LayoutMismatch(f"tensor {name!r} is tied to {stored!r} in the version, not in the model")
    seen: dict[tuple[Any, ...], str] = {}
    for name in wanted:
        if views[name].size and (first := seen.setdefault(views[name].identity, name)) != name:
            raise LayoutMismatch(f"tensor {name!r} is tied to {first!r} in the model, not in the version")


def _check_names(layout: Layout, views: Mapping[str, View]) -> None:
    wanted = {tensor.name for tensor in layout.tensors}
    for tensor in layout.tensors:
        if tensor.name not in views:
            raise LayoutMismatch(f"tensor {tensor.name!r} of the version is not in the model")
    for name in views:
        if name not in wanted and name not in layout.tied:
            raise LayoutMismatch(f"tensor {name!r} of the model is not in the version")


def _check_tensor(tensor: Tensor, view: View, *, cast: bool = False) -> None:
    if view.shape == tensor.shape and view.dtype == tensor.dtype:
        return
    widens = (tensor.dtype, view.dtype) in WIDENED
    if view.shape == tensor.shape and cast and widens:
        return
    hint = ""
    if view.shape == tensor.shape and widens and view.on_host:
        hint = f". Pass cast=True to write each {tensor.dtype} number as the same one in {view.dtype}"
    elif view.shape == tensor.shape:
        hint = (
            f". Pull into a tensor of {tensor.dtype}, or load() the version, and cast it yourself: cast=True does BF16 "
            "and F16 to F32 alone, in host memory"
        )
    raise LayoutMismatch(
        f"tensor {view.name!r} is {view.dtype} {list(view.shape)} in the model and "
        f"{tensor.dtype} {list(tensor.shape)} in the version{hint}"
    )


def _check_tied(one: Tensor, other: Tensor) -> None:
    if one.dtype != other.dtype:
        raise LayoutMismatch(
            f"tensors {one.name!r} and {other.name!r} are one in the model, and {one.dtype} and {other.dtype} in the "
            "version"
        )


def _check_apart(views: list[View], last: View) -> None:
    for view in views:
        if np.may_share_memory(view.cells, last.cells):
            raise LayoutMismatch(
                f"tensors {view.name!r} and {last.name!r}, one in the version, are seen in different ways of the same "
                "memory in the model: tie them, or give each memory of its own"
            )
