"""Patches in parts: few groups to a part, and the plain way to cut a patch of one object into its parts."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

from pulse_registry.format import patch_parts
from pulse_registry.format.patch import Patch
from pulse_registry.store import Store
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import ObjectRef, PatchRef
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import RUN, Model, copy_of, quick

_GROUP_AND_SIZE = struct.Struct("<I4xI68x")


@contextmanager
def small_parts(groups: int = 2) -> Iterator[None]:
    """Let a part be of so few groups that small layouts have several."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patch_parts, "PART_GROUPS", groups)
        yield


def cut(ref: PatchRef, data: bytes, part_groups: int, write_id: str = "0" * 32) -> tuple[PatchRef, dict[str, bytes]]:
    """Return the same patch in parts, as the specification says it: its reference, and its objects by key."""
    head, at = data[: ref.head_size], ref.head_size
    folder = f"objects/patch/{ref.base:012d}-{ref.target:012d}-{write_id}"
    objects = {f"{folder}/patch-head": head}
    header = 8 + int.from_bytes(head[:8], "little")
    for group, size in _GROUP_AND_SIZE.iter_unpack(head[header:]):
        key = f"{folder}/{group // part_groups:05d}"
        objects[key] = objects.get(key, b"") + data[at : at + size]
        at += size
    named = ObjectRef(key=f"{folder}/patch-head", size=len(head), blake3=blake3(head).hexdigest())
    return PatchRef.model_validate({**dict(ref), "object": named, "parts": at - len(head)}), objects


def end_to_end(objects: Mapping[str, bytes]) -> bytes:
    """Return a patch in one object, of the head and the parts, which come by key."""
    [head] = [key for key in objects if key.endswith("/patch-head")]
    return objects[head] + b"".join(objects[key] for key in sorted(objects.keys() - {head}))


def wide_model(seed: int = 0) -> Model:
    """Return a model of 156 small groups of two widths: a layout whose patches have up to three parts."""
    rng = np.random.default_rng(seed)
    return {
        "a.weight": rng.integers(0, 2**16, (40, 100), dtype=np.uint16).view(ml_dtypes.bfloat16),
        "b.bias": rng.integers(0, 2**32, 488, dtype=np.uint32).view(np.float32),
    }


def change_groups(model: Model, groups: Iterable[int], seed: int) -> None:
    """Change some cells in each of some small groups, in place; the first 31 are of the wider tensor."""
    rng = np.random.default_rng(seed)
    narrow, wide = (array.reshape(-1).view(f"u{array.itemsize}") for array in model.values())
    for group in groups:
        cells = wide[16 * group : 16 * group + 16] if group < 31 else narrow[32 * (group - 31) : 32 * (group - 30)]
        at = rng.integers(0, len(cells), 3)
        cells[at] += rng.integers(1, 100, 3, dtype=np.uint8).astype(cells.dtype)


CHANGES: Sequence[Sequence[int]] = ([0, 1, 70, 130], [64, 65, 127], [155], [], range(0, 156, 3), [63, 64, 128])
"""The groups that each version after the first one of a wide run changes: all parts, some, one, and none."""


def wide_run(store: Store, versions: int = len(CHANGES) + 1, **options: Any) -> list[Model]:
    """Push versions of a wide model, the first a keyframe; return the model at each."""
    model, states = wide_model(), []
    with small_groups(), quick(store, **({"keyframe_share": 1e9} | options)) as registry:
        for version in range(versions):
            if version:
                change_groups(model, CHANGES[version - 1], version)
            registry.push(version, model)
            states.append(copy_of(model))
    return states


def parts_of(store: DictStore, base: int, target: int) -> dict[str, bytes]:
    """Return the objects of the stored patches ``base -> target`` in parts, by key below the run."""
    begin = f"{RUN}/objects/patch/{base:012d}-{target:012d}-"
    return {key[len(RUN) + 1 :]: data for key, data in store.objects.items() if key.startswith(begin)}


def patch_over(geometry: Geometry, ref: PatchRef, data: bytes) -> Patch:
    """Return a patch to read, whose head and groups, end to end, are in memory; in parts if its reference says so."""
    if ref.parts is None:
        return Patch.parse(geometry, ref, data)
    _, objects = cut(ref, data, patch_parts.PART_GROUPS)
    by_name = {key.rpartition("/")[2]: part for key, part in objects.items()}
    return Patch.parse(
        geometry, ref, by_name["patch-head"], lambda key, place: by_name[key.rpartition("/")[2]][slice(*place)]
    )
