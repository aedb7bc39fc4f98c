"""Reading of models again and again: as long as a model's tensors stay the same, so does what was made of them.

A push or a pull of one changed cell then costs one pass over the tensors, which compares them with what is known of
them (`weights/known_tensors.py`): the same ones have the same layout, lie in the same places and can be written as
before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from pulse_kernels import Spans, SpanTable
from pulse_registry.errors import InvalidModel
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.known_tensors import KnownTensors
from pulse_registry.weights.model import Model, View, check_own, is_module, read_tensors, tensors_of, view_of

T = TypeVar("T")
_KEPT: Final = 4
"""How many models a reader knows: one that is pushed, or pulled into, and some that take turns with it."""


class Remembered(Mapping[str, View]):
    """Views of tensors of which is remembered what was made of them, for as long as they are the same."""

    @abstractmethod
    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return what is made of these tensors, under a name of it; made once for as long as they stay the same.

        It must keep none of their memory. Of two threads that make it at once, both get what the first one made.
        """


class Reading(Remembered):
    """The views of a model's tensors, by name, for one call; each is made when it is first asked for.

    It keeps the tensors' memory, wherever the tensors are moved meanwhile; a view that is made after that is refused
    (InvalidModel). What was made of them, and keeps none of their memory, goes on to the next reading; see ``once``.
    """

    def __init__(
        self, known: KnownTensors, tensors: Sequence[Any], owners: Sequence[Any], views: dict[str, View]
    ) -> None:
        self._known, self._tensors, self._owners, self._views = known, tensors, owners, views

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """See ``Remembered``."""
        return _noted(self._known.notes, what, make)

    def addresses_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return where a module's parameters and buffers are; None where one of them has no memory."""
        plain = self._known.plain(values)
        try:
            return None if plain is None else [tensor.data_ptr() for tensor in plain]
        except (RuntimeError, ValueError):
            return None

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
            known, number = self._known, self._known.numbers[name]
            view = view_of(name, self._tensors[number], None if known.parts is None else known.parts[number])
            if view.identity != known.identities[number] or view.copied:
                raise InvalidModel(f"tensor {name!r} was given other memory while it was in use: begin anew")
            self._views[name] = view
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.numbers)

    def __len__(self) -> int:
        return len(self._known.numbers)


class Derived(Remembered):
    """Views that are made of others, each when it is first asked for: cut, or under other names."""

    def __init__(self, of: Mapping[str, View], by: object, names: Collection[str], make: Callable[[str], View]) -> None:
        """Derive the view of each name.

        Args:
            of: the views that they are made of; all that is remembered goes with those.
            by: what says how they are made, in the same way for as long as it lives.
            names: of the derived views.
            make: makes one.
        """
        self._of, self._names, self._make = of, names, make
        self._views: dict[str, View] = {}
        notes: MutableMapping[object, dict[Hashable, Any]] = once(of, Derived, WeakKeyDictionary)
        self._notes = notes.setdefault(by, {})

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """See ``Remembered``."""
        return _noted(self._notes, what, make)

    def __getitem__(self, name: str) -> View:
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._make(name)
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ModelReader:
    """Reads models, and knows the tensors of the last ones; of tensors in files it knows none.

    It keeps no tensor alive. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: tuple[KnownTensors, ...] = ()

    def read(self, model: Model) -> Mapping[str, View]:
        """Return the views of all tensors by name; see ``read_model``."""
        tensors, kept = tensors_of(model), self._known
        names, values = list(tensors), list(tensors.values())
        for known in kept:
            found = known.found_in(names, values)
            if found is not None:
                self._keep(known, kept)
                return Reading(known, *found, {})
        views = read_tensors(tensors)
        new = KnownTensors.of(names, values, views)
        if new is None:
            return views
        self._keep(new, kept)
        return Reading(new, (), (), views)

    def _keep(self, known: KnownTensors, kept: Sequence[KnownTensors]) -> None:
        """Keep the one that was met last first; those are let go of that will not be met again, and the oldest."""
        if not kept or kept[0] is not known:
            others = [one for one in kept if one is not known and not one.gone]
            self._known = (known, *others)[:_KEPT]

    def read_destination(self, model: Model) -> Mapping[str, View]:
        """Return the views of a model that is to be written into: ``read``, and ``check_own``."""
        views = self.read(model)
        if not isinstance(views, Reading):
            check_own(model, views)
        elif is_module(model):
            memory = views.addresses_of((*model.parameters(), *model.buffers()))
            if memory is None or not views.owns(memory):
                check_own(model, views)
                views.owned_by(memory or ())
        elif hasattr(model, "state_dict") and not views.is_of_the_same(self.read(model)):
            check_own(model, views)
        return views


def once(views: Mapping[str, View], what: Hashable, make: Callable[[], T]) -> T:
    """Return what is made of a model's tensors: once, where they are `Remembered`; see there."""
    return views.once(what, make) if isinstance(views, Remembered) else make()


def spans_of(views: Mapping[str, View], geometry: Geometry, group: Group) -> Spans:
    """Return the live cells of a group: where they are if they lie end to end there, else copied.

    Cells of F32 are given as such, where the layout has them as BF16.
    """
    tensors = geometry.layout.tensors

    def table() -> SpanTable | None:
        read = [views[tensors[span.tensor].name] for span in group.spans]
        if any(view.copied for view in read):  # where a copy lies now, something else may lie by the next call
            return None
        live = [view.cells for view in read]
        if not all(cells.flags.c_contiguous for cells in live):
            return None
        runs = [cells.reshape(-1)[span.start : span.stop] for cells, span in zip(live, group.spans, strict=True)]
        return SpanTable.of(runs, group.cell_type.dtype)

    found = None
    if isinstance(views, Remembered) and views.once("on host", lambda: all(view.on_host for view in views.values())):
        found = views.once(("spans", geometry.id, group.number), table)
    if found is not None:
        return found
    return [views[tensors[span.tensor].name].span(span.start, span.stop) for span in group.spans]


def _noted(notes: dict[Hashable, Any], what: Hashable, make: Callable[[], T]) -> T:
    if what not in notes:
        notes.setdefault(what, make())
    found: T = notes[what]
    return found
