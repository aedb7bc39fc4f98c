"""Small runs to compact, and a compactor that does all that it can."""

from __future__ import annotations

from pulse_registry.compaction import Attached, CompactOptions, Compactor
from pulse_registry.events import Event
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.store import Store
from tests.support.registries import RUN, Bits, Model, bits, change, quick, small_model, state_of, without_pauses

NEVER = 1e9


def pushed(store: Store, versions: int, *, coder: str = "gap", still: bool = False) -> tuple[Model, list[Bits]]:
    """Push so many versions of a small model; return it and the bits of each."""
    model, states = small_model(), []
    with quick(store, coder=coder, keyframe_share=NEVER) as registry:
        for version in range(versions):
            if not still:
                change(model, version)
            registry.push(version, model)
            states.append(bits(model))
    return model, states


def compact(store: Store, options: CompactOptions | None = None, told: list[Event] | None = None) -> list[Attached]:
    """Do all that can be done."""
    with without_pauses(retries=False):
        registry = Registry(
            store, RUN, Options(on_event=None if told is None else told.append, compute=ComputeOptions(backend="numba"))
        )
    with registry:
        return finish(registry.compactor(options))


def finish(compactor: Compactor) -> list[Attached]:
    try:
        return list(iter(compactor.step, None))
    finally:
        compactor.close()


def merged(store: Store) -> set[tuple[int, int]]:
    return {(patch.base, patch.target) for patch in state_of(store).patches if patch.target > patch.base + 1}
