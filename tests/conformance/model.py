"""A plain dict beside a store: whatever the order of calls, both must say the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pulse_registry.errors import AlreadyExists, CorruptObject, NotFound
from pulse_registry.store import Store

# Names of folders and of objects differ, so that no key is the folder of another.
KEYS = st.builds(
    "{}{}".format,
    st.sampled_from(["", "d/", "d-/", "d./", "d/d/", "é/", "d0/d/"]),
    st.sampled_from(["a", "a-", "a.b", "b", "0", "\uff5e", "\U0001f511"]),
)
PREFIXES = KEYS.flatmap(lambda key: st.integers(0, len(key)).map(lambda length: key[:length]))
BODIES = st.binary(max_size=40) | st.lists(st.binary(max_size=10), max_size=5)


def folders_of(keys: Iterable[str], prefix: str, after: str | None) -> set[str]:
    """Return the folders of keys that end at the first '/' behind a prefix, and come after a string."""
    below = (key for key in keys if key.startswith(prefix) and "/" in key[len(prefix) :])
    folders = {key[: key.index("/", len(prefix)) + 1] for key in below}
    return {folder for folder in folders if after is None or folder > after}


class StoreMachine(RuleBasedStateMachine):
    """Calls every verb in any order."""

    @abstractmethod
    def fresh(self) -> Store:
        """Return a new, empty store."""

    @initialize()
    def begin(self) -> None:
        self.store = self.fresh()
        self.model: dict[str, bytes] = {}
        self.written: set[str] = set()

    @rule(key=KEYS, body=BODIES)
    def put(self, key: str, body: bytes | list[bytes]) -> None:
        self.store.put(key, body)
        self.written.add(key)
        self.model[key] = body if isinstance(body, bytes) else b"".join(body)

    @rule(key=KEYS, body=BODIES)
    def create(self, key: str, body: bytes | list[bytes]) -> None:
        if key in self.model:
            with pytest.raises(AlreadyExists):
                self.store.put(key, body, if_absent=True)
        else:
            self.store.put(key, body, if_absent=True)
            self.written.add(key)
            self.model[key] = body if isinstance(body, bytes) else b"".join(body)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=KEYS)
    def read(self, key: str) -> None:
        assert self.store.exists(key) == (key in self.model)
        if key in self.model:
            assert self.store.get(key) == self.model[key]
            assert self.store.size(key) == len(self.model[key])
        else:
            with pytest.raises(NotFound):
                self.store.get(key)
            with pytest.raises(NotFound):
                self.store.size(key)

    @rule(key=KEYS, start=st.integers(0, 50), length=st.integers(0, 50))
    def read_range(self, key: str, start: int, length: int) -> None:
        stop = start + length
        if key not in self.model:
            with pytest.raises(NotFound):
                self.store.get(key, (start, stop))
        elif stop > len(self.model[key]):
            with pytest.raises(CorruptObject):
                self.store.get(key, (start, stop))
        else:
            assert self.store.get(key, (start, stop)) == self.model[key][start:stop]

    @rule(prefix=PREFIXES, after=st.none() | PREFIXES)
    def list_some(self, prefix: str, after: str | None) -> None:
        expected = sorted(key for key in self.model if key.startswith(prefix) and (after is None or key > after))
        assert [*self.store.list(prefix, after)] == expected

    @rule(prefix=PREFIXES, after=st.none() | PREFIXES)
    def list_folders(self, prefix: str, after: str | None) -> None:
        listed = [*self.store.folders(prefix, after)]
        assert listed == sorted(set(listed))
        assert folders_of(self.model, prefix, after) <= set(listed) <= folders_of(self.written, prefix, after)

    @invariant()
    def the_listing_is_the_model(self) -> None:
        assert [*self.store.list("")] == sorted(self.model)
