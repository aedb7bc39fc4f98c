"""Keys of what a run stores, below the run's prefix. Pure names: no I/O.

Numbers are padded to twelve digits, so that the store's order of keys is the order of numbers.
"""

from __future__ import annotations

from pulse_registry.errors import InvalidArgument

HEAD = "head"
LOG = "log/"
SNAPSHOTS = "log/snapshots/"
LAYOUTS = "layouts/"
OBJECTS = "objects/"


def record_key(seq: int) -> str:
    """Return the key of record ``seq``."""
    return f"{LOG}{_number(seq)}.json"


def snapshot_key(seq: int) -> str:
    """Return the key of the snapshot that folds the records up to ``seq``."""
    return f"{SNAPSHOTS}{_number(seq)}.json"


def snapshot_seq(key: str) -> int | None:
    """Return the seq that a snapshot's key names, or None where ``key`` is no snapshot's."""
    digits = key.removeprefix(SNAPSHOTS).removesuffix(".json")
    if not (digits.isascii() and digits.isdigit()) or snapshot_key(int(digits)) != key:
        return None
    return int(digits)


def layout_key(layout_id: str) -> str:
    """Return the key of a layout."""
    return f"{LAYOUTS}{layout_id}.json"


def patch_key(base: int, target: int, write_id: str) -> str:
    """Return the key of the patch ``base -> target`` that one write made."""
    return f"{OBJECTS}patch/{_number(base)}-{_number(target)}-{write_id}.safetensors"


def keyframe_prefix(version: int, write_id: str) -> str:
    """Return the folder, with its slash, of the keyframe that one write made."""
    return f"{OBJECTS}keyframe/{_number(version)}-{write_id}/"


def keyframe_key(version: int, write_id: str, file_name: str) -> str:
    """Return the key of one file of a keyframe.

    Raises:
        InvalidArgument: ``file_name`` is not the plain name of a file.
    """
    if not file_name or "/" in file_name or file_name in (".", ".."):
        raise InvalidArgument(f"{file_name!r} is not the plain name of a file")
    return keyframe_prefix(version, write_id) + file_name


def is_object_key(key: str) -> bool:
    """Tell whether ``key`` lies in the folder of objects: the only keys that a record may name."""
    return key.startswith(OBJECTS) and not {"", ".", ".."} & set(key.split("/"))


def _number(value: int) -> str:
    if not 0 <= value < 10**12:
        raise InvalidArgument(f"{value} is no version or record number (0 to 10^12 - 1)")
    return f"{value:012d}"
