"""Outer rounds beside what others do, written down plainly: PULSELoCo with float32 values, and dense DiLoCo."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from pulse_kernels.protocol import LEVELS
from pulse_registry.outer.mean import GroupLevels
from pulse_registry.outer.session import OuterSession
from tests.support.installed import needs
from tests.unit.outer.sessions import Arrays, Site, bits, drawn, flat, train

Floats = npt.NDArray[np.float32]
F = np.float32
MEMBERS = ("a", "b", "c")


class Party:
    """Members of rounds, and for each of them a model that a restatement trains in the same way."""

    def __init__(self, **options: Any) -> None:
        self.site = Site()
        self.models: dict[str, Arrays] = {name: drawn() for name in MEMBERS}
        self.sessions: dict[str, OuterSession] = {
            name: self.site.joined(model, name, quorum=3, **options) for name, model in self.models.items()
        }

    @property
    def theta(self) -> Floats:
        return self.sessions["a"].weights.theta

    def round(self, number: int, order: tuple[str, ...] = MEMBERS) -> dict[str, Floats]:
        """Make a round; return the weights of each member after its inner steps."""
        local = {}
        for k, name in enumerate(MEMBERS):
            train(self.models[name], 100 * number + k, 1e-4 * (k + 1))
            local[name] = flat(self.models[name]).copy()
        for name in order:
            assert self.sessions[name].contribute(1).counts
        for name in order:
            self.sessions[name].finish()
        return local


def bf16(values: Floats) -> npt.NDArray[np.uint16]:
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def pulseloco(theta: Floats, momentum: Floats, residuals: dict[str, Floats], local: dict[str, Floats]) -> Floats:
    """Make a round of PULSELoCo by its rule: send s, whole, where the BF16 weight would change by it; keep the rest."""
    mean = np.zeros_like(theta)
    for name in sorted(local):
        s = residuals[name] + (theta - local[name])
        fired = bf16(theta) != bf16(theta - s)
        residuals[name] = np.where(fired, F(0), s)
        mean += np.where(fired, s, F(0))
    mean = mean / F(len(local))
    momentum[:] = F(0.9) * momentum + mean
    stepped: Floats = theta - F(0.7) * (mean + F(0.9) * momentum)
    return stepped


def test_gain_1_with_float32_values_is_the_rule_of_the_paper_bit_for_bit() -> None:
    party = Party(gain=1.0, values="float32")
    theta = party.theta.copy()
    momentum, residuals = np.zeros_like(theta), {name: np.zeros_like(theta) for name in MEMBERS}
    for number in range(5):
        theta = pulseloco(theta, momentum, residuals, party.round(number, ("c", "a", "b")))
        assert bits(party.theta) == bits(theta)
        for name, session in party.sessions.items():
            assert bits(session.weights.momentum) == bits(momentum)
            kept = session.weights.residual
            assert bits(kept) == bits(residuals[name])
    assert all(held.any() for held in residuals.values())
    shares = [session.last.density for session in party.sessions.values() if session.last]
    assert all(0 < share < 1 for share in shares)


@pytest.mark.slow
def test_without_a_gate_a_step_of_float32_values_is_diloco_within_an_ulp() -> None:
    """Beside torch's SGD over the mean of all pseudo-gradients, which rounds in its own way."""
    needs("torch")
    import torch

    party = Party(gain=None, values="float32")
    parameter = torch.nn.Parameter(torch.from_numpy(party.theta.copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(6):
        parameter.data = torch.from_numpy(party.theta.copy())  # one step's roundings at a time
        before, local = party.theta.copy(), party.round(number)
        deltas = [parameter.detach() - torch.from_numpy(one) for one in local.values()]
        parameter.grad = torch.stack(deltas).mean(0)
        optimizer.step()
        theirs = parameter.detach().numpy()
        largest = np.max(np.abs([before, theirs, before - theirs]), axis=0)  # of the weight and of its step
        assert (np.abs(party.theta - theirs) <= np.spacing(largest)).all()
        assert np.abs(party.theta - local["a"]).max() > 100 * np.spacing(F(0.02))  # it moved by far more than that
        assert not any(session.weights.residual.any() for session in party.sessions.values())


def test_dense_diloco_over_all_rounds_stays_with_a_restatement_bit_for_bit() -> None:
    party = Party(gain=None, values="float32")
    theta, momentum = party.theta.copy(), np.zeros_like(party.theta)
    for number in range(5):
        local = party.round(number, ("b", "c", "a"))
        mean = ((theta - local["a"]) + (theta - local["b"]) + (theta - local["c"])) / F(3)
        momentum = F(0.9) * momentum + mean
        theta = theta - F(0.7) * (mean + F(0.9) * momentum)
        assert bits(party.theta) == bits(theta)


@pytest.mark.parametrize("options", [{}, {"gain": 1.0}, {"gain": None}, {"values": "float32"}])
def test_who_lowers_a_weight_lowers_it_for_all(options: dict[str, Any]) -> None:
    party = Party(**options)
    before = party.theta.copy()
    for name in MEMBERS:
        party.models[name]["w"][0, 0] -= 1e-3
        party.models[name]["w"][0, 1] += 1e-3
        party.sessions[name].contribute(1)
    for session in party.sessions.values():
        session.finish()
    moved = party.theta - before
    where = flat({"b": np.zeros(20, F), "w": np.arange(1, 301, dtype=F).reshape(30, 10)})
    lowered, raised = int(np.flatnonzero(where == 1)[0]), int(np.flatnonzero(where == 2)[0])
    assert moved[lowered] == pytest.approx(-1e-3 * 0.7 * 1.9, rel=0.5)  # a level is of one bit here
    assert moved[raised] == pytest.approx(1e-3 * 0.7 * 1.9, rel=0.5)
    assert np.count_nonzero(moved) == 2


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("gain", [1.0, 7.0])
def test_the_gate_fires_where_bf16_bits_differ_and_level_0_stays_whole(gain: float, cut: bool) -> None:
    party = Party(gain=gain)
    train(party.models["a"], 5, 3e-5)
    if cut:
        party.models["a"]["w"][2, 2] = -200.0
    weights = party.sessions["a"].weights
    theta, local = party.theta.copy(), flat(party.models["a"]).copy()
    seen = list[list[tuple[Any, GroupLevels]]]()
    settle = weights.settle
    weights.settle = lambda sent: (seen.append(list(sent)), settle(sent))  # type: ignore[method-assign]
    party.sessions["a"].contribute(1)
    s = theta - local
    [(_, part)] = seen[0]
    changes = bf16(theta) != bf16(theta - F(gain) * s)
    levels = np.clip(np.rint(np.ldexp(s.astype(np.float64), -part.exponent)), -LEVELS, LEVELS)
    assert part.index.tolist() == np.flatnonzero(changes & (levels != 0)).tolist()
    assert part.levels.tolist() == levels[part.index].tolist()
    zero = changes & (levels == 0)
    assert zero.any()
    assert (np.abs(levels).max() == LEVELS) == cut
    after = weights.residual
    kept = np.ones(len(s), bool)
    kept[part.index] = False
    assert bits(after[kept]) == bits(s[kept])
    sent = dict(zip(part.index.tolist(), part.levels.tolist(), strict=True))
    for k in range(len(s)):  # what is sent and what is kept make s, exactly
        level = sent.get(k, 0) * Fraction(2) ** part.exponent
        assert level + Fraction(float(after[k])) == Fraction(float(s[k]))
