"""Outer rounds in a root, made by members that take turns in one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pulse_registry import ComputeOptions
from pulse_registry.client.connect import connect
from pulse_registry.options import Options
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.session import OuterSession
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.signing import Trust
from pulse_schemas import Signer
from tests.support.waiting import NEVER_S

Model = dict[str, npt.NDArray[np.float32]]


def outer_model() -> Model:
    """Return a small model; the same on every call."""
    made = np.random.default_rng(7)
    return {"a": made.normal(size=(40, 30)).astype(np.float32), "b": made.normal(size=300).astype(np.float32)}


@dataclass
class Trainer:
    """A member with a model of its own."""

    name: str
    model: Model
    session: OuterSession
    seed: np.random.Generator

    def train(self) -> None:
        """Make an inner step, of sorts."""
        for cells in self.model.values():
            cells -= self.seed.normal(scale=1e-3, size=cells.shape).astype(np.float32)


def make_rounds(
    root: str,
    run: str,
    count: int,
    members: Sequence[str] = ("eu-1", "us-1"),
    signers: Mapping[str, Signer] | None = None,
    trust: Trust | None = None,
    token: str | None = None,
    quorum: int | None = None,
) -> Model:
    """Let members train for so many rounds, and leave; return the weights that they end with."""
    with ExitStack() as stack:
        trainers = []
        for number, name in enumerate(members):
            options = Options(
                owns_store=True,
                compute=ComputeOptions(backend="reference"),
                signer=None if signers is None else signers[name],
                trust=trust,
            )
            runtime = Runtime(connect(root, token), run, options, Dependencies())
            stack.callback(runtime.end)
            rounds = OuterRun(runtime)
            stack.callback(rounds.close)
            model = outer_model()
            session = rounds.session(
                model, OuterOptions(name, 1, quorum=quorum or len(members), poll_s=0.01, grace_s=NEVER_S)
            )
            trainers.append(Trainer(name, model, session, np.random.default_rng(number)))
            session.join()
        for _ in range(count):
            for one in trainers:
                one.train()
                one.session.contribute()
            for one in trainers:
                one.session.await_round()
                one.session.apply()
        for one in trainers:
            one.session.leave()
        return trainers[0].model
