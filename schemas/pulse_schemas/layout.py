"""The layout of a policy: names, dtypes and shapes of its tensors, in the canonical order."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from blake3 import blake3
from pydantic import Field, model_validator

from pulse_schemas.base import Count, Schema

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
    "F8_E4M3",
    "F8_E5M2",
    "I8",
    "U8",
    "BOOL",
]
DTYPE_ORDER: tuple[Dtype, ...] = Dtype.__args__  # type: ignore[attr-defined]
"""The order of dtypes in a layout: wide cells first, so that every tensor is naturally aligned."""

Name = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Tensor(Schema):
    """One stored tensor; ``shape`` is empty for a scalar."""

    name: Name
    dtype: Dtype
    shape: Annotated[tuple[Count, ...], Field(max_length=32)]


class Layout(Schema):
    """All stored tensors, sorted by (dtype in DTYPE_ORDER, name in code point order).

    ``tied`` maps each alias to the stored name that it shares its cells with.
    """

    format: Literal["pulse-layout/1"] = "pulse-layout/1"
    tensors: Annotated[tuple[Tensor, ...], Field(min_length=1)]
    tied: dict[Name, Name] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
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

    @property
    def id(self) -> str:
        """BLAKE3 of the canonical bytes, hex: the layout's name in records and keys."""
        return blake3(self.canonical()).hexdigest()
