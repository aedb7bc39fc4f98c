"""Members of outer rounds: each trains, contributes, waits, and looks at its weights and its residual each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pulse_registry.errors import (
    BaseMismatch,
    CorruptObject,
    Diverged,
    Fenced,
    InvalidArgument,
    InvalidModel,
    NotFound,
    PulseError,
    QuorumLost,
    StoreUnavailable,
)
from pulse_registry.outer.options import OuterOptions
from pulse_registry.push.future import PushFuture
from pulse_registry.push.publisher import Publisher
from pulse_registry.runtime.outer import OuterRun
from tests.scenarios.simulator.policy import ROUNDS, Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.rounds_truth import Exact, Floats, RoundsTruth, bf16, exact, nothing, plus

_STEP_S = 10.0
_FALLS = 0.01
"""How often a bit of the weights falls over, in a round."""
Settings = dict[str, Any]


@dataclass(slots=True)
class Disk:
    """What a trainer's own checkpoint holds: its saved state, and the mass that it stands for. It outlives it."""

    state: dict[str, Any] | None = None
    mass: Exact = field(default_factory=nothing)


class Rounds:
    """One life of a member.

    Attributes:
        settings: that all members give alike.
        disk: where it saves its state; None: it does not.
    """

    def __init__(self, process: Process, truth: RoundsTruth, name: str, settings: Settings, disk: Disk | None) -> None:
        self._process, self._truth, self._name = process, truth, name
        self._world, self._rng = process.world, process.world.rng
        self._settings, self._disk = settings, disk
        self._noise = np.random.default_rng(self._rng.getrandbits(32))
        self._collected = nothing()
        self._broken = False
        self._term, self._restarts = "", truth.restarts
        self._model = self._begin()

    def live(self, until: Callable[[], bool] | None = None) -> None:
        """Work in rounds, until a crash, a twin, or enough of it; with ``until``, plainly, until that is so."""
        self._process.backend = self._rng.choice(("numba", "numba", "reference"))
        registry = self._process.registry(dtype="bf16")
        options = OuterOptions(
            self._name,
            grace_s=self._rng.choice((5.0, 30.0, 120.0)),
            takeover_s=self._rng.choice((10.0, 30.0)),
            poll_s=self._rng.choice((2.0, 5.0)),
            **self._settings,
        )
        runtime = registry._runtime
        real = runtime.outer_publisher

        def publisher() -> Publisher:
            made = real()
            push = made.push

            def pushed(*arguments: Any) -> PushFuture:
                future = push(*arguments)
                self._process.work()
                return future

            made.push = pushed  # type: ignore[method-assign]
            return made

        runtime.outer_publisher = publisher  # type: ignore[method-assign]
        self._session = OuterRun(runtime).session(self._tensors, options)
        self._restore()
        if not self._done(self._session.join):
            return
        self._joined()
        work = self._rng.choice((self._by_steps, self._by_parts, self._overlapping))
        while until is not None and not until():
            self._by_parts()
        while until is None and work():
            self._world.pause(self._rng.choice((0.1, 1.0, 1.0, 1.0, 30.0)) * self._rng.random() * _STEP_S)
            if self._rng.random() < 0.4 and self._disk is not None:
                self._save(self._disk)
            if self._rng.random() < 0.01:
                self._change()
            if self._rng.random() < 0.01:
                break
        if not self._broken and self._truth.holds(self._name, self._term) and (until or self._rng.random() < 0.7):
            self._done(self._session.leave)
        if until is None:
            self._world.pause(self._rng.uniform(1.0, 300.0))

    # -- what a trainer does ---------------------------------------------------------------------------------------

    def _begin(self) -> Floats:
        """Draw a model; each member has others, so that it shows whose the run begins with."""
        model: Floats = (self._noise.standard_normal(len(Policy(ROUNDS).bits) // 2) * 0.02).astype(np.float32)
        self._truth.begins(bf16(model))
        self._tensors, at = dict[str, Floats](), 0
        for name, tensor in Policy(ROUNDS).tensors.items():
            self._tensors[name] = model[at : at + tensor.size].reshape(tensor.shape)
            at += tensor.size
        return model

    def _train(self) -> None:
        """Make an inner step: small, large, none; now and then NaN, which is refused, and given up."""
        size = self._rng.choice((1e-5, 1e-5, 1e-5, 3e-4, 1e-8, 0.0))
        self._model -= (self._noise.standard_normal(len(self._model)) * size).astype(np.float32)

    def _by_steps(self) -> bool:
        """Train as the tutorial does."""
        trained_on = False
        while True:
            self._train()
            if self._rng.random() < 0.01:
                self._model[self._rng.randrange(len(self._model))] = np.nan
            ended, again = self._once(self._session.step)
            if again and self._rng.random() < 0.5:
                if not self._done(self._session.finish):
                    return False
                ended = True
            elif again:
                trained_on = True
                continue
            if ended is None:
                return False
            if ended:
                return self._look(model=not trained_on)

    def _by_parts(self) -> bool:
        """Contribute, now and then early; wait; apply."""
        steps = self._rng.randint(1, 3)
        for _ in range(steps):
            self._train()
        if self._rng.random() < _FALLS and self._process.weather.trouble:
            self._flip()
        session = self._session
        if not self._done(lambda: session.contribute(steps)) or not self._look():
            return False
        return self._done(session.await_round) and self._done(session.apply) and self._look(model=True)

    def _overlapping(self) -> bool:
        """Train on while the round ends."""
        self._train()
        ended, again = self._once(lambda: self._session.step(wait=False))
        return again or (ended is not None and self._look())

    def _change(self) -> None:
        """Let a later round be of another learning rate."""
        later = self._truth.rounds + 1 + self._rng.randrange(1, 40)
        lr = self._rng.choice((0.5, 0.7))
        try:
            self._session.change(from_round=later, lr=lr)
        except (StoreUnavailable, CorruptObject):
            pass
        except InvalidArgument as error:
            if self._truth.rounds + 1 < later:
                self._world.fail(f"{self._who}: round {later} has not begun: {error!r}")

    def _flip(self) -> None:
        """Let a bit of the weights that all hold fall over, where BF16 shows it."""
        theta = self._session.weights.theta
        theta.view(np.uint32)[self._rng.randrange(len(theta))] ^= np.uint32(1 << self._rng.randrange(16, 23))
        self._broken = True
        self._truth.count("weights that fell over")

    def _save(self, disk: Disk) -> None:
        try:
            state = self._session.state_dict()
        except InvalidModel:
            return
        mass = state["residual"]
        if state["attempt"] in self._truth.counted:
            mass = state["rest"]
        disk.state = json.loads(json.dumps(state, default=lambda one: one.tolist()))
        disk.mass = plus(exact(np.asarray(mass)), self._sent())
        self._truth.count("saved")

    def _restore(self) -> None:
        disk = self._disk
        if disk is None or disk.state is None or self._rng.random() < 0.3:
            return
        floats = {name: np.array(disk.state[name], np.float32) for name in ("residual", "rest") if name in disk.state}
        self._session.load_state_dict(disk.state | floats)

    # -- what must be true -----------------------------------------------------------------------------------------

    def _joined(self) -> None:
        """Begin to keep account; what was restored was not sent meanwhile, or is nothing."""
        weights = self._session.weights
        real, residual = weights.collect, exact(weights.residual)
        if any(residual):
            assert self._disk is not None
            if plus(residual, self._sent()) != self._disk.mass:
                self._world.fail(f"{self._who}: what it has not sent was restored, though it has sent of it since")
            self._truth.count("restored")
        self._collected = plus(residual, self._sent())
        self._term = self._session.member._held_term()

        def collect(*arguments: Any) -> None:
            before = exact(weights.residual)
            real(*arguments)
            self._collected = plus(self._collected, plus(exact(weights.residual), before, -1))

        weights.collect = collect  # type: ignore[method-assign]
        self._look(model=True)

    def _look(self, *, model: bool = False) -> bool:
        """See that the weights are those of the fold, and that nothing is lost or sent twice."""
        session, fold = self._session, self._truth.fold
        if self._broken:
            return True
        assert fold is not None
        if session.round >= fold.round:
            self._world.fail(f"{self._who} has made the step of round {session.round}, and {fold.round} is open")
        if not self._truth.holds(self._name, self._term):
            return True  # it works on what may have been replaced, until it hears of that
        weights, (theta, momentum) = session.weights, fold.weights[session.round]
        if (weights.theta.tobytes(), weights.momentum.tobytes()) != (theta.tobytes(), momentum.tobytes()):
            self._world.fail(f"{self._who} has other weights than those of round {session.round}")
        member = session.member
        if model and self._model.tobytes() != theta.tobytes():
            self._world.fail(f"{self._who} has another model than that of round {session.round}")
        if member.attempt is None and self._truth.holds(self._name, self._term):
            here = plus(exact(weights.residual), self._sent())
            if here != self._collected:
                self._world.fail(f"{self._who}: what it has learnt is not what it has sent, and what waits")
        return True

    def _sent(self) -> Exact:
        return self._truth.sent.get(self._name, nothing())

    @property
    def _who(self) -> str:
        return self._process.link.who

    def _done(self, call: Callable[[], object]) -> bool:
        """Make a call until it works; false: this life is over."""
        while True:
            done, again = self._once(call)
            if not again:
                return done is not None
            self._world.pause(self._rng.uniform(0.1, 10.0))

    def _once(self, call: Callable[[], object]) -> tuple[bool | None, bool]:
        """Make a call; return whether it gave something (None: this life is over), and whether to make it again."""
        damaged = self._process.link.damaged
        try:
            return call() is not None, False
        except StoreUnavailable:
            return False, True
        except InvalidModel as error:
            if np.isfinite(self._model).all():
                self._world.fail(f"{self._who}: refused for no reason: {error!r}")
            self._session.reset()
            self._truth.count("NaN refused")
            return False, True
        except Fenced as error:
            if self._truth.holds(self._name, self._term):
                self._world.fail(f"{self._who}: fenced for no reason: {error!r}")
            self._truth.count("twins fenced")
        except Diverged as error:
            if self._truth.astray or self._truth.restarts > self._restarts:
                self._truth.count("found others' push")
            elif not self._broken:
                self._world.fail(f"{self._who}: {error!r}")
            else:
                self._truth.count("diverged")
        except QuorumLost as error:
            if not self._truth.lost_quorum(self._session.member.state.seq):
                self._world.fail(f"{self._who}: given up for no reason: {error!r}")
            self._truth.count("quorum lost")
            return False, True
        except (CorruptObject, NotFound, BaseMismatch) as error:
            if self._process.link.damaged == damaged:
                self._world.fail(f"{self._who}: failed for no reason: {error!r}")
            return False, True
        except PulseError as error:
            self._world.fail(f"{self._who}: failed for no reason: {error!r}")
        return None, False
