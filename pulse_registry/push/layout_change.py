"""Description of a layout change: which tensors differ, in words for a person."""

from __future__ import annotations

from collections.abc import Mapping

from pulse_schemas import Layout, Tensor


def first_difference(old: Layout, new: Layout) -> str | None:
    """Name the first tensor, by name, in which a new layout differs from an old one; None: they are the same."""
    before, after = _described(old), _described(new)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if name not in after:
            return f"tensor {name!r} is gone"
        if name not in before:
            return f"tensor {name!r} is new"
        return f"tensor {name!r} is {after[name]}, and was {before[name]}"
    return None


def _described(layout: Layout) -> Mapping[str, str]:
    def shape(tensor: Tensor) -> str:
        return f"{tensor.dtype} {list(tensor.shape)}"

    stored = {tensor.name: shape(tensor) for tensor in layout.tensors}
    return stored | {name: f"tied to {first!r}" for name, first in layout.tied.items()}
