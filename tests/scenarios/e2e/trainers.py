"""Trainers as real processes over a store of a URL: a script, as a process to fork must have no threads.

race ROOT PUSHES     two trainers push to one run at the same moments, each until PUSHES of its own are acknowledged;
                     prints what each was told, as JSON
crash ROOT SCENARIO [STRIDE]
                     kills a push before and after each of its store calls (or each stride-th), each time on a run of
                     its own; prints the calls, at which it was killed, and the name of the run that came to its end
overtake ROOT PUSHES one trainer pushes without waiting, again and again, while its uploads are under way
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pulse_registry.errors import Conflict
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store, WrapperStore, open_store
from tests.support.registries import registry_with

SCENARIOS = {"first": (0, None), "patch": (2, None), "keyframe": (2, 2), "again": (2, None)}
"""By name: versions before the push, and ``keyframe_every``; in ``again``, the push follows others of its process."""


def model_of(step: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights that a step has, whoever makes it."""
    rng = np.random.default_rng(3)
    model = {"a": rng.integers(0, 2**16, (6, 50), dtype=np.uint16), "b": rng.random(40, dtype=np.float32)}
    rng = np.random.default_rng(step)
    model["a"].reshape(-1)[rng.integers(0, 300, 9)] += np.uint16(1 + step)
    model["b"][step % 40] = step
    return model


def registry_of(store: Any, keyframe_every: int | None = None) -> Registry:
    """Open the run."""
    options = PushOptions(dtype="keep", keyframe_share=1e9, keyframe_every=keyframe_every)
    return registry_with(store, Options(push=options, compute=ComputeOptions(backend="reference")))


def race(root: str, pushes: int) -> None:
    """Let two trainers fight for a run."""
    context = multiprocessing.get_context("fork")
    open_store(root)  # what a client takes to be imported and made is here once, and not in each trainer
    start = context.Barrier(2)
    reader, writer = os.pipe()

    def train(racer: int) -> None:
        registry = registry_of(open_store(root), keyframe_every=20)
        step, told, refused = racer, [], []
        for _ in range(pushes):
            start.wait()
            while True:
                step += 2  # a label of its own for every try
                try:
                    result = registry.push(step, model_of(step))
                except Conflict as error:
                    refused.append([step, type(error).__name__])
                    registry.close()
                    registry = registry_of(open_store(root), keyframe_every=20)
                else:
                    told.append([result.version, result.step, result.digest])
                    break
        registry.close()
        os.write(writer, (json.dumps({"racer": racer, "told": told, "refused": refused}) + "\n").encode())

    racers = [context.Process(target=train, args=(racer,)) for racer in range(2)]
    for racer in racers:
        racer.start()
    os.close(writer)
    with open(reader) as stories:
        told = [json.loads(line) for line in stories]
    for racer in racers:
        racer.join()
    if any(racer.exitcode for racer in racers):
        raise SystemExit("a trainer failed")
    print(json.dumps(told))


class DyingStore(WrapperStore):
    """Kills this process before or after its n-th call; tells a pipe of the calls that begin."""

    def __init__(self, store: Store, nth: int, after: bool, told: int) -> None:
        super().__init__(store)
        self._left, self._after, self._told = nth, after, told

    def _dying(self, verb: str, key: str, call: Any) -> Any:
        os.write(self._told, f"{verb} {key}\n".encode())
        self._left -= 1
        if self._left == 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return call()
        finally:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        return self._dying("get", key, lambda: super(DyingStore, self).get(key, byte_range, max_bytes=max_bytes))

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        self._dying("put", key, lambda: super(DyingStore, self).put(key, data, if_absent=if_absent))

    def size(self, key: str) -> int:
        return self._dying("size", key, lambda: super(DyingStore, self).size(key))

    def exists(self, key: str) -> bool:
        return self._dying("exists", key, lambda: super(DyingStore, self).exists(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        return self._dying("list", prefix, lambda: super(DyingStore, self).list(prefix, after))


def crash(root: str, scenario: str, stride: int = 1) -> None:
    """Kill a push at its store calls, each stride-th; the runs lie in ``ROOT/<call>-before`` and ``-after``."""
    before, keyframe_every = SCENARIOS[scenario]
    open_store(root)  # what a client takes to be imported and made is here once, and not in each child
    calls: list[str] = []
    killed, whole = [], ""
    for after in (False, True):
        nth = 1
        while True:
            name = f"{nth}-{'after' if after else 'before'}"
            finished, calls = _one_crash(f"{root}/{name}", scenario, before, keyframe_every, nth, after)
            if finished:
                whole = name
                break
            killed.append([nth, after])
            nth += stride
    print(json.dumps({"calls": calls, "killed": killed, "whole": whole}))


def _one_crash(
    folder: str, scenario: str, before: int, keyframe_every: int | None, nth: int, after: bool
) -> tuple[bool, list[str]]:
    """Push in a child that dies at its n-th call; return whether it came to its end, and its calls."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        store = open_store(folder)
        dying = DyingStore(store, 0, after, writer)
        registry = registry_of(dying if scenario == "again" else store, keyframe_every)
        for step in range(before):
            registry.push(step, model_of(step))
        if scenario != "again":
            registry.close()
            registry = registry_of(dying, keyframe_every)
        os.write(writer, b"--\n")
        dying._left = nth
        registry.push(before, model_of(before))
        registry.close()
        os._exit(0)
    os.close(writer)
    with open(reader) as told:
        calls = told.read().partition("--\n")[2].splitlines()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status):
            raise SystemExit("the push failed")
        return True, calls
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise SystemExit(f"the push died of signal {os.WTERMSIG(status)}")
    return False, calls


def overtake(root: str, pushes: int) -> None:
    """Push without waiting, while the uploads of earlier pushes need the same threads."""
    from pulse_registry.weights import cell_space

    cell_space.GROUP_BYTES = 16  # many groups, and one thread for them, so that pushes meet at every step
    options = PushOptions(coder="class", dtype="keep", keyframe_every=7)
    with Registry(
        open_store(root), "run", Options(push=options, compute=ComputeOptions(backend="reference", threads=1))
    ) as registry:
        model = model_of(0)
        futures = []
        for step in range(pushes):
            model["a"] += np.uint16(1)
            futures.append(registry.push(step, model, wait=False))
        print(json.dumps([[f.result().version, f.result().step, f.result().digest] for f in futures]))


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    match arguments:
        case ["race", root, pushes]:
            race(root, int(pushes))
        case ["crash", root, scenario]:
            crash(root, scenario)
        case ["crash", root, scenario, stride]:
            crash(root, scenario, int(stride))
        case ["overtake", root, pushes]:
            overtake(root, int(pushes))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
