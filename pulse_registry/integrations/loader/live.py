"""Live map: where the cells of a version live in a model that an engine serves, as slices to pull into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pulse_registry.integrations.loader.region import Scattered, slices_of
from pulse_registry.integrations.loader.trace import Copy, Load, trace
from pulse_registry.weights.slice import Slice
from pulse_schemas import Layout

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}


@dataclass(frozen=True, slots=True)
class LiveMap:
    """Where a model holds the cells of a layout's tensors.

    Attributes:
        slices: by name, the parts that this model holds: views of its parameters, to pull into with ``partial=True``.
        unused: names of which the loader takes nothing here, such as other ranks' experts.
        refused: by name, why a tensor, or part of it, can't be written in place. Load these in the engine's own way, or
            not at all; none of them is in ``slices``.
    """

    slices: Mapping[str, Slice | list[Slice]]
    unused: Sequence[str]
    refused: Mapping[str, str]


def live_map(model: torch.nn.Module, layout: Layout, load: Load | None = None) -> LiveMap:
    """Find where a model holds the cells of a layout, by running its own loader on tensors that hold nothing.

    The loader says what it copies, not what an engine makes of it afterwards (quantised, packed, or absorbed into
    another tensor): compare the slices with a version before they are trusted, by ``Registry.verify(version,
    model=slices, partial=True)``.

    Args:
        model: parameters are live; neither they nor their addresses are changed.
        layout: of the versions, under the names of the checkpoint that the model was loaded from.
        load: what takes names and tensors; ``model.load_weights`` if None.

    Raises:
        Exception: what the loader raises for more than 64 tensors.
    """
    own: Any = model
    shapes = {tensor.name: (tuple(tensor.shape), _DTYPES[tensor.dtype]) for tensor in layout.tensors}
    traced = trace(model, own.load_weights if load is None else load, shapes)
    refused, slices = dict(traced.faults), dict[str, Slice | list[Slice]]()
    last = _last_writes(traced.copies)
    for name, copies in last.items():
        if name in refused:
            continue
        try:
            found = [one for copy in copies for one in slices_of(copy.region, copy.live, shapes[name][0])]
        except Scattered as error:
            refused[name] = str(error)
            continue
        if found:
            slices[name] = found[0] if len(found) == 1 else found
    unused = [name for name in shapes if name not in slices and name not in refused]
    return LiveMap(slices, unused, refused)


def _last_writes(copies: Mapping[str, Sequence[Copy]]) -> dict[str, list[Copy]]:
    """Return the copies that are not written over by a later one into the very same place."""
    last: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[str, Copy]] = {}
    for name, made in copies.items():
        for copy in made:
            last[copy.live.data_ptr(), tuple(copy.live.shape), copy.live.stride()] = (name, copy)
    found: dict[str, list[Copy]] = {}
    for name, copy in last.values():
        found.setdefault(name, []).append(copy)
    return found
