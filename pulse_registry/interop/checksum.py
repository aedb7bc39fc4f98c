"""The checksums of the common delta format: of a tensor's bytes after the delta, as lower-case hex digits."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from pulse_registry.errors import InvalidArgument

Bytes = npt.NDArray[np.uint8]


class Checksum(StrEnum):
    """Which one; the values are those of the index's ``checksum_format``."""

    ADLER32 = "adler32"
    XXH3_128 = "xxh3-128"
    BLAKE3 = "blake3"

    @property
    def digits(self) -> int:
        """How many hex digits it has."""
        return {"adler32": 8, "xxh3-128": 32, "blake3": 64}[self.value]


class Hasher(Protocol):
    """Takes bytes piece by piece."""

    def update(self, data: Bytes, /) -> object:
        """Take the next piece."""

    def hexdigest(self) -> str:
        """Return the checksum of all pieces."""


class _Adler32:
    def __init__(self) -> None:
        self._value = zlib.adler32(b"")

    def update(self, data: Bytes, /) -> None:
        self._value = zlib.adler32(data.data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


class _Blake3:
    def __init__(self) -> None:
        self._state = blake3()

    def update(self, data: Bytes, /) -> None:
        self._state.update(data.data)

    def hexdigest(self) -> str:
        return self._state.hexdigest()


def hasher_of(checksum: Checksum) -> Callable[[], Hasher]:
    """Return what makes hashers of a kind.

    Raises:
        InvalidArgument: it needs a package that is not installed.
    """
    if checksum is Checksum.XXH3_128:
        try:
            import xxhash
        except ImportError as error:
            raise InvalidArgument("checksums of xxh3-128 need xxhash: pip install 'pulse-registry[interop]'") from error
        return lambda: cast(Hasher, xxhash.xxh3_128())
    return _Adler32 if checksum is Checksum.ADLER32 else _Blake3
