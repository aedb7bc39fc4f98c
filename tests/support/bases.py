"""Runs that begin with a version of another run, in small stores."""

from __future__ import annotations

from typing import Any

from pulse_registry.errors import NotFound
from pulse_registry.format import keys
from pulse_registry.log import LogReader, RunState
from pulse_registry.log.runs import list_runs
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import RetryStore, RunStore, Store
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_schemas import BASES, KeyframeRef, ObjectRef
from tests.support.clock import Clock
from tests.support.registries import Model, change, small_model

LENDER = "qwen"
BASE = "c" * 64 + "-0000"


def opened(store: Store, run: str, base: str | None = None, **options: Any) -> Registry:
    """Return a registry of a run that makes each call of the store once, and may begin with ``base``."""

    def once(below: Store) -> Store:
        clock = Clock()
        return RetryStore(below, RetryPolicy(total_s=0.0, clock=clock, sleep=clock.sleep))

    push = PushOptions(**({"dtype": "keep", "keyframe_share": 1e9, "base": base} | options))
    return Registry(store, run, Options(push=push), dependencies=Dependencies(retrying=once))


def lend(store: Store, versions: int = 1, **options: Any) -> Model:
    """Push so many versions to the run that lends, and return the weights of the newest."""
    model = small_model()
    with opened(store, LENDER, **options) as registry:
        for step in range(versions):
            change(model, step)
            registry.push(step, model)
    return model


def tuned(model: Model, seed: int) -> Model:
    """Return the weights with some cells changed."""
    copy = {name: array.copy() for name, array in model.items()}
    change(copy, 1000 + seed)
    return copy


def state_of(store: Store, run: str) -> RunState:
    """Return a run's state as the log says."""
    return LogReader(RunStore(store, run), run).refresh()


def base_files(store: Store) -> list[str]:
    """Return the keys of all files of the root's bases."""
    return [key for key in store.list(BASES) if key.endswith((".safetensors", ".json"))]


def stored_bytes(store: Store, prefix: str = "") -> int:
    """Return the bytes of all objects below a prefix."""
    return sum(store.size(key) for key in store.list(prefix))


def broken_promises(store: Store) -> list[str]:
    """Return what of the promises about bases does not hold: all that live keyframes name is there, and referred to."""
    wrong = []
    for run in list_runs(store):
        state, below = state_of(store, run), RunStore(store, run)
        for keyframe in state.keyframes:
            if keyframe.base is None:
                continue
            if not below.exists(keys.reference_key(keyframe.base)):
                wrong.append(f"{run} names {keyframe.base} and does not refer to it")
            for item in (keyframe.index, *keyframe.shards):
                try:
                    if below.size(item.key) != item.size:
                        wrong.append(f"{run}: {item.key} has another size")
                except NotFound:
                    wrong.append(f"{run}: {item.key} is gone")
    return wrong


def base_keyframe(version: int = 0, base: str = BASE) -> KeyframeRef:
    """Return a keyframe of a version that is a shared base."""

    def ref(name: str, nbytes: int) -> ObjectRef:
        return ObjectRef(key=keys.base_key(base, name), size=nbytes, blake3="e" * 64)

    index = ref("model.safetensors.index.json", 10)
    return KeyframeRef(version=version, index=index, shards=(ref("model-00001-of-00001.safetensors", 1000),))
