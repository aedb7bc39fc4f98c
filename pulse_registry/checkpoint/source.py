"""Reading a checkpoint to push it: a safetensors file, or a Hugging Face folder of them, as memory-mapped arrays."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.keyframe import INDEX_NAME
from pulse_registry.model import numpy_dtype
from pulse_registry.safetensors_header import cell_shape, split_header

_HEADER_LIMIT = 100 << 20
"""The safetensors library's own bound."""


def read_checkpoint(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return all tensors of a safetensors file, or of a folder with ``model.safetensors`` or an index and shards.

    The arrays are read-only views of memory maps: nothing is read before it is used, and nothing copied.

    Raises:
        InvalidArgument: there is no such file, or it can't be read.
        InvalidModel: it is no whole checkpoint, or a tensor has a dtype that can't be stored.
    """
    try:
        if not path.is_dir():
            return read_safetensors(path)
        single, index = path / "model.safetensors", path / INDEX_NAME
        if single.exists() or not index.exists():
            return read_safetensors(single)
        return _read_shards(path, index)
    except OSError as error:
        raise InvalidArgument(f"{error.filename or path} can't be read: {error.strerror or error}") from error


def read_safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of one safetensors file by name; see ``read_checkpoint``."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < 8:
            raise InvalidModel(f"{path} is no safetensors file: shorter than its length field")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(mapped[:8], "little")
    try:
        document, start = split_header(mapped[: 8 + min(length, size, _HEADER_LIMIT)])
    except ValueError as error:
        raise InvalidModel(f"{path} is no whole safetensors file: {error}") from error
    metadata = document.pop("__metadata__", None)
    if isinstance(metadata, dict) and "coding" in metadata:
        raise InvalidModel(f"{path} is a coded shard of a keyframe: pull its version into a folder, and push that")
    return {name: _tensor(path, mapped, start, name, entry) for name, entry in document.items()}


def _read_shards(folder: Path, index: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        weight_map = dict(json.loads(index.read_bytes())["weight_map"])
        names = sorted(set(weight_map.values()))
        if any(Path(name).name != name for name in names):
            raise ValueError("it names files outside of its folder")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidModel(f"{index} is no checkpoint's index: {error!r}") from error
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for shard in names:
        for name, array in read_safetensors(folder / shard).items():
            if weight_map.get(name) != shard:
                raise InvalidModel(f"{folder / shard} holds tensor {name!r}, which the index does not say")
            tensors[name] = array
    missing = weight_map.keys() - tensors.keys()
    if missing:
        raise InvalidModel(f"{index} names {sorted(missing)[0]!r}, which its shard does not hold")
    return tensors


def _tensor(path: Path, mapped: mmap.mmap, start: int, name: str, entry: Any) -> np.ndarray[Any, Any]:
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(map(int, entry["shape"])), entry["data_offsets"]
        known = CELL_TYPES.get(dtype)
        if known is None:
            raise InvalidModel(f"{path}: tensor {name!r} has dtype {dtype}, which can't be stored")
        shape = cell_shape(dtype, shape)
        count = math.prod(shape)
        whole = min([0, *shape]) == 0 and 0 <= first <= last <= len(mapped) - start
        if not whole or last - first != count * known.width:
            raise ValueError(f"bytes {first} to {last} of {len(mapped) - start} are not {list(shape)} of {dtype}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidModel(f"{path} is not whole: tensor {name!r}: {error}") from error
    cells = np.frombuffer(mapped, known.dtype, count, start + first)
    if not cells.flags.aligned:  # no writer that we know leaves tensors so; the kernels can't read them in place
        cells = cells.copy()
    return cells.view(numpy_dtype(known.name)).reshape(shape)  # type: ignore[arg-type]
