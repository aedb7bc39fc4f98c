"""The workers: rollout workers that serve the newest weights (one of them joins late), and one that falls behind."""

from __future__ import annotations

import queue
import time
from typing import Any

import pulse_registry
from pulse_registry import PullResult, Registry, Version
from pulse_registry.demo.fingerprint import fingerprint
from pulse_registry.demo.follower import Follower
from pulse_registry.demo.messages import Checked, Generated, Pulled, Role
from pulse_registry.demo.policy import empty_model, quiet_transformers
from pulse_registry.demo.process import Wires, wait_until
from pulse_registry.demo.rollout import answer
from pulse_registry.timeline import stacked


def rollout(wires: Wires, name: str) -> None:
    """Answer prompts with weights that follow the run, until the trainer is done."""
    _serve(wires, name, "rollout")


def late(wires: Wires, name: str) -> None:
    """Do what a rollout worker does; the supervisor starts it when the run has versions already."""
    _serve(wires, name, "late")


def laggard(wires: Wires, name: str) -> None:
    """Pull once, sleep through several versions, pull again, go back to an older version, and return to the newest."""
    settings = wires.settings
    with _open(wires, name) as registry:
        model = _model_of(wires, registry)

        def pull(version: Any, before: int | None) -> int:
            result = registry.pull(version, into=model)
            return tell_pulled(wires, name, "laggard", before, result, model)

        first = pull(0, None)
        wait_until(lambda: registry.version().version >= settings.lag, 10 * settings.patience, "new version", every=0.5)
        newer = pull("latest", first)
        older = pull(max(0, newer - 2), newer)
        now = pull("latest", older)
        _await_end(wires)
        if registry.version().version != now:
            pull("latest", now)
        tell_checked(wires, name, registry, model, model)


def _serve(wires: Wires, name: str, role: Role) -> None:
    with _open(wires, name) as registry:
        model = _model_of(wires, registry)
        with Follower(registry, model) as follower:
            held = tell_pulled(wires, name, role, None, follower.catch_up(), model)
            while not wires.finished.is_set():
                result = follower.refresh()
                if result is not None:
                    held = tell_pulled(wires, name, role, held, result, model)
                _answer_one(wires, name, held, model)
            if registry.version().version != held:
                tell_pulled(wires, name, role, held, follower.catch_up(), model)
        tell_checked(wires, name, registry, model, model)


def _answer_one(wires: Wires, name: str, version: int, model: Any) -> None:
    settings = wires.settings
    try:
        prompt = wires.prompts.get(timeout=0.1)
    except queue.Empty:
        return
    began = time.perf_counter()
    made = answer(
        model,
        prompt,
        worker=name,
        version=version,
        group_size=settings.group_size,
        new_tokens=settings.new_tokens,
        seed=settings.seed,
    )
    wires.rollouts.put(made)
    tokens = sum(len(completion) for completion in made.completions)
    wires.tell(Generated(name, version, len(made.completions), tokens, time.perf_counter() - began))


def _open(wires: Wires, name: str) -> Registry:
    """Open the run; a service is told which version this worker holds, and its page shows it."""
    return pulse_registry.open(wires.settings.root, run=wires.settings.run, name=name)


def _model_of(wires: Wires, registry: Registry) -> Any:
    """Wait for the first version and make a BF16 model of the architecture that its metadata tells."""
    import torch

    quiet_transformers()  # it takes seconds, in which the trainer loads its model
    return empty_model(await_first(wires, registry).metadata["config"], torch.bfloat16)


def await_first(wires: Wires, registry: Registry) -> Version:
    """Wait for the run's first version and return it."""
    first = next(registry.watch(after=-1, timeout=wires.settings.patience), None)
    if first is None:
        raise TimeoutError(f"no first version for {wires.settings.patience:.0f} s")
    return first


def _await_end(wires: Wires) -> None:
    """Sleep until the trainer is done; the supervisor watches over how long that takes."""
    while not wires.finished.wait(timeout=1.0):
        pass


def tell_pulled(wires: Wires, name: str, role: Role, before: int | None, result: PullResult, model: Any) -> int:
    """Tell of a pull and of the cells that are held after it; return the version."""
    wires.tell(
        Pulled(
            worker=name,
            role=role,
            before=before,
            version=result.version,
            nbytes=result.nbytes,
            objects=result.objects,
            changed=result.changed,
            phases=stacked(result.timeline),
            checked=result.checked,
            sha256=fingerprint(model),
        )
    )
    return result.version


def tell_checked(wires: Wires, name: str, registry: Registry, model: Any, held: Any) -> None:
    """Let the library check a model, or slices of one, once more; tell of the cells that are ``held`` in it."""
    version = registry.verify("latest", model=model).version
    wires.tell(Checked(name, version, fingerprint(held)))
