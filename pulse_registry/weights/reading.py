"""Reading of one model again and again: as long as its tensors stay the same, so does what was made of them.

A push or a pull of one changed cell then costs one pass over the tensors: their names, addresses, shapes, strides
and dtypes are compared with those of the time before. Tensors that are the same by all of these, and whose
memory has never been let go of meanwhile, have the same layout, lie in the same places and can be written as before.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import numpy as np

from pulse_kernels import Spans, SpanTable
from pulse_registry.errors import InvalidModel
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import Model, View, check_own, hindrance, is_module, read_tensors, tensors_of, view_of
from pulse_registry.weights.slice import is_sharded

T = TypeVar("T")
_NEGATED: Final = frozenset({"F64", "F32", "F16"})
"""Dtypes whose tensors may be the negated view of others: the imaginary part of a conjugate, of complex numbers."""


class Reading(Mapping[str, View]):
    """The views of a model's tensors, by name, for one call; each is made when it is first asked for.

    It keeps the tensors' memory, wherever the tensors are moved meanwhile; a view that is made after that is refused
    (InvalidModel). What was made of them, and keeps none of their memory, goes on to the next reading; see ``once``.
    """

    def __init__(self, known: _Known, values: Sequence[Any], owners: Sequence[Any], views: dict[str, View]) -> None:
        self._known, self._values, self._owners, self._views = known, values, owners, views

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return what is made of these tensors, under a name of it; made once for as long as they stay the same.

        It must keep none of their memory. Of two threads that make it at once, both get what the first one made.
        """
        notes = self._known.notes
        if what not in notes:
            notes.setdefault(what, make())
        found: T = notes[what]
        return found

    def owns(self, memory: Sequence[int]) -> bool:
        """Whether these tensors were found to be of a module whose parameters and buffers are at these addresses."""
        return self._known.owned == [memory]

    def owned_by(self, memory: Sequence[int]) -> None:
        """Take note of that."""
        self._known.owned[:] = [memory]

    def is_of_the_same(self, other: Mapping[str, View]) -> bool:
        """Whether another reading is of the same tensors, in the same memory."""
        return isinstance(other, Reading) and other._known is self._known

    def __getitem__(self, name: str) -> View:
        view = self._views.get(name)
        if view is None:
            number = self._known.numbers[name]
            view = view_of(name, self._values[number])
            if view.identity != self._known.identities[number] or view.copied:
                raise InvalidModel(f"tensor {name!r} was given other memory while it was in use: begin anew")
            self._views[name] = view
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.numbers)

    def __len__(self) -> int:
        return len(self._known.numbers)


class ModelReader:
    """Reads models, and knows the tensors of the last one; of slices, and of tensors in files, it knows none.

    It keeps no tensor alive. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: _Known | None = None

    def read(self, model: Model) -> Mapping[str, View]:
        """Return the views of all tensors by name; see ``read_model``."""
        tensors, known = tensors_of(model), self._known
        names, values = list(tensors), list(tensors.values())
        if known is not None:
            owners = known.owners(names, values)
            if owners is not None:
                return Reading(known, values, owners, {})
        views = read_tensors(tensors)
        self._known = known = _Known.of(names, values, views)
        return views if known is None else Reading(known, values, (), views)

    def read_destination(self, model: Model) -> Mapping[str, View]:
        """Return the views of a model that is to be written into: ``read``, and ``check_own``."""
        views = self.read(model)
        if not isinstance(views, Reading):
            check_own(model, views)
        elif is_module(model):
            memory = _addresses_of(model)
            if memory is None or not views.owns(memory):
                check_own(model, views)
                views.owned_by(memory or ())
        elif hasattr(model, "state_dict") and not views.is_of_the_same(self.read(model)):
            check_own(model, views)
        return views


def once(views: Mapping[str, View], what: Hashable, make: Callable[[], T]) -> T:
    """Return what is made of a model's tensors: once, where they are a `Reading`; see there."""
    return views.once(what, make) if isinstance(views, Reading) else make()


def spans_of(views: Mapping[str, View], geometry: Geometry, group: Group) -> Spans:
    """Return the live cells of a group: where they are if they lie end to end there, else copied.

    Cells of F32 are given as such, where the layout has them as BF16.
    """
    tensors = geometry.layout.tensors

    def table() -> SpanTable | None:
        live = [views[tensors[span.tensor].name].cells for span in group.spans]
        if not all(cells.flags.c_contiguous for cells in live):
            return None
        runs = [cells.reshape(-1)[span.start : span.stop] for cells, span in zip(live, group.spans, strict=True)]
        return SpanTable.of(runs, group.cell_type.dtype)

    found = None
    if isinstance(views, Reading) and views.once("on host", lambda: all(view.on_host for view in views.values())):
        found = views.once(("spans", geometry.id, group.number), table)
    if found is not None:
        return found
    return [views[tensors[span.tensor].name].span(span.start, span.stop) for span in group.spans]


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The tensors of a model as they were read, without their memory.

    Attributes:
        names: of the tensors, in the model's order.
        numbers: of the tensors, by name.
        marks: of each, all that a view is made of, but for the device: as long as memory is there, no other device has
            its address.
        identities: of the views.
        empty: the devices of the tensors without cells, by number: there is no memory to tell of them.
        floats: numbers of the torch tensors that may come to be a negated view.
        memory: of all tensors: weak references to its owners.
        notes: what was made of them, by name.
        owned: the addresses of the parameters and buffers of the module that they were last found to be of.
    """

    names: list[str]
    numbers: dict[str, int]
    marks: list[tuple[Any, ...]]
    identities: list[tuple[Any, ...]]
    empty: dict[int, Any]
    floats: list[int]
    memory: list[weakref.ref[Any]]
    notes: dict[Hashable, Any] = field(default_factory=dict)
    owned: list[Sequence[int]] = field(default_factory=list)

    @classmethod
    def of(cls, names: Sequence[str], values: Sequence[Any], views: Mapping[str, View]) -> Self | None:
        """Take note of tensors; None where they can't be told by a look at each."""
        read = list(views.values())
        if any(map(is_sharded, values)) or any(view.copied for view in read):
            return None
        if all(view.tensor is not None for view in read):
            marks = _torch_marks(values)
        elif all(isinstance(value, np.ndarray) for value in values):
            marks = _numpy_marks(values)
        else:
            return None
        owners = {id(view.owner): view.owner for view in read}
        return cls(
            list(names),
            {name: number for number, name in enumerate(names)},
            marks,
            [view.identity for view in read],
            {n: getattr(view.tensor, "device", None) for n, view in enumerate(read) if not view.size},
            [number for number, view in enumerate(read) if view.tensor is not None and view.dtype in _NEGATED],
            [weakref.ref(owner) for owner in owners.values()],
        )

    def owners(self, names: Sequence[str], values: Sequence[Any]) -> list[Any] | None:
        """Return what owns the memory of tensors, if these are the same ones; else None."""
        if names != self.names:
            return None
        try:
            if not self._same(values):
                return None
        except (AttributeError, RuntimeError, ValueError):  # of what is no tensor, or one without memory
            return None
        owners = list(map(operator.call, self.memory))
        return None if type(None) in map(type, owners) else owners

    def _same(self, values: Sequence[Any]) -> bool:
        if isinstance(values[0], np.ndarray):
            return _same_numpy(values, self.marks)
        torch = sys.modules["torch"]
        return (
            _same_torch(values, self.marks)
            and not any(values[number].is_neg() for number in self.floats)
            and all(hindrance(torch, values[number]) is None for number in self.empty)
            and all(values[number].device == device for number, device in self.empty.items())
        )


def _addresses_of(module: Any) -> list[int] | None:
    """Return where a module's parameters and buffers are; None where one of them has no memory."""
    try:
        return [tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())]
    except (RuntimeError, ValueError):
        return None


# What a mark is made of stands here twice: a call for each tensor would take as long as the look itself.
def _torch_marks(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    shared: dict[Any, Any] = {}
    return [
        (
            type(v),
            v.data_ptr(),
            shared.setdefault(v.shape, v.shape),
            v.dtype,
            v.is_contiguous() or v.stride(),
        )
        for v in values
    ]


def _same_torch(values: Sequence[Any], marks: Sequence[tuple[Any, ...]]) -> bool:
    for v, (kind, address, shape, dtype, strides) in zip(values, marks, strict=True):
        if (
            v.data_ptr() != address
            or type(v) is not kind
            or v.shape != shape
            or v.dtype is not dtype
            or (v.is_contiguous() or v.stride()) != strides
        ):
            return False
    return True


def _numpy_marks(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    shared: dict[Any, Any] = {}
    return [
        (
            type(v),
            v.ctypes.data,
            shared.setdefault(v.shape, v.shape),
            v.dtype,
            shared.setdefault(v.strides, v.strides),
            v.flags.writeable,
        )
        for v in values
    ]


def _same_numpy(values: Sequence[Any], marks: Sequence[tuple[Any, ...]]) -> bool:
    for v, mark in zip(values, marks, strict=True):
        if (type(v), v.ctypes.data, v.shape, v.dtype, v.strides, v.flags.writeable) != mark:
            return False
    return True
