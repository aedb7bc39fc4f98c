"""The head of a patch object, a contribution or a checkpoint: its safetensors header, and the directory of its groups.

``directory`` has one entry of 80 bytes a group that changes, in group order (docs/spec.md, 5). The head, all bytes
before the first group, commits to every group by its BLAKE3.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from blake3 import blake3

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.directory import ENTRY_BYTES, Directory
from pulse_registry.format.safetensors import header_bytes, parse_head, tensor_entry
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import Fault, PatchHead, PatchRef, SchemaError
from pulse_schemas.heads import CheckpointHead, ContributionHead, MergedHead

Head = PatchHead | ContributionHead | MergedHead | CheckpointHead
H = TypeVar("H", PatchHead, ContributionHead, MergedHead, CheckpointHead)
_NAMES: Final = {
    PatchHead: "a patch object",
    ContributionHead: "a contribution",
    MergedHead: "a round's contributions, added up",
    CheckpointHead: "a checkpoint of outer rounds",
}
MOST_HEADER = 4096
"""Bytes that a patch's safetensors header never has: its fields are a hash and four numbers."""
_LEAST_LIMIT = 64 << 10
"""Of a head, whatever its layout: with room for a header that is too long, which is told as such."""


def head_bytes(head: Head, directory: Directory) -> bytes:
    """Return the beginning of an object: its safetensors header, and the directory of its groups."""
    rows = directory.to_bytes()
    return header_bytes(_head_document(head, len(rows), int(directory.sizes.sum()))) + rows


def most_head_bytes(geometry: Geometry) -> int:
    """Return how long a patch's head is at most: an entry for each group of the layout, and the header before them."""
    return _LEAST_LIMIT + ENTRY_BYTES * len(geometry.groups)


def committed_head(ref: PatchRef, head: bytes) -> tuple[PatchHead, Directory]:
    """Return what the head of a patch says, which is the one that a record names; checked without its layout.

    Raises:
        CorruptObject: it is another one, or breaks the format.
        UnsupportedFormat: written by another release.
    """
    key = ref.object.key
    if blake3(head).hexdigest() != ref.head_blake3:
        raise CorruptObject(f"{key}: the head's BLAKE3 differs from the one committed")
    parsed, directory = read_head(key, head, ref.size)
    found = parsed.base, parsed.target, parsed.changed, directory.coder
    if found != (ref.base, ref.target, ref.changed, ref.coder):
        raise CorruptObject(f"{key}: it is not the patch that the record names")
    return parsed, directory


def read_head(name: str, head: bytes, size: int) -> tuple[PatchHead, Directory]:
    """Return what a patch object says of itself, and its directory, checked without its layout.

    Args:
        name: of the object, for messages.
        head: its bytes up to the first group.
        size: of the object.

    Raises:
        CorruptObject: they break the format.
        UnsupportedFormat: written by another release.
    """
    return read_container(name, head, size, PatchHead)


def read_container(name: str, head: bytes, size: int, kind: type[H]) -> tuple[H, Directory]:
    """Return what an object of some kind says of itself, and its directory; see ``read_head``."""
    parsed, rows = _parse(name, head, size, kind)
    directory = Directory.parse(name, rows)
    if int(directory.sizes.sum()) != size - len(head):
        raise CorruptObject(f"{name}: the directory does not add up to the object")
    return parsed, directory


def _head_document(head: Head, directory: int, groups: int) -> dict[str, Any]:
    return {
        "__metadata__": {"pulse": head.canonical().decode()},
        "directory": tensor_entry("U8", [directory], 0, directory),
        "groups": tensor_entry("U8", [groups], directory, directory + groups),
    }


def _parse(key: str, head: bytes, size: int, kind: type[H]) -> tuple[H, bytes]:
    try:
        header = parse_head(head[:MOST_HEADER], size)
        parsed = kind.parse(header.metadata["pulse"].encode())
        at = header.nbytes
        directory = head[at:]
        expected = _head_document(parsed, len(directory), size - len(head))
    except SchemaError as error:
        if error.fault is Fault.UNSUPPORTED:
            raise UnsupportedFormat(f"{key}: {error}") from error
        raise CorruptObject(f"{key}: {error}") from error
    except (ValueError, KeyError) as error:
        raise CorruptObject(f"{key}: this is not {_NAMES[kind]}: {error}") from error
    if header_bytes(expected) != head[:at] or len(directory) != parsed.groups * ENTRY_BYTES:
        raise CorruptObject(f"{key}: the safetensors header does not fit the object")
    return parsed, directory
