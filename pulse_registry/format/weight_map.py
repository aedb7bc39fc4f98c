"""Weight map of a keyframe's index: which shard holds which tensor, held against the layout and the shards' sizes.

With it the place of every cell is known before a byte of a shard is fetched: a shard's header follows from its tensors.
"""

from __future__ import annotations

import json
from typing import Any

from pulse_registry.errors import CorruptObject
from pulse_registry.format.keyframe import Shard, shard_of
from pulse_registry.quoting import quoted
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef


def mapped_shards(geometry: Geometry, ref: KeyframeRef, index: bytes) -> list[Shard]:
    """Return the plain shards of a keyframe that is not coded, by its index.

    Args:
        geometry: of its layout.
        ref: what the record says of it.
        index: bytes of the index, checked against the record.

    Raises:
        CorruptObject: tensors are missing, doubled, unknown or out of order, or they do not make a shard's size.
    """
    names = [shard.key.rpartition("/")[2] for shard in ref.shards]
    weight_map = _weight_map(ref, index)
    cuts = [0]
    for number, tensor in enumerate(geometry.layout.tensors):
        held = weight_map.pop(tensor.name, None)
        if number and held != names[len(cuts) - 1] and len(cuts) < len(names):
            cuts.append(number)
        if held != names[len(cuts) - 1]:
            raise CorruptObject(
                f"{ref.index.key}: its weight_map has tensor {quoted(tensor.name)} in {quoted(held)}, "
                "which is not where the layout's order puts it"
            )
    if weight_map or len(cuts) != len(names):
        raise CorruptObject(f"{ref.index.key}: its weight_map is not of the layout's tensors in the record's shards")
    shards = []
    for stored, name, first, last in zip(ref.shards, names, cuts, [*cuts[1:], len(geometry.sizes)], strict=True):
        shard = shard_of(geometry, name, first, last)
        if shard.nbytes != stored.size:
            raise CorruptObject(
                f"{stored.key}: {stored.size} bytes were committed, and its tensors make {shard.nbytes}"
            )
        shards.append(shard)
    return shards


def _weight_map(ref: KeyframeRef, index: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) != len(pairs):
            raise ValueError("a name is there twice")
        return document

    try:
        document = json.loads(index, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(f"{ref.index.key}: it is no keyframe's index: {error}") from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict):
        raise CorruptObject(f"{ref.index.key}: it does not say which shard holds which tensor: it has no weight_map")
    return weight_map
