"""The layout of a policy: names, dtypes and shapes of its tensors, in the canonical order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Literal, Self

from blake3 import blake3
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from pulse_schemas.base import Count, Many, Schema

Dtype = Literal[
    "F64",
    "I64",
    "U64",
    "F32",
    "I32",
    "U32",
    "BF16",
    "F16",
    "I16",
    "U16",
    "F8_E8M0",
    "F8_E4M3",
    "F8_E5M2",
    "I8",
    "U8",
    "F4",
    "BOOL",
]
DTYPE_ORDER: tuple[Dtype, ...] = Dtype.__args__  # type: ignore[attr-defined]
"""The order of dtypes in a layout: wide cells first, so that every tensor is naturally aligned."""
MAX_CELLS = 2**42
"""Of all tensors of a layout; a size of 0 counts as 1, so that an empty tensor's other sizes are bounded too."""
_SINCE_2: frozenset[Dtype] = frozenset({"F8_E8M0", "F4"})

Name = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]


LayoutFormat = Literal["pulse-layout/1", "pulse-layout/2"]


# A layout may have 70,000 of them: with slots, one takes a third of a Schema's memory, and half of its time.
@dataclass(slots=True, frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class Tensor:
    """One stored tensor; ``shape`` is empty for a scalar.

    It counts cells: of F4, pairs of elements along the last dimension, the first of a pair in the low four bits.
    """

    name: Name
    dtype: Dtype
    shape: Annotated[Many[Count], Field(max_length=32)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dtype == "F4" and not self.shape:
            raise ValueError("a tensor of F4 has pairs of elements along its last dimension, and this one has none")
        return self


def layout_format(tensors: Iterable[Tensor]) -> LayoutFormat:
    """Return the one format of a layout with these tensors: the first that has their dtypes."""
    return "pulse-layout/2" if any(tensor.dtype in _SINCE_2 for tensor in tensors) else "pulse-layout/1"


def _claimed(tensor: Tensor) -> int:
    """Return the cells of a tensor, a size of 0 counted as 1."""
    return math.prod(tensor.shape) or math.prod(size or 1 for size in tensor.shape)


class Layout(Schema):
    """All stored tensors, sorted by (dtype in DTYPE_ORDER, name in code point order).

    ``tied`` maps each alias to the stored name that it shares its cells with. ``format`` follows from the dtypes: a
    layout has one id. It has at most MAX_CELLS cells: what is made of a layout adds up, and fits in 64 bits.
    """

    tensors: Annotated[Many[Tensor], Field(min_length=1)]
    tied: dict[Name, Name] = Field(default_factory=dict)
    format: LayoutFormat = Field(default_factory=lambda data: layout_format(data.get("tensors", ())))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.format != layout_format(self.tensors):
            raise ValueError(f"a layout of these dtypes is of format {layout_format(self.tensors)!r}")
        if sum(map(_claimed, self.tensors)) > MAX_CELLS:
            raise ValueError(f"it claims more than {MAX_CELLS} cells")
        keys = [(DTYPE_ORDER.index(t.dtype), t.name) for t in self.tensors]
        if keys != sorted(keys):
            raise ValueError("tensors are not in canonical order (dtype, then name)")
        names = {t.name for t in self.tensors}
        if len(names) != len(self.tensors):
            raise ValueError("two tensors share a name")
        if "__metadata__" in names:
            raise ValueError("'__metadata__' is no tensor's name: safetensors keeps it for itself")
        for alias, name in self.tied.items():
            if alias in names or name not in names:
                raise ValueError(f"tied name {alias!r} -> {name!r} does not name one stored tensor")
        return self

    @cached_property
    def id(self) -> str:
        """BLAKE3 of the canonical bytes, hex: the layout's name in records and keys."""
        return blake3(self.canonical()).hexdigest()
