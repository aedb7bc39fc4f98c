"""A trainer in outer rounds as a real process: ``python -m tests.scenarios.rounds.trainer '{"root": ..., ...}'``.

Prints a line of JSON for each round. Stops after the round that a line on its standard input names; before it dies by
``kill``, at so many calls of its store, half of them done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels.protocol import Floats, Gated, Index, Levels, OuterLoops, OuterRates, Totals, Weighted
from pulse_kernels.select import outer_loops
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.outer import session
from pulse_registry.outer.options import OuterOptions
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store, WrapperStore, open_store
from tests.scenarios.simulator.rounds_truth import exact, plus

SHAPES = {"w": (20, 30), "b": (40,)}


class TritonLoops:
    """The loops of a GPU, here interpreted, which one thread can be at a time."""

    def __init__(self) -> None:
        import torch

        from pulse_kernels.gpu import outer

        self._outer, self._torch, self._lock = outer, torch, threading.Lock()

    def collect(self, theta: Floats, local: Floats, residual: Floats, sums: Floats) -> float:
        with self._lock:
            return self._outer.collect(*map(self._torch.from_numpy, (theta, local.copy(), residual, sums)))

    def square(self, theta: Floats, residual: Floats, gain: float) -> tuple[int, float]:
        with self._lock:
            *_, fired = self._outer.gate(*map(self._torch.from_numpy, (theta, residual)), gain, -20)
        found = residual[fired.numpy()].astype(np.float64)
        return len(found), float(np.dot(found, found))

    def gate(self, theta: Floats, residual: Floats, gain: float, exponent: int) -> Gated:
        with self._lock:
            index, levels, _ = self._outer.gate(*map(self._torch.from_numpy, (theta, residual)), gain, exponent)
        return index.numpy().astype(np.uint32), levels.numpy()

    def passed(self, theta: Floats, residual: Floats, gain: float) -> Index:
        raise NotImplementedError

    def settle(self, residual: Floats, index: Index, levels: Levels, exponent: int) -> None:
        torch = self._torch
        where = torch.from_numpy(index.astype(np.int64))
        self._outer.settle(torch.from_numpy(residual), where, torch.from_numpy(levels), exponent)

    def add(self, total: Totals, index: Index, levels: Levels, factor: int) -> None:
        torch = self._torch
        where = torch.from_numpy(index.astype(np.int64))
        torch.from_numpy(total)[where] += torch.from_numpy(levels).long() * factor

    def fold(self, theta: Floats, momentum: Floats, parts: Sequence[Weighted], scale: float, rates: OuterRates) -> None:
        total = np.zeros(len(theta), np.int64)
        for part in parts:
            self.add(total, *part)
        index = np.flatnonzero(total).astype(np.uint32)
        self.step(theta, momentum, index, total[index].astype(np.float32) * np.float32(scale), rates)

    def step(self, theta: Floats, momentum: Floats, index: Index, gradient: Floats, rates: OuterRates) -> None:
        torch = self._torch
        where = torch.from_numpy(index.astype(np.int64))
        with self._lock:
            self._outer.step(*map(torch.from_numpy, (theta, momentum)), where, torch.from_numpy(gradient), rates)


class Mortal(WrapperStore):
    """Kills its process at one of its calls: before it, or, of every other one, after it."""

    def __init__(self, store: Store, at: int) -> None:
        super().__init__(store)
        self._left = 2 * at

    def _side(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self._side()
        try:
            return super().get(key, byte_range, max_bytes=max_bytes)
        finally:
            self._side()

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        self._side()
        super().put(key, data, if_absent=if_absent)
        self._side()

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._side()
        return super().list(prefix, after)


def model_of(seed: int) -> dict[str, Floats]:
    """Return a model of float32 masters."""
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal(shape) * 0.02).astype(np.float32) for name, shape in SHAPES.items()}


def train(model: dict[str, Floats], seed: int, step: int) -> None:
    """Make an inner step: what it does depends on nothing but the trainer and the number of the step."""
    rng = np.random.default_rng((seed, step))
    for tensor in model.values():
        tensor -= (rng.standard_normal(tensor.shape) * 1e-4 + 3e-6).astype(np.float32)


def sha(values: Floats) -> str:
    return blake3(values.tobytes()).hexdigest()


def main(given: dict[str, Any]) -> None:
    """Work in rounds."""
    last, name, seed = [float("inf")], given["name"], given["seed"]

    def listen() -> None:
        for line in sys.stdin:
            last[0] = int(line)

    threading.Thread(target=listen, daemon=True).start()
    loops: OuterLoops = TritonLoops() if given["loops"] == "triton" else outer_loops(given["loops"])
    session.outer_loops = lambda backend="auto": loops
    store: Store = open_store(given["root"])
    if given.get("kill"):
        store = Mortal(store, given["kill"])
    runtime = Runtime(store, "run", Options(compute=ComputeOptions(backend="reference")), Dependencies())
    model = model_of(1)
    options = OuterOptions(
        name, inner_steps=2, quorum=given["quorum"], grace_s=given["grace"], takeover_s=2.0, poll_s=0.02, patience=3
    )
    outer = OuterRun(runtime).session(model, options)
    outer.join()
    weights = outer.weights
    collect, settle = weights.collect, weights.settle
    books = {"collected": exact(weights.residual), "sent": exact(np.zeros_like(weights.residual))}

    def noted(book: str, call: Any, sign: int) -> Any:
        def wrapped(*arguments: Any) -> None:
            before = exact(weights.residual)
            call(*arguments)
            books[book] = plus(books[book], plus(exact(weights.residual), before, -1), sign)

        return wrapped

    weights.collect = noted("collected", collect, 1)  # type: ignore[method-assign]
    weights.settle = noted("sent", settle, -1)  # type: ignore[method-assign]
    say({"name": name, "joined": outer.round})
    step = 0
    while outer.round < last[0]:
        step += 1
        train(model, seed, step)
        if step == 2 and "dump" in given:
            local = np.concatenate([tensor.reshape(-1) for tensor in (model["b"], model["w"])])
            np.save(given["dump"], weights.theta - local)
        if result := outer.step():
            say(
                {
                    "name": name,
                    "round": result.round,
                    "members": sorted(result.members),
                    "late": list(result.late),
                    "counts": result.counts,
                    "theta": sha(weights.theta),
                    "momentum": sha(weights.momentum),
                    "digest": str(weights.digest().hex()),
                }
            )
    conserved = plus(exact(weights.residual), books["sent"]) == books["collected"]
    outer.leave()
    say({"name": name, "left": outer.last.round if outer.last else 0, "conserved": conserved, "sent": books["sent"]})


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
