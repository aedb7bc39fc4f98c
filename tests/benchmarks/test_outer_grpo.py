"""The comparison of GRPO in outer rounds: its methods are what they say, its answers are what GRPO takes them for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.installed import needs

needs("torch")
needs("transformers")
import torch  # noqa: E402

from benchmarks.outer import grpo  # noqa: E402
from benchmarks.outer.inner import Floats, Inner  # noqa: E402
from benchmarks.outer.learning import METHODS, Plan, learn  # noqa: E402
from benchmarks.outer.methods import Dense, Levels, Method, Sent, Values  # noqa: E402
from benchmarks.outer.sorting import Recipe, Sorting  # noqa: E402
from benchmarks.results import write_result  # noqa: E402
from pulse_registry.outer.mean import GroupLevels  # noqa: E402

PLAN = Plan(trainers=2, rounds=2, inner_steps=2)
RECIPE = Recipe(
    length=2, width=48, layers=1, heads=2, first_batch=32, first_steps=90, until=0.1, groups=2, group_size=8
)
SETTINGS = grpo.Settings(PLAN, RECIPE, lr=1e-4)


@pytest.fixture(scope="module")
def task() -> Iterator[Sorting]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small for more
    yield Sorting(3, PLAN.inner_steps, RECIPE)
    torch.set_num_threads(threads)


class Watched:
    """A method, and whether each trainer's residual and what it sent were all that it had to send."""

    def __init__(self, method: Levels, *, feedback: bool) -> None:
        self._method, self._feedback = method, feedback
        self._residuals: dict[int, Floats] = {}
        self.sent, self.kept = 0, 0

    def contribute(self, trainer: int, local: Floats) -> Sent:
        """See Method."""
        method = self._method
        before, theta = self._residuals.get(trainer), method.outer.theta
        moved = theta - np.concatenate([span for _, spans in method.masters(local).cells() for span in spans])
        whole = (moved if before is None else before + moved).astype(np.float64)
        found = method.contribute(trainer, local)
        for group, part in method.parts:
            assert isinstance(part, GroupLevels)
            whole[group.start + part.index.astype(np.int64)] -= np.ldexp(part.levels.astype(np.float64), part.exponent)
        residual = method.outer.residual
        assert residual.astype(np.float64).tolist() == (whole if self._feedback else 0 * whole).tolist()
        self._residuals[trainer] = residual.copy()
        self.sent, self.kept = self.sent + found.entries, self.kept + int((residual != 0).sum())
        return found

    def step(self) -> None:
        """See Method."""
        self._method.step()

    def weights(self) -> Floats:
        """See Method."""
        return self._method.weights()


@pytest.mark.slow
def test_what_levels_do_not_send_is_kept_bit_for_bit(task: Sorting) -> None:
    method = METHODS["levels, gain 14"](PLAN, task)
    assert isinstance(method, Levels)
    watched = Watched(method, feedback=True)
    learn(PLAN, task, SETTINGS.lr, watched, ())
    assert watched.sent > 0 < watched.kept


def test_without_feedback_it_is_dropped(task: Sorting) -> None:
    method = METHODS["levels, gain 1, no feedback"](PLAN, task)
    assert isinstance(method, Levels)
    watched = Watched(method, feedback=False)
    learn(PLAN, task, SETTINGS.lr, watched, ())
    assert watched.sent > 0 == watched.kept


def test_values_behind_a_gate_that_passes_all_are_diloco_bit_for_bit(task: Sorting) -> None:
    start = task.model.start.numpy()
    methods: list[Method] = [
        Dense(start, PLAN.trainers, PLAN.rates),
        Values(start, PLAN.trainers, PLAN.rates, 1e30),
        Values(start, PLAN.trainers, PLAN.rates, 1.0),
    ]
    dense, passed, gated = (
        (learn(PLAN, task, SETTINGS.lr, method, (1, 2))[0], method.weights().tobytes()) for method in methods
    )
    assert dense == passed != gated


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rewards(task: Sorting) -> None:
    def curve(of: Sorting, seed: int) -> grpo.Learnt:
        return replace(grpo.measure(SETTINGS, of, seed, "levels, gain 14"), seconds=0)

    first = curve(task, 3)
    assert first == curve(task, 3) == curve(Sorting(3, PLAN.inner_steps, RECIPE), 3)
    assert first.rewards != curve(Sorting(4, PLAN.inner_steps, RECIPE), 3).rewards
    assert list(first.rewards) == [0, 2]
    assert 0 < first.rewards[0] < 1


def test_a_round_learns_from_answers_of_the_weights_that_it_began_with(task: Sorting) -> None:
    """At the first step all ratios are 1, and gains have mean 0; later ones have a loss as weights have moved."""
    weights = torch.nn.Parameter(task.model.start.clone())
    inner = Inner(task.model, weights, 1e-2)
    task.spread.clear()
    losses = [abs(inner.step(task.loss(0, step))) for step in range(6)]
    assert len(task.spread) == 6 * RECIPE.groups
    assert max(losses[::2]) < 1e-5
    assert max(losses[1::2]) > 1e-3


def test_the_held_out_reward_is_the_probability_of_the_right_answers(task: Sorting) -> None:
    """Of a model that says the same of every token, each answer of two digits is as likely as any other of 16 x 16."""
    assert task.evaluate(torch.zeros(task.model.cells)) == pytest.approx(1 / 16**2)
    assert task.evaluate(task.model.start) > RECIPE.until


def test_a_result_file_has_every_method_and_runs_go_on_from_it(task: Sorting, tmp_path: Path) -> None:
    runs = [grpo.measure(SETTINGS, task, 3, method) for method in grpo.COMPARED]
    path = tmp_path / "grpo.json"
    write_result(path, grpo.document(SETTINGS, task.model.cells, runs))
    assert grpo.made_before(path, SETTINGS) == runs
    assert grpo.made_before(path, replace(SETTINGS, lr=1e-3)) == []
    assert grpo.made_before(tmp_path / "none.json", SETTINGS) == []

    rows = {row.key: row.value for row in grpo.rows(runs, task.model.cells)}
    assert all(f"{method}.share" in rows for method in grpo.COMPARED)
    assert rows["DiLoCo.share"] == rows["DiLoCo.factor"] == 1
    assert rows["DiLoCo.density"] == 100 > rows["levels, gain 1.density"] > 0
    assert rows["start"] == 100 * runs[0].rewards[0]
    assert 0 < rows["one trainer.changed"] <= 100
    assert grpo.rows(runs[:-1], task.model.cells) == []
