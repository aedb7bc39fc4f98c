"""The store of our own tests keeps the contract, too: what passes over it would pass over another."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pulse_registry.store import Store
from pulse_registry.testing import StoreTests, Subject
from tests.conformance.model import StoreMachine
from tests.support.records import DictStore


class TestDictStore(StoreTests):
    @pytest.fixture
    def subject(self) -> Subject:
        store = DictStore()

        def raw_set(key: str, data: bytes) -> None:
            store.objects[key], store.times[key] = data, datetime.now(UTC)

        return Subject(store, raw_get=lambda key: store.objects[key], raw_set=raw_set)


class _Machine(StoreMachine):
    def fresh(self) -> Store:
        return DictStore()


def test_a_dict_store_behaves_like_a_dict() -> None:
    run_state_machine_as_test(_Machine, settings=settings(max_examples=50, stateful_step_count=30))
