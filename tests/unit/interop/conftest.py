from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pulse_registry.registry import Registry
from tests.support.records import DictStore
from tests.support.registries import Model, change, copy_of, quick, small_model
from tests.unit.interop.reference import State, state_of


@dataclass(frozen=True, slots=True)
class Run:
    """A run of four versions, and the bytes of each."""

    store: DictStore
    registry: Registry
    models: list[Model]
    states: list[State]


@pytest.fixture
def run() -> Iterator[Run]:
    """Four versions of a small model of three widths; from 2 to 3 nothing changes."""
    store, models = DictStore(), [small_model()]
    for seed in (1, 2):
        models.append(copy_of(models[-1]))
        change(models[-1], seed)
    models.append(copy_of(models[-1]))
    with quick(store) as registry:
        for step, model in enumerate(models):
            registry.push(step, model)
        yield Run(store, registry, models, [state_of(model) for model in models])
