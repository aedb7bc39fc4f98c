from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pulse_registry.store import MemoryStore, PrefixStore, Store
from pulse_registry.testing import StoreTests, Subject
from pulse_registry.testing.store_tests import VALID_KEYS
from tests.conformance.model import StoreMachine

_names = (f"test-conformance-prefix-{number}" for number in itertools.count())


class TestPrefixStore(StoreTests):
    @pytest.fixture
    def subject(self) -> Subject:
        below = MemoryStore(next(_names))
        return Subject(
            store=PrefixStore(below, "p/q"),
            raw_get=lambda key: below.get(f"p/q/{key}"),
            raw_set=lambda key, data: below.put(f"p/q/{key}", data),
        )

    @pytest.mark.parametrize("key", [key for key in VALID_KEYS if len(key) < 1000], ids=ascii)
    def test_every_valid_key_round_trips(self, store: Store, key: str) -> None:
        # The bound on length holds for the whole key: the longest one of the suite has no room for a prefix.
        super().test_every_valid_key_round_trips(store, key)


class _Machine(StoreMachine):
    def fresh(self) -> Store:
        below = MemoryStore(next(_names))
        # Neighbours that only look as if they were below the prefix.
        for key in ("d", "d-/a", "dd/a", "d0"):
            below.put(key if key != "d" else "e", b"")
        return PrefixStore(below, "d")


def test_a_view_below_a_prefix_behaves_like_a_dict() -> None:
    run_state_machine_as_test(_Machine, settings=settings(max_examples=30, stateful_step_count=30))
