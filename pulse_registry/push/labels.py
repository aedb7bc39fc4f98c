"""A version's step and metadata: checked, or copied, at the call, before anything is done.

The bounds are those of a writer. Records with larger metadata, of older releases, stay readable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pulse_registry.errors import InvalidArgument
from pulse_schemas.base import canonical_json

METADATA_BYTES: Final = 64 << 10
"""Of a version's metadata, as canonical JSON: it is in the version's record, and in each snapshot after it."""
_DEPTH: Final = 32
_SHOWN: Final = 80


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a version's metadata as plain JSON values, in memory of their own.

    NumPy's scalars become Python's, tuples become lists.

    Raises:
        InvalidArgument: a value has no JSON form, or all of them take over 64 KiB; the message says which value.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidArgument(f"metadata is of type {type(metadata).__name__}; it is a mapping of names to JSON values")
    plain = _Copy().object(metadata, "metadata", 0)
    size = len(canonical_json(plain))
    if size > METADATA_BYTES:
        raise _too_large(f"{size:,} bytes")
    return plain


class _Copy:
    """Copies JSON values, as many as the bound allows at a byte each: what contains itself comes to an end too."""

    def __init__(self) -> None:
        self._left = METADATA_BYTES

    def object(self, value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        found = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(f"{where} has a key of type {type(key).__name__}; keys are strings")
            found[self._text(key, f"a key of {where}")] = self.value(item, f"{where}[{_shown(key)}]", depth + 1)
        return found

    def value(self, value: Any, where: str, depth: int) -> Any:
        if depth > _DEPTH:
            raise InvalidArgument(f"{where[:_SHOWN]}... is more than {_DEPTH} levels deep; perhaps it contains itself")
        self._take(1)
        if isinstance(value, np.generic):
            value = float(value) if isinstance(value, np.floating) else value.item()
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, where)
        if isinstance(value, int):
            if not -(2**63) <= value < 2**64:
                raise InvalidArgument(f"{where} is an integer of {value.bit_length()} bits; it has at most 64")
            return int(value)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidArgument(
                    f"{where} is {float(value)}, which JSON has no form for; leave it out, or say null"
                )
            return float(value)
        if isinstance(value, Mapping):
            return self.object(value, where, depth)
        if isinstance(value, list | tuple):
            return [self.value(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
        hint = "; .item() gives the number in it" if hasattr(value, "item") else ""
        raise InvalidArgument(f"{where} is of type {type(value).__name__}, which JSON has no form for{hint}")

    def _text(self, text: str, where: str) -> str:
        self._take(len(text))
        try:
            return text.encode().decode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{where} is text with half of a surrogate pair, which is no Unicode") from None

    def _take(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise _too_large(f"over {METADATA_BYTES:,} bytes")


def _too_large(size: str) -> InvalidArgument:
    return InvalidArgument(
        f"metadata takes {size} as JSON, and {METADATA_BYTES:,} are the most: it is in the log, which every reader "
        "reads. Store what is large elsewhere, and name the place"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
