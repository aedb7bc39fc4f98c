"""Copy-on-write dict: a copy costs what was changed of late, and not all that is in it.

A run's state is copied for each record, so that who has the old one can go on with it; a copy of a hundred thousand
entries would take longer than all else that a record needs.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_GONE = object()
_LEAST_LAYER = 64


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


class _Items(ItemsView[K, V]):
    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._pairs()  # type: ignore[attr-defined, no-any-return]


class _Values(ValuesView[V]):
    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._pairs())  # type: ignore[attr-defined]
