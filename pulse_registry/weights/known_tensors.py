"""Tensors that are known: of a model that was read, all that tells whether it is the same one by the next call.

A look compares each tensor's type, address, shape, dtype and strides; of a slice also which cells it says that it is,
and of a DTensor its mesh, its placements and the shape of the whole. Tensors that are the same by all of these, and
whose memory has never been let go of meanwhile, have the same views.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pulse_registry.weights.model import View, hindrance
from pulse_registry.weights.slice import Slice, is_sharded

_NEGATED: Final = frozenset({"F64", "F32", "F16"})
"""Dtypes whose tensors may be the negated view of others: the imaginary part of a conjugate, of complex numbers."""


class KnownTensors:
    """The tensors of a model as they were read, without their memory.

    Attributes:
        numbers: of the views, by name.
        parts: of the views, by number; None: there are none.
        identities: of the views, by number.
        notes: what was made of them, by name.
        owned: the addresses of the parameters and buffers of the module that they were last found to be of.
    """

    def __init__(self, names: list[str], plain: _Plain, views: Mapping[str, View]) -> None:
        """Take note of a model's tensors and of their views; see ``of``."""
        read = list(views.values())
        self.numbers = {name: number for number, name in enumerate(views)}
        self.parts = None if plain.cells is None else [view.part for view in read]
        self.identities = [view.identity for view in read]
        self.notes: dict[Hashable, Any] = {}
        self.owned: list[Sequence[int]] = []
        self._names, self._cells, self._gone = names, plain.cells, list[weakref.ref[Any]]()
        of_torch = [number for number, view in enumerate(read) if view.tensor is not None]
        of_numpy = [number for number, view in enumerate(read) if view.tensor is None]
        self._torch = _TorchLook(of_torch, plain.tensors, read) if of_torch else None
        self._numpy = _NumpyLook(of_numpy, plain.tensors) if of_numpy else None
        self._storages = self._watched(read[number].owner for number in of_torch)
        self._bases = self._watched(read[number].owner for number in of_numpy)

    @classmethod
    def of(cls, names: list[str], values: list[Any], views: Mapping[str, View]) -> Self | None:
        """Take note of tensors; None where they can't be told by a look at each."""
        try:
            plain = _Plain.of(values, _noted) if any(map(is_sharded, values)) else _Plain(values)
        except TypeError:  # of offsets that are no whole numbers
            return None
        if plain is None or len(plain.tensors) != len(views):
            return None
        if any(view.copied for view in views.values()):
            return None
        return cls(names, plain, views)

    @property
    def gone(self) -> bool:
        """Whether some of the memory was let go of: what lies there now is something else."""
        return bool(self._gone)

    def found_in(self, names: list[str], values: list[Any]) -> tuple[list[Any], list[Any]] | None:
        """Return the plain tensors of a model, and what keeps their memory, if it is the same one; else None."""
        if self._gone or names != self._names:
            return None
        try:
            plain = _Plain(values) if self._cells is None else _Plain.of(values)
            if plain is None or plain.cells != self._cells:
                return None
            if not all(look is None or look.same(plain.tensors) for look in (self._torch, self._numpy)):
                return None
        except (AttributeError, RuntimeError, TypeError, ValueError):  # of what is no tensor, or one without memory
            return None
        owners = list(map(operator.call, self._storages))  # an array keeps its memory itself
        return None if self._gone else (plain.tensors, owners)

    def plain(self, values: Sequence[Any]) -> Sequence[Any] | None:
        """Return the plain tensors that values consist of, sharded as the model is; None: it can't be told."""
        if self._cells is None:
            return values
        plain = _Plain.of(values)
        return None if plain is None else plain.tensors

    def _watched(self, owners: Iterable[Any]) -> list[weakref.ref[Any]]:
        # The note of an end is an append, not a function of ours: no other thread runs in between.
        return [weakref.ref(owner, self._gone.append) for owner in {id(owner): owner for owner in owners}.values()]


def _said(given: Slice) -> tuple[Any, ...]:
    """Return what a slice says of its cells."""
    at: Any = given.at
    if type(at) is not int and type(at) is not tuple and isinstance(at, Sequence):
        at = tuple(at)
    return tuple(given.of), at


def _noted(given: Slice) -> tuple[Any, ...]:
    """Return the same in numbers that stay: arrays and tensors, which may stand for some, could be changed in place."""
    of, at = _said(given)
    return tuple(map(operator.index, of)), tuple(map(operator.index, at)) if type(at) is tuple else operator.index(at)


@dataclass(frozen=True, slots=True)
class _Plain:
    """The plain tensors that a model's values consist of.

    Attributes:
        tensors: of all values, in order.
        cells: of each value that is sharded, which cells of its tensor it says that it is; None: no value is sharded.
    """

    tensors: list[Any]
    cells: list[Any] | None = None

    @classmethod
    def of(cls, values: Iterable[Any], said: Callable[[Slice], tuple[Any, ...]] = _said) -> Self | None:
        """Take values apart; None where it can't be told which cells one is.

        Args:
            values: of a model.
            said: returns what a slice says of its cells.
        """
        distributed = sys.modules.get("torch.distributed.tensor")
        tensor_kind = None if distributed is None else distributed.DTensor
        tensors, cells = list[Any](), list[Any]()
        for value in values:
            kind = type(value)
            if kind is tensor_kind:
                local = value._local_tensor
                if is_sharded(local):
                    return None
                tensors.append(local)
                cells.append((kind, value.device_mesh, value.placements, value.shape))
            elif kind is Slice:
                tensors.append(value.tensor)
                cells.append(said(value))
            elif isinstance(value, (list, tuple)):
                tensors += [one.tensor for one in value]
                cells.append([said(one) for one in value])
            elif is_sharded(value):
                return None
            else:
                tensors.append(value)
                cells.append(None)
        return cls(tensors, cells)


class _TorchLook:
    """What is compared of tensors: all that a view is made of, but for the device.

    As long as memory is there, no other device has its address; of tensors without cells there is none.
    """

    def __init__(self, numbers: list[int], tensors: Sequence[Any], views: Sequence[View]) -> None:
        self._numbers = numbers
        chosen, shared = [tensors[number] for number in numbers], dict[Any, Any]()
        read = [views[number] for number in numbers]
        self._types = list(map(type, chosen))
        self._addresses = [tensor.data_ptr() for tensor in chosen]
        self._shapes = [shared.setdefault(tensor.shape, tensor.shape) for tensor in chosen]
        self._dtypes = [tensor.dtype for tensor in chosen]
        self._contiguous = [tensor.is_contiguous() for tensor in chosen]
        self._strides = {n: chosen[n].stride() for n, contiguous in enumerate(self._contiguous) if not contiguous}
        self._empty = {n: view.tensor.device for n, view in enumerate(read) if not view.size}
        self._floats = [n for n, view in enumerate(read) if view.dtype in _NEGATED]

    def same(self, tensors: Sequence[Any]) -> bool:
        chosen = tensors if len(tensors) == len(self._numbers) else [tensors[number] for number in self._numbers]
        if list(map(type, chosen)) != self._types:
            return False
        known = zip(chosen, self._addresses, self._shapes, self._dtypes, self._contiguous, strict=True)
        for tensor, address, shape, dtype, contiguous in known:  # a call of ours for each would take as long again
            if (
                tensor.data_ptr() != address
                or tensor.shape != shape
                or tensor.dtype is not dtype
                or tensor.is_contiguous() is not contiguous
            ):
                return False
        torch = sys.modules["torch"]
        return (
            all(chosen[number].stride() == strides for number, strides in self._strides.items())
            and not any(chosen[number].is_neg() for number in self._floats)
            and all(hindrance(torch, chosen[number]) is None for number in self._empty)
            and all(chosen[number].device == device for number, device in self._empty.items())
        )


class _NumpyLook:
    """What is compared of arrays."""

    def __init__(self, numbers: list[int], tensors: Sequence[Any]) -> None:
        self._numbers = numbers
        chosen, shared = [tensors[number] for number in numbers], dict[Any, Any]()
        self._types = list(map(type, chosen))
        self._marks = [
            (
                array.ctypes.data,
                shared.setdefault(array.shape, array.shape),
                array.dtype,
                shared.setdefault(array.strides, array.strides),
                array.flags.writeable,
            )
            for array in chosen
        ]

    def same(self, tensors: Sequence[Any]) -> bool:
        chosen = tensors if len(tensors) == len(self._numbers) else [tensors[number] for number in self._numbers]
        if list(map(type, chosen)) != self._types:
            return False
        for array, mark in zip(chosen, self._marks, strict=True):  # likewise
            if (array.ctypes.data, array.shape, array.dtype, array.strides, array.flags.writeable) != mark:
                return False
        return True
