"""Copy-on-write collections, and objects made of them: a copy costs what was changed of late, not all that is there.

A run's state is copied for each record, so that who has the old one can go on with it; a copy of a hundred thousand
entries would take longer than all else that a record needs.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, MutableMapping, ValuesView
from typing import Any, Final, Generic, Self, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_GONE = object()
_LEAST_LAYER = 64
_FEW: Final = 64


class CowObject:
    """An object of which a copy is cheap: its attributes that are copy-on-write are copied, all others are shared.

    What is shared must not be changed in place, or all copies see it: numbers, tuples, whatever is replaced as a whole.

    >>> class Names(CowObject):
    ...     def __init__(self):
    ...         self.count, self.found = 0, CowDict[str, int]()
    >>> first = Names()
    >>> second = first.copy()
    >>> second.count, second.found["a"] = 1, 0
    >>> (first.count, dict(first.found)), (second.count, dict(second.found))
    ((0, {}), (1, {'a': 0}))
    """

    def copy(self) -> Self:
        """Return an object that can go on without this one; neither sees what is changed in the other.

        Other threads may read this one meanwhile.
        """
        other = object.__new__(type(self))
        for name, value in vars(self).items():
            other.__dict__[name] = value.copy() if isinstance(value, (CowObject, CowDict)) else value
        return other


class CowDict(MutableMapping[K, V], Generic[K, V]):
    """A dict: a base that copies share and nobody changes, and what differs from it. Iterates in order of insertion.

    >>> first = CowDict[str, int]()
    >>> first["a"] = 1
    >>> second = first.copy()
    >>> second["b"] = 2
    >>> dict(first), dict(second)
    ({'a': 1}, {'a': 1, 'b': 2})
    """

    __slots__ = ("_base", "_more", "_shared", "_top")

    def __init__(self) -> None:
        """Begin empty."""
        self._base: dict[K, V] = {}
        self._top: dict[K, V | object] = {}
        self._more = 0  # entries of the top alone, less those of the base that are gone
        self._shared = False

    def copy(self) -> CowDict[K, V]:
        """Return a dict of the same entries; neither sees what is changed in the other.

        Other threads may read this one meanwhile.
        """
        other = CowDict[K, V]()
        # As many as the square root: the layers that are copied, and the bases that are made, then cost about the same.
        if len(self._top) > _LEAST_LAYER and len(self._top) ** 2 > len(self._base):
            other._base = {**self._base, **self._top}  # type: ignore[dict-item]
            for key in [key for key, value in self._top.items() if value is _GONE]:
                del other._base[key]
            return other
        self._shared = True
        other._base, other._top, other._more, other._shared = self._base, self._top.copy(), self._more, True
        return other

    def __getitem__(self, key: K) -> V:
        value = self._top.get(key, _GONE) if key in self._top else self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return value  # type: ignore[return-value]

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T, /) -> V | T: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """Return a value, or ``default``; the one of the base class would raise and catch."""
        value = self._top[key] if key in self._top else self._base.get(key, _GONE)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        return self._top[key] is not _GONE if key in self._top else key in self._base

    def __setitem__(self, key: K, value: V) -> None:
        if not self._shared:
            self._base[key] = value
            return
        self._more += key not in self
        self._top[key] = value

    def __delitem__(self, key: K) -> None:
        if not self._shared:
            del self._base[key]
            return
        if key not in self:
            raise KeyError(key)
        self._more -= 1
        if key in self._base:
            self._top[key] = _GONE
        else:
            del self._top[key]

    def __len__(self) -> int:
        return len(self._base) + self._more

    def __iter__(self) -> Iterator[K]:
        return iter(self._base) if not self._top else (key for key, _ in self.items())

    def items(self) -> ItemsView[K, V]:
        """Return all entries."""
        return self._base.items() if not self._top else _Items(self)

    def values(self) -> ValuesView[V]:
        """Return all values."""
        return self._base.values() if not self._top else _Values(self)

    def __reversed__(self) -> Iterator[K]:
        """Iterate over the keys, the last one first."""
        base, top = self._base, self._top
        yield from (key for key in reversed(top) if key not in base)
        yield from (key for key in reversed(base) if top.get(key, None) is not _GONE)

    def _pairs(self) -> Iterator[tuple[K, V]]:
        base, top = self._base, self._top
        for key, value in base.items():
            found = top.get(key, value)
            if found is not _GONE:
                yield key, found  # type: ignore[misc]
        for key, found in top.items():
            if key not in base:
                yield key, found  # type: ignore[misc]


class CowLists(CowObject, Generic[T]):
    """Lists of items by number, each in the order in which they came.

    Most have a few items, and are tuples; but who writes a log may give one version a million objects.

    >>> first = CowLists[str](key=str.lower)
    >>> first.add(7, "A")
    >>> second = first.copy()
    >>> second.remove(7, "A")
    >>> first.of(7), second.of(7)
    (('A',), ())
    """

    def __init__(self, key: Callable[[T], str]) -> None:
        """Begin empty; ``key`` tells the items of a list apart."""
        self._key = key
        self._lists = CowDict[int, tuple[T, ...] | CowDict[str, T]]()

    def of(self, number: int) -> tuple[T, ...]:
        """Return the items of a number."""
        found = self._lists.get(number, ())
        return found if isinstance(found, tuple) else tuple(found.values())

    def add(self, number: int, item: T) -> None:
        """Add an item, which is not there."""
        found = self._lists.get(number, ())
        if isinstance(found, tuple) and len(found) < _FEW:
            self._lists[number] = (*found, item)
            return
        many = self._many(found)
        many[self._key(item)] = item
        self._lists[number] = many

    def remove(self, number: int, item: T) -> None:
        """Take away an item, which is there."""
        found, key = self._lists[number], self._key(item)
        rest: tuple[T, ...] | CowDict[str, T]
        if isinstance(found, tuple):
            rest = tuple(other for other in found if self._key(other) != key)
        else:
            rest = self._many(found)
            del rest[key]
        if rest:
            self._lists[number] = rest
        else:
            del self._lists[number]

    def pop(self, number: int) -> tuple[T, ...]:
        """Take away all items of a number, and return them."""
        found = self.of(number)
        self._lists.pop(number, None)
        return found

    def _many(self, found: tuple[T, ...] | CowDict[str, T]) -> CowDict[str, T]:
        """Return what can be changed without those seeing it who have the list as it is."""
        if not isinstance(found, tuple):
            return found.copy()
        many = CowDict[str, T]()
        many.update((self._key(item), item) for item in found)
        return many


class _Items(ItemsView[K, V]):
    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._pairs()  # type: ignore[attr-defined, no-any-return]


class _Values(ValuesView[V]):
    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._pairs())  # type: ignore[attr-defined]
