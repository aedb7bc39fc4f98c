"""The content of a shared base: the hash by which it is found, and its files as a version's keyframe. Pure."""

from __future__ import annotations

from blake3 import blake3

from pulse_registry.errors import InvalidArgument
from pulse_registry.format.keys import base_key
from pulse_schemas import KeyframeRef, ObjectRef, canonical_json

_GENERATIONS = 10_000


def content_hash(layout: str, digest: str, keyframe: KeyframeRef) -> str:
    """Return the hash of what a base holds: of the same files, of a layout and a state digest, it is the same.

    Args:
        layout: id of the layout.
        digest: the state digest of the version.
        keyframe: of the version, wherever it lies.
    """
    files = [[file_name(item), item.size, item.blake3] for item in (keyframe.index, *keyframe.shards)]
    return blake3(canonical_json({"digest": digest, "files": files, "layout": layout})).hexdigest()


def base_id(content: str, generation: int) -> str:
    """Return the id of a generation of a base, from 0 on.

    Raises:
        InvalidArgument: there are no more.
    """
    if not 0 <= generation < _GENERATIONS:
        raise InvalidArgument(f"a base is closed {_GENERATIONS:,} times at most, and {content} was: push it whole")
    return f"{content}-{generation:04d}"


def placed(keyframe: KeyframeRef, base: str, version: int) -> KeyframeRef:
    """Return a keyframe of ``version`` whose files are those of a base that holds the same as ``keyframe``."""

    def moved(item: ObjectRef) -> ObjectRef:
        return item.model_copy(update={"key": base_key(base, file_name(item))})

    return KeyframeRef(version=version, index=moved(keyframe.index), shards=tuple(map(moved, keyframe.shards)))


def file_name(item: ObjectRef) -> str:
    """Return the plain name of a keyframe's file."""
    return item.key.rpartition("/")[2]
