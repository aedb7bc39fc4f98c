"""Reading a checkpoint to push it: a safetensors file, or a Hugging Face folder of them, tensor by tensor as needed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.format.safetensors import HeaderFault, TensorPlace, cell_shape, head_of, parse_head
from pulse_registry.push.checkpoint_index import IndexFault, parse_index_file, read_index_file
from pulse_registry.quoting import quoted
from pulse_registry.weights.file_tensor import FileTensor, SourceFile
from pulse_schemas import Dtype


def read_checkpoint(path: Path) -> dict[str, FileTensor]:
    """Return all tensors of a safetensors file, or of a folder with ``model.safetensors`` or an index and shards.

    No more than the heads of files is read here: cells are when they are used.

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


def read_safetensors(path: Path) -> dict[str, FileTensor]:
    """Return the tensors of one safetensors file by name; see ``read_checkpoint``."""
    file = SourceFile(path)
    if not file.nbytes:
        raise InvalidModel(f"{path} is no safetensors file: it is empty")
    try:
        header = parse_head(head_of(file.read, file.nbytes), file.nbytes)
    except HeaderFault as error:
        raise InvalidModel(f"{path} is no whole safetensors file: {error}") from error
    if "coding" in header.metadata:
        raise InvalidModel(f"{path} is a coded shard of a keyframe: pull its version into a folder, and push that")
    return {name: _tensor(file, header.nbytes, name, place) for name, place in header.tensors.items()}


def _read_shards(folder: Path, index: Path) -> dict[str, FileTensor]:
    try:
        _, weight_map = parse_index_file(read_index_file(index))
    except IndexFault as error:
        raise InvalidModel(f"{index} is no checkpoint's index: {error}") from error
    tensors: dict[str, FileTensor] = {}
    for shard in sorted(set(weight_map.values())):
        for name, tensor in read_safetensors(folder / shard).items():
            if weight_map.get(name) != shard:
                raise InvalidModel(f"{folder / shard} holds tensor {quoted(name)}, which the index does not say")
            tensors[name] = tensor
    missing = weight_map.keys() - tensors.keys()
    if missing:
        raise InvalidModel(f"{index} names {quoted(min(missing))}, which its shard does not hold")
    return tensors


def _tensor(file: SourceFile, start: int, name: str, place: TensorPlace) -> FileTensor:
    known = CELL_TYPES.get(place.dtype)
    if known is None:
        raise InvalidModel(f"{file.path}: tensor {quoted(name)} has dtype {place.dtype}, which can't be stored")
    try:
        # Besides: NumPy has a limit of dimensions, and one of sizes, be there a 0 among them.
        shape = np.broadcast_to(np.zeros((), known.dtype), cell_shape(place.dtype, place.shape)).shape
    except ValueError as error:
        raise InvalidModel(f"{file.path}: tensor {quoted(name)}: {error}") from error
    return FileTensor(file, name, cast("Dtype", known.name), shape, start + place.start)
