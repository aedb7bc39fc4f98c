"""The index of a folder in the common delta format, ``model.safetensors.index.json``: its metadata tell a delta apart.

A delta says ``version``, ``base_version``, ``delta_encoding``, ``compression_format`` and ``checksum_format``; what has
no ``delta_encoding`` is a whole checkpoint. Writers differ in how they write version numbers: six digits in a string,
numbers, or ids of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulse_registry.errors import CorruptObject, InvalidArgument, UnsupportedFormat
from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.interop.checksum import Checksum
from pulse_registry.interop.frames import Encoding
from pulse_registry.push.checkpoint_index import IndexFault, parse_index_file, read_index_file
from pulse_registry.quoting import quoted

COMPRESSION = "zstd"
FOLDER = re.compile(r"weight_v([0-9]+)")
"""What the field's writers call the folder of a version."""
_MOST_DIGITS = 18
"""Of a version's number: it is the trainer's label of the version that it becomes, which has 64 bits."""


@dataclass(frozen=True, slots=True)
class DeltaIndex:
    """What an index says.

    Attributes:
        version: the writer's name of it, as ``name_of`` gives it; None where it says none.
        base: of the version that a delta builds on; None for a whole checkpoint.
        encoding: of a delta's frames; None for a whole checkpoint.
        checksum: of the tensors; None where a whole checkpoint has none.
        weight_map: shard of each tensor that is there: all of a whole checkpoint, the changed ones of a delta.
    """

    version: str | None
    base: str | None
    encoding: Encoding | None
    checksum: Checksum | None
    weight_map: Mapping[str, str]

    @property
    def is_delta(self) -> bool:
        """Whether it is a delta."""
        return self.encoding is not None

    def document(self, total_size: int | None = None) -> bytes:
        """Return the index's bytes; ``total_size`` is for a whole checkpoint."""
        metadata: dict[str, Any] = {"version": self.version}
        if self.is_delta:
            metadata |= {"base_version": self.base, "delta_encoding": self.encoding, "compression_format": COMPRESSION}
        if self.checksum is not None:
            metadata["checksum_format"] = self.checksum
        if total_size is not None:
            metadata["total_size"] = total_size
        document = {"metadata": metadata, "weight_map": dict(self.weight_map)}
        return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def number_name(version: int) -> str:
    """Return a version's number as it is written: readers compare it as text, or as the number it is."""
    return f"{version:06d}"


def folder_name(version: int) -> str:
    """Return the name of a version's folder."""
    return f"weight_v{number_name(version)}"


def name_of(value: Any) -> str | None:
    """Return a version's name as one writer or another has written it: 4, "4" and "000004" are the same."""
    if isinstance(value, int) and not isinstance(value, bool):
        return number_name(value) if 0 <= value < 10**_MOST_DIGITS else None
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        return None
    number = number_of(value)
    return value if number is None else number_name(number)


def number_of(name: str) -> int | None:
    """Return the number that a version's name is; None where it is an id of the writer's own.

    Only ASCII digits are a number's: other letters pass for digits in Python, and some of them are none.
    """
    return int(name) if name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS else None


def read_index(folder: Path) -> DeltaIndex | None:
    """Return what a folder's index says; None where there is none: a checkpoint in one file has none.

    Raises:
        CorruptObject: it is no index, or lacks what a delta needs.
        UnsupportedFormat: it is of an encoding, a compression or a checksum that is not known here.
        InvalidArgument: it can't be read.
    """
    path = folder / INDEX_NAME
    try:
        data = read_index_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"{path} can't be read: {error.strerror or error}") from error
    except IndexFault as error:
        raise CorruptObject(f"{path} is no index: {error}") from error
    return parse_index(path, data)


def parse_index(path: Path, data: bytes) -> DeltaIndex:
    """Return what an index's bytes say; ``path`` is for messages, and its folder's name a version without a name."""
    try:
        metadata, weight_map = parse_index_file(data)
    except IndexFault as error:
        raise CorruptObject(f"{path} is no checkpoint's index: {error}") from error
    encoding = metadata.get("delta_encoding")
    found = FOLDER.fullmatch(path.parent.name)
    version = name_of(metadata.get("version", found[1] if found else None))
    checksum = metadata.get("checksum_format")
    if encoding is None:
        return DeltaIndex(version, None, None, _known(Checksum, checksum, path), weight_map)
    base = name_of(metadata.get("base_version"))
    if version is None or base is None:
        raise CorruptObject(f"{path} is a delta's, and does not say which version it makes of which")
    if metadata.get("compression_format") != COMPRESSION:
        raise UnsupportedFormat(
            f"{path}: its compression is {quoted(metadata.get('compression_format'))}, not {COMPRESSION!r}"
        )
    known = _known(Checksum, checksum, path)
    if known is None:
        raise CorruptObject(f"{path} is a delta's, and has no checksums")
    return DeltaIndex(version, base, _known(Encoding, encoding, path), known, weight_map)


def _known(kind: Any, value: Any, path: Path) -> Any:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(kind)
        raise UnsupportedFormat(f"{path}: {kind.__name__.lower()} {quoted(value)} is none of {names}") from error
