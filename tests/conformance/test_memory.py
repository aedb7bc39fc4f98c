from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pulse_registry.store import MemoryStore, Store
from pulse_registry.store.memory import OBJECTS
from pulse_registry.testing import StoreTests, Subject
from tests.conformance.model import StoreMachine

_names = (f"test-conformance-memory-{number}" for number in itertools.count())


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def subject(self) -> Subject:
        name = next(_names)

        def raw_set(key: str, data: bytes) -> None:
            OBJECTS[f"{name}/{key}"] = data, datetime.now(UTC)

        return Subject(store=MemoryStore(name), raw_get=lambda key: OBJECTS[f"{name}/{key}"][0], raw_set=raw_set)


class _Machine(StoreMachine):
    def fresh(self) -> Store:
        return MemoryStore(next(_names))


def test_a_memory_store_behaves_like_a_dict() -> None:
    run_state_machine_as_test(_Machine, settings=settings(max_examples=50, stateful_step_count=30))
