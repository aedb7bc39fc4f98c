"""Slices: the parts of tensors that one rank of a sharded model holds.

A caller names a part with ``Slice``; of a DTensor, and of whatever else has torch's protocol of sharded checkpoints
(``__create_chunk_list__``), the parts are read from there, and never from placements.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from pulse_registry.errors import InvalidModel
from pulse_registry.weights.box import Box

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Part of a tensor, as a value of a model: what one rank holds of it, or one of several such parts in a list.

    Attributes:
        tensor: the cells, a torch tensor or a NumPy array of any strides: a view of a fused parameter will do. To pull
            into, it is of the version's dtype, or F32 with ``cast=True``; it is written in place, and nothing else is.
        of: shape of the whole tensor, as the version has it.
        at: where the part begins: the offset along each dimension of ``of``, of a box of ``tensor``'s shape, which has
            as many; or one number, the flat index in the whole tensor from which on ``tensor``'s cells, row-major, are
            a run of it, whatever its shape.

    Examples:
        >>> import numpy as np
        >>> from pulse_registry import Slice
        >>> fused = np.zeros((6, 8), np.float32)
        >>> model = {"q": Slice(fused[:4], of=(8, 8), at=(4, 0)), "k": Slice(fused[4:], of=(4, 8), at=(2, 0))}
    """

    tensor: torch.Tensor | npt.NDArray[Any]
    of: Sequence[int]
    at: Sequence[int] | int


@dataclass(frozen=True, slots=True)
class Part:
    """Which cells of which tensor a slice holds.

    Attributes:
        name: of the tensor.
        shape: of the whole of it.
        box: the cells.
        label: what it is called: the tensor's name, with the part in brackets.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    label: str


_LISTS = (list, tuple)
_GIVEN = (Slice, list, tuple)


def is_sharded(value: Any) -> bool:
    """Whether a model's value is read by its parts."""
    return isinstance(value, _GIVEN) or hasattr(type(value), "__create_chunk_list__")


def parts_of(name: str, value: Any) -> Iterator[tuple[Part, Any]]:
    """Yield the parts of a tensor that a value holds, with the plain tensor of each; those without cells too.

    Raises:
        InvalidModel: they are not parts of one tensor, or can't be told.
    """
    if isinstance(value, Slice):
        yield _part_of(name, value)
    elif isinstance(value, _LISTS):
        if not value or not all(isinstance(one, Slice) for one in value):
            raise InvalidModel(
                f"tensor {name!r} is a list, and not one of Slices: give its parts as Slice(...), or none"
            )
        yield from (_part_of(name, one) for one in value)
    else:
        yield from _chunks(name, value)


def _part_of(name: str, given: Slice) -> tuple[Part, Any]:
    shape, local = tuple(given.of), tuple(given.tensor.shape)
    try:
        if not isinstance(given.at, _LISTS) and not isinstance(given.at, Sequence):  # which takes long to tell
            start, size = operator.index(given.at), math.prod(local)
            box = Box.run(math.prod(shape), start, size)
            return Part(name, shape, box, f"{name}[{start}:{start + size}]"), given.tensor
        return _boxed(name, shape, tuple(given.at), local), given.tensor
    except (TypeError, ValueError) as error:
        raise InvalidModel(f"tensor {name!r}: the slice is no part of it: {error}") from None


def _chunks(name: str, value: Any) -> Iterator[tuple[Part, Any]]:
    """Yield what torch's own checkpoints would write of a tensor."""
    torch: Any = sys.modules["torch"]
    try:
        with torch.no_grad():  # the local tensor itself is wanted, and no operation on it
            chunks = value.__create_chunk_list__()
            locals_ = [value.to_local()] if len(chunks) == 1 else [_chunk_tensor(value, chunk) for chunk in chunks]
    except (RuntimeError, ValueError) as error:
        raise InvalidModel(
            f"tensor {name!r} is a {type(value).__name__} whose shards can't be told: {error} If sums are spread over "
            "ranks (Partial), redistribute it to Shard or Replicate first"
        ) from error
    shape = tuple(value.shape)
    for chunk, local in zip(chunks, locals_, strict=True):
        sizes = tuple(chunk.sizes)
        if math.prod(sizes) == 0 or not local.numel():
            yield Part(name, shape, Box((math.prod(shape),), (0,), (0,)), f"{name}[]"), local
        elif tuple(local.shape) != sizes:
            raise InvalidModel(
                f"tensor {name!r} has a shard of {list(local.shape)} cells that is said to be of {list(sizes)}"
            )
        else:
            yield _boxed(name, shape, tuple(chunk.offsets), sizes), local


def _chunk_tensor(value: Any, chunk: Any) -> Any:
    from torch.distributed.checkpoint.metadata import MetadataIndex

    return value.__get_tensor_shard__(MetadataIndex("", chunk.offsets))


def _boxed(name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Part:
    box = Box.of(shape, offsets, sizes)
    if box.whole:
        return Part(name, shape, box, name)
    where = ", ".join([f"{at}:{at + size}" for at, size in zip(offsets, sizes, strict=True)])
    return Part(name, shape, box, f"{name}[{where}]")
