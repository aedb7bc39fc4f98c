"""Copy-on-write lists of objects by version: a copy costs what was changed of late, however long a list grows.

Most have a few items, and are tuples; but who writes a log may give one version a million objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from pulse_registry.log.cow_dict import CowDict

T = TypeVar("T")
_FEW: Final = 64


class CowLists(Generic[T]):
    """Items by number, each list in the order in which they came.

    >>> first = CowLists[str](key=str.lower)
    >>> first.add(7, "A")
    >>> second = first.copy()
    >>> second.remove(7, "A")
    >>> first.of(7), second.of(7)
    (('A',), ())
    """

    __slots__ = ("_key", "_lists")

    def __init__(self, key: Callable[[T], str]) -> None:
        """Begin empty; ``key`` tells the items of a list apart."""
        self._key = key
        self._lists = CowDict[int, tuple[T, ...] | CowDict[str, T]]()

    def copy(self) -> CowLists[T]:
        """Return the same lists; neither sees what is changed in the other."""
        other = CowLists[T].__new__(CowLists)
        other._key, other._lists = self._key, self._lists.copy()
        return other

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
