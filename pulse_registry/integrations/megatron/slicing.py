"""Slices of a Megatron model: the tensors, or parts of tensors, that this rank holds, as views of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulse_registry.errors import InvalidModel
from pulse_registry.integrations.megatron.fused import Band, Fused, GateUp
from pulse_registry.integrations.megatron.names import Names, Target, renaming
from pulse_registry.integrations.megatron.shard import HasShardedStateDict, Shard, shards_of
from pulse_registry.weights.slice import Slice


def slices(
    model: HasShardedStateDict | Mapping[str, Any] | Sequence[HasShardedStateDict | Mapping[str, Any]],
    *,
    names: Names | None = None,
    vocab_size: int | None = None,
) -> dict[str, Slice | list[Slice]]:
    """Return what this rank holds of a Megatron model, to push from and to pull into: views, and never copies.

    Layers and experts are named by their global numbers, whatever the pipeline and expert parallel sizes. Every replica
    gives what it holds; extra state is left out.

    Args:
        model: a model, or the list of its chunks (virtual pipeline stages), wrapped or not; or what its
            ``sharded_state_dict()`` returned, if that is to be called with arguments.
        names: what the tensors are called, and how fused ones are taken apart: a table such as `hugging_face` returns,
            or a function. None: Megatron's own names.
        vocab_size: the true one: the rows of embedding and output layer that only fill up the last rank are left out.
            None: they stay.

    Raises:
        InvalidModel: there is no sharded state dict; a tensor's place is not told, contradicts itself, or is not what
            its rule says; or one place is held twice in different memory.
        InvalidArgument: the table of names is not valid.
    """
    find = renaming(names)
    found: dict[str, list[Slice]] = {}
    for shard in shards_of(model):
        for name, one in _slices_of(shard, find(shard.name), vocab_size):
            held = found.setdefault(name, [])
            if not math.prod(one.tensor.shape):
                if not held:
                    held.append(one)  # a tensor of which this rank holds nothing is not a missing one
            elif not _is_there(name, held, one):
                held[:] = [other for other in held if math.prod(other.tensor.shape)] + [one]
    return {name: held[0] if len(held) == 1 else held for name, held in found.items()}


def _slices_of(shard: Shard, target: Target, vocab_size: int | None) -> Iterator[tuple[str, Slice]]:
    if target is None:
        return
    cut = vocab_size if shard.padded else None
    if isinstance(target, str) and (cut is None or not shard.shape):
        yield from _banded(shard, None, target)
        return
    if not shard.shape:
        raise InvalidModel(f"tensor {shard.name!r} has no rows, and its rule takes rows apart")
    for band in _bands(shard, target, cut):
        yield from _banded(shard, band, band.name)


def _bands(shard: Shard, target: str | Fused, cut: int | None) -> Sequence[Band]:
    rows = shard.shape[0]
    if cut is not None and rows < cut:
        raise InvalidModel(f"tensor {shard.name!r} has {rows} rows, and a vocabulary of {cut} needs as many")
    if isinstance(target, str):
        return [Band(target, cut or 0, 0, cut or 0)]
    if isinstance(target, GateUp) and not shard.built and shard.sizes[0] != rows:
        raise InvalidModel(
            f"tensor {shard.name!r} is split by rows, and no ShardedTensorFactory tells its gate from its up rows: on "
            "each rank they are the halves of its part"
        )
    try:
        return target.bands(rows)
    except InvalidModel as error:
        raise InvalidModel(f"tensor {shard.name!r}: {error}") from None


def _banded(shard: Shard, band: Band | None, name: str) -> Iterator[tuple[str, Slice]]:
    """Yield what a shard holds of a band of rows, or of all; an empty slice if that is nothing."""
    shape, at, sizes = shard.shape, shard.at, shard.sizes
    first, stop = 0, sizes[0] if sizes else 1
    if band is not None:
        first = min(max(band.start - at[0], 0), sizes[0])
        stop = max(min(band.stop - at[0], sizes[0]), first)
        begin = min(max(band.at + at[0] + first - band.start, 0), band.rows)
        shape, at, sizes = (band.rows, *shape[1:]), (begin, *at[1:]), (stop - first, *sizes[1:])
    if shard.run is None:
        yield name, Slice(shard.tensor if band is None else shard.tensor[first:stop], of=shape, at=at)
        return
    row = math.prod(shard.sizes[1:])
    low, high = max(shard.run[0], first * row), min(shard.run[1], stop * row)
    if low >= high:
        yield name, Slice(shard.tensor[:0], of=shape, at=0)
    begin = low - shard.run[0]
    for offsets, box in _boxes(sizes, low - first * row, high - first * row):
        end = begin + math.prod(box)
        where = tuple(start + offset for start, offset in zip(at, offsets, strict=True))
        yield name, Slice(shard.tensor[begin:end].reshape(box), of=shape, at=where)
        begin = end


def _boxes(sizes: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield offsets and sizes of the boxes that a run of a box's cells, row-major, is made of, in order."""
    if start >= stop:
        return
    if len(sizes) <= 1:
        yield (start,) * len(sizes), (stop - start,) * len(sizes)
        return
    row = math.prod(sizes[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        ends = [(last, start - last * row, stop - last * row)]
    else:
        ends = [(first - 1, start - (first - 1) * row, row)] if start < first * row else []
    for number, begin, end in ends:
        yield from (((number, *at), (1, *size)) for at, size in _boxes(sizes[1:], begin, end))
    if first < last:
        yield (first, *(0,) * len(sizes[1:])), (last - first, *sizes[1:])
    if first <= last and last * row < stop:
        yield from (((last, *at), (1, *size)) for at, size in _boxes(sizes[1:], 0, stop - last * row))


def _is_there(name: str, held: Sequence[Slice], one: Slice) -> bool:
    """Tell whether a slice is there already, under another key.

    Raises:
        InvalidModel: it is, in other memory.
    """
    for other in held:
        if (other.at, tuple(other.tensor.shape)) == (one.at, tuple(one.tensor.shape)) and other.of == one.of:
            if _memory(other.tensor) == _memory(one.tensor):
                return True
            raise InvalidModel(
                f"this rank holds the part of tensor {name!r} at {one.at} twice, in different memory: leave one of "
                "them out by names, and copy it after a pull"
            )
    return False


def _memory(tensor: Any) -> tuple[Any, ...]:
    if hasattr(tensor, "data_ptr"):
        return tensor.data_ptr(), tuple(tensor.stride())
    return tensor.__array_interface__["data"][0], tensor.strides
