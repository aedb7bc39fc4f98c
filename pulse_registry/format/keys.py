"""Keys of what a run stores, below the run's prefix. Pure names: no I/O.

Numbers are padded to twelve digits, so that the store's order of keys is the order of numbers.
"""

from __future__ import annotations

import re

from pulse_registry.errors import InvalidArgument
from pulse_schemas.objects import BASE_ID_PATTERN, BASES

HEAD = "head"
HOME = "home"
"""Of the one root that writes a run which has moved; no copy of the run has it."""
LOG = "log/"
SNAPSHOTS = "log/snapshots/"
SEGMENTS = "log/segments/"
COUNTERSIGNED = "log/countersigned/"
LAYOUTS = "layouts/"
OBJECTS = "objects/"
FILES = "objects/files/"
LEASES = "leases/"
REPORTS = "reports/"
OUTER = "outer/"
"""Of a run's outer rounds: a log and objects, under the names that a run has for its own."""
CLOCK = "clock"
REFERENCES = "bases/"
"""Of a run to shared bases, which lie in the root, under ``pulse_schemas.BASES``."""
_CLOSED = "closed"
_BASE_FOLDER = re.compile(rf"{BASES}({BASE_ID_PATTERN})/")
_REFERENCE = re.compile(rf"{REFERENCES}({BASE_ID_PATTERN})")
MIRROR = "mirror"
"""Says of what root a run is a copy, where it is one."""
_HEAD = "/patch-head"
"""Not "/head": rights to replace runs' hints are given for all keys that end so."""
_PARTED = re.compile(r"(objects/patch/[0-9]{12}-[0-9]{12}-[0-9a-f]{32})/(?:patch-head|[0-9]{5})")
"""Keys of a patch in parts: its folder comes first."""
_CONTRIBUTION = re.compile(r"objects/contribution/([0-9]{12})-([a-z0-9][a-z0-9._-]{0,63})-[0-9a-f]{32}\.safetensors")
_OUTER_OBJECT = re.compile(
    r"objects/(contribution|merged|checkpoint)/([0-9]{12})-"
    r"(?:[^/]+\.safetensors|[0-9a-f]{32}/(?:checkpoint-head|[0-9]{7}))"
)
_SEGMENT = re.compile(r"log/segments/([0-9]{12})-([0-9a-f]{64})\.safetensors")
_VERSIONS = re.compile(r"objects/(?:patch/([0-9]{12})-([0-9]{12})|keyframe/([0-9]{12}))-")


def record_key(seq: int) -> str:
    """Return the key of record ``seq``."""
    return f"{LOG}{_number(seq)}.json"


def record_seq(key: str) -> int | None:
    """Return the seq that a record's key names, or None where ``key`` is no record's."""
    return _numbered(key, LOG)


def snapshot_key(seq: int) -> str:
    """Return the key of the snapshot that folds the records up to ``seq``."""
    return f"{SNAPSHOTS}{_number(seq)}.json"


def snapshot_seq(key: str) -> int | None:
    """Return the seq that a snapshot's key names, or None where ``key`` is no snapshot's."""
    return _numbered(key, SNAPSHOTS)


def segment_key(seq: int, digest: str) -> str:
    """Return the key of a segment, by the snapshot that was the first to name it and the hash of its bytes."""
    return f"{SEGMENTS}{_number(seq)}-{digest}.safetensors"


def segment_of(key: str) -> tuple[int, str] | None:
    """Return the number and the hash that a segment's key names, or None where ``key`` is no segment's."""
    found = _SEGMENT.fullmatch(key)
    return None if found is None else (int(found[1]), found[2])


def countersignature_key(seq: int) -> str:
    """Return the key of the countersignature of record ``seq``."""
    return f"{COUNTERSIGNED}{_number(seq)}.json"


def countersigned_seq(key: str) -> int | None:
    """Return the seq of the record whose countersignature a key names, or None where ``key`` is no such key."""
    return _numbered(key, COUNTERSIGNED)


def layout_key(layout_id: str) -> str:
    """Return the key of a layout."""
    return f"{LAYOUTS}{layout_id}.json"


def patch_key(base: int, target: int, write_id: str) -> str:
    """Return the key of the patch ``base -> target`` that one write made."""
    return f"{OBJECTS}patch/{_number(base)}-{_number(target)}-{write_id}.safetensors"


def patch_head_key(base: int, target: int, write_id: str) -> str:
    """Return the key of the head of the patch in parts ``base -> target`` that one write made."""
    return f"{OBJECTS}patch/{_number(base)}-{_number(target)}-{write_id}{_HEAD}"


def part_key(head_key: str, part: int) -> str:
    """Return the key of one part of the patch whose head has a key."""
    return f"{head_key.removesuffix(_HEAD)}/{part:05d}"


def is_head_key(key: str) -> bool:
    """Tell whether ``key`` is one of a patch's head that has parts beside it."""
    return key.endswith(_HEAD) and _PARTED.fullmatch(key) is not None


def named_key(key: str) -> str:
    """Return the key by which records name what a stored object belongs to: of a patch's part, the head's; else it."""
    found = _PARTED.fullmatch(key)
    return key if found is None else f"{found[1]}{_HEAD}"


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


def checkpoint_head_key(round_: int, write_id: str) -> str:
    """Return the key, below ``OUTER``, of the head of the checkpoint of a round that one write makes."""
    return f"{OBJECTS}checkpoint/{_number(round_)}-{write_id}/checkpoint-head"


def checkpoint_group_key(head_key: str, group: int) -> str:
    """Return the key of one group of the checkpoint whose head has a key."""
    return f"{head_key.rpartition('/')[0]}/{group:07d}"


def merged_key(round_: int, write_id: str) -> str:
    """Return the key, below ``OUTER``, of a round's contributions, added up, that one write makes."""
    return f"{OBJECTS}merged/{_number(round_)}-{write_id}.safetensors"


def outer_object(key: str) -> tuple[str, int] | None:
    """Return what an object below ``OUTER`` is (contribution, merged, checkpoint), and its round; None: none of ours.

    Of all objects of a checkpoint it is the same.
    """
    found = _OUTER_OBJECT.fullmatch(key)
    return None if found is None else (found[1], int(found[2]))


def file_key(digest: str) -> str:
    """Return the key of a small file, or of a set of them, by the hash of its bytes."""
    return f"{FILES}{digest}"


def lease_key(reader: str) -> str:
    """Return the key of a reader's lease."""
    return f"{LEASES}{reader}.json"


def contribution_key(round_: int, member: str, write_id: str) -> str:
    """Return the key, below ``OUTER``, of what one write of a member gives to a round."""
    return f"{OBJECTS}contribution/{_number(round_)}-{member}-{write_id}.safetensors"


def contribution_of(key: str) -> tuple[int, str] | None:
    """Return the round and the member that a contribution's key names, or None where ``key`` is no contribution's."""
    found = _CONTRIBUTION.fullmatch(key)
    return None if found is None else (int(found[1]), found[2])


def versions_of(key: str) -> tuple[int, ...]:
    """Return the versions that an object's key names: base and target of a patch, the one of a keyframe; else none."""
    found = _VERSIONS.match(key)
    return () if found is None else tuple(int(number) for number in found.groups() if number is not None)


def is_object_key(key: str) -> bool:
    """Tell whether ``key`` lies in the run's folder of objects; else a record may name files of shared bases alone."""
    return key.startswith(OBJECTS) and not {"", ".", ".."} & set(key.split("/"))


def below_root(run: str, key: str) -> str:
    """Return the key, in the store of all runs, of what a run knows by a key: its own, or a shared base's file."""
    return key if key.startswith(BASES) else f"{run}/{key}"


def base_folder(base: str) -> str:
    """Return the folder, with its slash, of a shared base; below the root."""
    return f"{BASES}{base}/"


def base_of_folder(folder: str) -> str | None:
    """Return the id of the shared base whose folder, with its slash, this is, or None where it is no base's."""
    found = _BASE_FOLDER.fullmatch(folder)
    return None if found is None else found[1]


def base_key(base: str, file_name: str) -> str:
    """Return the key of one file of a shared base, by its plain name; below the root."""
    return f"{BASES}{base}/{file_name}"


def closed_key(base: str) -> str:
    """Return the key of the mark of a shared base that takes no new reference; below the root."""
    return f"{BASES}{base}/{_CLOSED}"


def reference_key(base: str) -> str:
    """Return the key of a run's reference to a shared base; below the run."""
    return f"{REFERENCES}{base}"


def reference_of(key: str) -> str | None:
    """Return the id of the base that a reference's key names, or None where ``key`` is no reference's."""
    found = _REFERENCE.fullmatch(key)
    return None if found is None else found[1]


def _numbered(key: str, folder: str) -> int | None:
    found = re.fullmatch(r"([0-9]{12})\.json", key.removeprefix(folder))
    return int(found[1]) if found is not None and key.startswith(folder) else None


def _number(value: int) -> str:
    if not 0 <= value < 10**12:
        raise InvalidArgument(f"{value} is no version or record number (0 to 10^12 - 1)")
    return f"{value:012d}"
