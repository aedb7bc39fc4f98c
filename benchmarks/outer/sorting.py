"""A task whose answers can be checked: a small Llama sorts digits; it has half learnt to, and goes on by GRPO.

It is first trained on sorted digits, until about a quarter of its answers are right: then groups of sampled answers
have rewards with spread. A reward is 1 for the sorted digits, and 0 for all else. The answers of a round are sampled by
the weights that the round begins with, as workers do that pull each version; the inner steps learn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.outer.inner import FlatModel, Inner, Loss
from pulse_registry.demo.grpo import advantages, policy_loss
from pulse_registry.demo.kv_cache import cache_name
from pulse_registry.demo.messages import Rollout
from pulse_registry.demo.policy import empty_model

DIGITS, END = 10, 10
"""Tokens 0 to 9 are digits; one more ends the prompt."""
CLIP, FIRST_RATE, KEPT = 0.2, 1e-3, 8
"""Of the ratio in GRPO; of the first training; one prompt in so many is held out, by the sum of its digits."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Of the model, its first training, and GRPO.

    Attributes:
        length: digits of a prompt, and of its answer.
        width, layers, heads: of the transformer.
        first_batch, first_steps, until: the first training: prompts a step, steps at most, and the share of right
            answers at which it ends.
        groups, group_size: of the answers that an inner step learns from.
        held_out: prompts that the reward is of.
    """

    length: int = 6
    width: int = 160
    layers: int = 3
    heads: int = 5
    first_batch: int = 64
    first_steps: int = 2000
    until: float = 0.25
    groups: int = 1
    group_size: int = 16
    held_out: int = 256


class Sorting:
    """Prompts, the model that has half learnt to sort, and losses of the trainers' answers.

    Attributes:
        model: shared by all; ``model.start`` is what it has learnt first.
        spread: of each group that was sampled, whether its rewards differ: there is nothing to learn from the others.
    """

    def __init__(self, seed: int, inner_steps: int, recipe: Recipe) -> None:
        """Train on sorted digits."""
        self._seed, self._inner_steps, self._recipe = seed, inner_steps, recipe
        torch.manual_seed(seed)
        self.model = FlatModel(empty_model(_config(recipe), torch.float32))
        draw = torch.Generator().manual_seed(seed)
        self._held_out = self._prompts(draw, recipe.held_out, held_out=True)
        self._made = dict[int, list[tuple[Rollout, list[float]]]]()
        self.spread: list[bool] = []
        self._learn_first(draw)

    def loss(self, trainer: int, step: int) -> Loss:
        """Return the loss of an inner step; that of a round's first step samples the answers of all its steps."""
        at = step % self._inner_steps

        def found(module: Any) -> torch.Tensor:
            if not at:
                self._made[trainer] = self._answers(trainer, step)
            groups = self._made[trainer][at :: self._inner_steps]
            return torch.stack([policy_loss(module, *group, CLIP) for group in groups]).mean()

        return found

    def evaluate(self, weights: torch.Tensor) -> float:
        """Return the reward to expect on held-out prompts from float32 weights, seen as BF16.

        It is not sampled: there is one right answer, whose probability the model tells.
        """
        self.model.show(weights)
        with torch.no_grad():
            right = -self._surprise(self._held_out).sum(1)
        return float(right.double().exp().mean())

    def _learn_first(self, draw: torch.Generator) -> None:
        weights = torch.nn.Parameter(self.model.start.clone())
        inner = Inner(self.model, weights, FIRST_RATE)
        for step in range(self._recipe.first_steps):
            if step % 10 == 0 and self.evaluate(weights.detach()) >= self._recipe.until:
                break
            prompts = self._prompts(draw, self._recipe.first_batch)
            inner.step(lambda _, prompts=prompts: self._surprise(prompts).mean())  # type: ignore[misc]
        self.model.start = weights.detach().bfloat16().float()

    def _surprise(self, prompts: torch.Tensor) -> torch.Tensor:
        """Return -log p of each digit of the right answers."""
        answers = prompts[:, :-1].sort(1).values
        tokens = torch.cat([prompts, answers[:, :-1]], 1)
        logits = self.model.module(input_ids=tokens, use_cache=False, logits_to_keep=answers.shape[1]).logits
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), answers, reduction="none")

    def _answers(self, trainer: int, step: int) -> list[tuple[Rollout, list[float]]]:
        """Sample a trainer's answers of a round with the weights that are shown; return them with their advantages."""
        recipe = self._recipe
        draw = torch.Generator().manual_seed((self._seed * 1000 + trainer) * 1_000_000 + step)
        prompts = self._prompts(draw, self._inner_steps * recipe.groups)
        tokens, logprobs = self._sample(prompts.repeat_interleave(recipe.group_size, 0), draw)
        right = (tokens == prompts[:, :-1].sort(1).values.repeat_interleave(recipe.group_size, 0)).all(1)
        found = []
        for number, prompt in enumerate(prompts.tolist()):
            rows = slice(number * recipe.group_size, (number + 1) * recipe.group_size)
            made = Rollout(
                number=number,
                worker="",
                version=0,
                prompt=tuple(prompt),
                completions=tuple(map(tuple, tokens[rows].tolist())),
                logprobs=tuple(map(tuple, logprobs[rows].tolist())),
            )
            gains = advantages(right[rows].double().tolist())
            self.spread.append(any(gains))
            found.append((made, gains))
        return found

    @torch.no_grad()
    def _sample(self, prompts: torch.Tensor, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Answer each prompt by the model's own distribution; return the tokens, and log p of each."""
        tokens, logprobs, last, cache = [], [], prompts, {cache_name(self.model.module): None}
        for _ in range(self._recipe.length):
            said = self.model.module(input_ids=last, use_cache=True, logits_to_keep=1, **cache)
            cache, distribution = {name: said[name] for name in cache}, said.logits[:, -1].log_softmax(-1)
            last = torch.multinomial(distribution.exp(), 1, generator=draw)
            tokens.append(last)
            logprobs.append(distribution.gather(1, last))
        return torch.cat(tokens, 1), torch.cat(logprobs, 1)

    def _prompts(self, draw: torch.Generator, count: int, *, held_out: bool = False) -> torch.Tensor:
        """Draw prompts of random digits, of those that are held out or of the others."""
        found = torch.empty(0, self._recipe.length, dtype=torch.long)
        while len(found) < count:
            digits = torch.randint(DIGITS, (2 * KEPT * count, self._recipe.length), generator=draw)
            found = torch.cat([found, digits[(digits.sum(1) % KEPT == 0) == held_out]])
        return torch.nn.functional.pad(found[:count], (0, 1), value=END)


def _config(recipe: Recipe) -> Mapping[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 16,
        "hidden_size": recipe.width,
        "intermediate_size": 3 * recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "bos_token_id": END,
        "eos_token_id": None,
        "pad_token_id": END,
    }
