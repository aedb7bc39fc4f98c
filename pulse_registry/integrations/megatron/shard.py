"""Shards of a Megatron model: what ``sharded_state_dict()`` says of each tensor that this rank holds a part of.

Read by the documented fields of Megatron's ShardedTensor, ShardedTensorFactory and ShardedObject. Layers and experts
that Megatron keeps as leading axes of one tensor become tensors of their own, with their global numbers in the name.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pulse_registry.errors import InvalidModel
from pulse_registry.weights.box import Box

_NUMBERED = re.compile(r"(?<![A-Za-z0-9_])(?:layers|experts)\.(?!\d|experts\.)")
"""Where in a key a number is left out, since it is an axis of the tensor."""


class HasShardedStateDict(Protocol):
    """A Megatron model, or one of its chunks."""

    def sharded_state_dict(self) -> Mapping[str, Any]:
        """Return what this rank holds of each tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one tensor that this rank holds.

    Attributes:
        name: Megatron's key, with global numbers of layers and experts.
        tensor: the cells, as the parameter's own memory.
        shape: of the whole tensor.
        at: where the part begins, along each dimension.
        sizes: of the part.
        run: which of the part's cells, row-major, ``tensor`` has, end to end; None: all, in the part's shape.
        padded: rows may be there only to fill up the vocabulary.
        built: it came from a factory, which told halves apart that lie in one parameter.
    """

    name: str
    tensor: Any
    shape: tuple[int, ...]
    at: tuple[int, ...]
    sizes: tuple[int, ...]
    run: tuple[int, int] | None
    padded: bool
    built: bool


def shards_of(model: HasShardedStateDict | Mapping[str, Any] | Sequence[Any]) -> Iterator[Shard]:
    """Yield the shards of a model, of one of its sharded state dicts, or of a list of either: of several chunks.

    Raises:
        InvalidModel: it is none of these, or a tensor's fields contradict each other.
    """
    for state in _states(model):
        yield from _walk(state, "", built=False)


def _states(model: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(model, Mapping):
        yield model
        return
    if isinstance(model, Sequence):
        for chunk in model:
            yield from _states(chunk)
        return
    inner = model
    while not hasattr(inner, "sharded_state_dict"):  # DDP and the like keep the model in an attribute of this name
        if not hasattr(inner, "module"):
            raise InvalidModel(
                f"a {type(model).__name__} has no sharded_state_dict(): pass Megatron's own model chunks"
            )
        inner = inner.module
    yield inner.sharded_state_dict()


def _walk(value: Any, name: str, *, built: bool) -> Iterator[Shard]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, str(key), built=built)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item, name, built=built)
    elif hasattr(value, "local_shape") and hasattr(value, "global_offset"):
        yield _shard(value, built=built)
    elif callable(getattr(value, "build", None)):
        for shard in _walk(value.build(), value.key, built=True):
            _check_view(value, shard)
            yield shard
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        raise InvalidModel(
            f"tensor {name!r} of the sharded state dict is plain, and its place is not told: wrap it in a ShardedTensor"
        )  # anything else is no weight: a ShardedObject (extra state), a number


def _shard(value: Any, *, built: bool) -> Shard:
    key = value.key
    if key.startswith("optimizer."):
        raise InvalidModel(f"{key!r} is state of an optimizer: pass the sharded state dict of the model alone")
    if value.data is None:
        raise InvalidModel(f"tensor {key!r} has no data: it was made for its metadata alone")
    shape, at = tuple(value.global_shape), tuple(value.global_offset)
    prepended = value.prepend_axis_num
    sizes = (1,) * prepended + tuple(value.local_shape)
    try:
        Box.of(shape, at, sizes)
    except ValueError as error:
        raise InvalidModel(f"tensor {key!r} of the sharded state dict contradicts itself: {error}") from None
    run = _run(value)
    places = [found.end() for found in _NUMBERED.finditer(key)]
    tensor = value.data.detach() if hasattr(value.data, "detach") else value.data
    if len(places) == prepended:
        name = _numbered(key, places, at[:prepended])
        shape, at, sizes = shape[prepended:], at[prepended:], sizes[prepended:]
    else:  # what the leading axes count can't be told from the key: they stay
        name = key
        if run is None:
            tensor = tensor[(None,) * prepended]
    return Shard(name, tensor, shape, at, sizes, run, bool(value.allow_shape_mismatch), built)


def _run(value: Any) -> tuple[int, int] | None:
    """Return the flattened range of a shard whose data is one, after a look at the data's shape."""
    found, local, there = value.flattened_range, tuple(value.local_shape), tuple(value.data.shape)
    if found is None:
        if there != local:
            raise InvalidModel(f"tensor {value.key!r} has data of {list(there)} cells for a shard of {list(local)}")
        return None
    start, stop = found.start or 0, math.prod(local) if found.stop is None else found.stop
    if found.step not in (None, 1) or not 0 <= start <= stop <= math.prod(local) or there != (stop - start,):
        raise InvalidModel(
            f"tensor {value.key!r} has data of {list(there)} cells for {found} of a flattened shard of {list(local)}"
        )
    return start, stop


def _numbered(key: str, places: Sequence[int], numbers: Sequence[int]) -> str:
    ends = [0, *places, len(key)]
    parts = [key[start:stop] for start, stop in itertools.pairwise(ends)]
    return "".join(f"{part}{number}." for part, number in zip(parts, numbers, strict=False)) + parts[-1]


def _check_view(factory: Any, shard: Shard) -> None:
    """Refuse a copy: it is not what is trained, and to pull into it would change nothing."""
    if factory.data is not None and math.prod(shard.tensor.shape) and not _shares(factory.data, shard.tensor):
        raise InvalidModel(
            f"tensor {shard.name!r} is a copy of its parameter, made by the factory in the sharded state dict: only "
            "views can be pushed from and pulled into. Use Megatron's TEGroupedMLP or SequentialMLP for experts"
        )


def _shares(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.may_share_memory(one, other)
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
