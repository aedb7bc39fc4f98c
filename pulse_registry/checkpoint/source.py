"""Reading a checkpoint to push it: a safetensors file, or a Hugging Face folder of them, as memory-mapped arrays."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from pulse_kernels import CELL_TYPES
from pulse_registry.checkpoint.index import IndexFault, parse_index_file, read_index_file
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.keyframe import INDEX_NAME
from pulse_registry.model import numpy_dtype
from pulse_registry.quoting import quoted
from pulse_registry.regular_file import map_regular
from pulse_registry.safetensors_header import HeaderFault, TensorPlace, cell_shape, head_of, parse_head


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
    mapped = map_regular(path)
    if mapped is None:
        raise InvalidModel(f"{path} is no safetensors file: it is empty")
    try:
        header = parse_head(head_of(lambda start, stop: mapped[start:stop], len(mapped)), len(mapped))
    except HeaderFault as error:
        raise InvalidModel(f"{path} is no whole safetensors file: {error}") from error
    if "coding" in header.metadata:
        raise InvalidModel(f"{path} is a coded shard of a keyframe: pull its version into a folder, and push that")
    return {name: _tensor(path, mapped, header.nbytes, name, place) for name, place in header.tensors.items()}


def _read_shards(folder: Path, index: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        _, weight_map = parse_index_file(read_index_file(index))
    except IndexFault as error:
        raise InvalidModel(f"{index} is no checkpoint's index: {error}") from error
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for shard in sorted(set(weight_map.values())):
        for name, array in read_safetensors(folder / shard).items():
            if weight_map.get(name) != shard:
                raise InvalidModel(f"{folder / shard} holds tensor {quoted(name)}, which the index does not say")
            tensors[name] = array
    missing = weight_map.keys() - tensors.keys()
    if missing:
        raise InvalidModel(f"{index} names {quoted(min(missing))}, which its shard does not hold")
    return tensors


def _tensor(path: Path, mapped: mmap.mmap, start: int, name: str, place: TensorPlace) -> np.ndarray[Any, Any]:
    known = CELL_TYPES.get(place.dtype)
    if known is None:
        raise InvalidModel(f"{path}: tensor {quoted(name)} has dtype {place.dtype}, which can't be stored")
    count = (place.stop - place.start) // known.width
    cells = np.frombuffer(mapped, known.dtype, count, start + place.start)
    if not cells.flags.aligned:  # no writer that we know leaves tensors so; the kernels can't read them in place
        cells = cells.copy()
    try:
        # Besides: NumPy has a limit of dimensions, and one of sizes, be there a 0 among them.
        return cells.view(numpy_dtype(known.name)).reshape(cell_shape(place.dtype, place.shape))  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidModel(f"{path}: tensor {quoted(name)}: {error}") from error
