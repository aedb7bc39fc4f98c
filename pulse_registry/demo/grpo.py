"""GRPO: group-relative advantages, and a clipped policy gradient on the tokens of the completions.

Shao et al. 2024, "DeepSeekMath", section 4.1, without the KL term. The completions were made with older weights, in
BF16; the ratio is taken to what the worker's model said when it made them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from pulse_registry.demo.messages import Rollout


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return how much better each completion is than its group: (reward - mean) / standard deviation.

    A group of equal rewards teaches nothing: its advantages are 0.
    """
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    if spread < 1e-6:
        return [0.0] * len(rewards)
    return [(reward - mean) / spread for reward in rewards]


def policy_loss(model: Any, rollout: Rollout, gains: Sequence[float], clip: float) -> Any:
    """Return the loss of one group, a scalar tensor; its completions are of equal weight a token.

    Args:
        model: of transformers.
        rollout: a prompt and its completions.
        gains: the advantage of each completion.
        clip: the ratio counts between 1 - clip and 1 + clip.
    """
    import torch

    longest = max(len(tokens) for tokens in rollout.completions)

    def padded(rows: Sequence[Sequence[float]], fill: float) -> list[list[float]]:
        return [[*row, *[fill] * (longest - len(row))] for row in rows]

    tokens = torch.tensor(padded(rollout.completions, 0)).long()
    mask = torch.tensor(padded([[1.0] * len(row) for row in rollout.completions], 0.0))
    before = torch.tensor(padded(rollout.logprobs, 0.0))

    logits = _logits(model, torch.tensor(rollout.prompt), tokens)
    chosen = logits.gather(-1, tokens[:, :, None]).squeeze(-1) - logits.logsumexp(-1)
    ratio = torch.exp(chosen - before)
    gain = torch.tensor(gains)[:, None]
    kept = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -(kept * mask).sum() / mask.sum()


def _logits(model: Any, prompt: Any, tokens: Any) -> Any:
    """Return what the model says before each token of each completion, (completions, tokens, vocabulary).

    The prompt is most of the tokens and the same for the whole group: it goes through the model once, and the
    completions behind it, each of which sees the prompt and itself. It is one call, as FSDP2 needs before a backward.
    """
    import torch

    completions, behind, last = len(tokens), tokens.shape[1] - 1, len(prompt)
    whose = torch.arange(completions).repeat_interleave(behind)
    place = torch.arange(behind).repeat(completions)
    seen = torch.ones(last + len(place), last + len(place)).tril().bool()
    seen[last:, last:] &= whose[:, None] == whose
    logits = (
        model(
            input_ids=torch.cat([prompt, tokens[:, :-1].reshape(-1)])[None],
            position_ids=torch.cat([torch.arange(last), last + place])[None],
            attention_mask=torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None],
            use_cache=False,
            logits_to_keep=len(place) + 1,
        )
        .logits[0]
        .float()
    )
    return torch.cat(
        [logits[:1].expand(completions, 1, -1), logits[1:].reshape(completions, behind, logits.shape[-1])], 1
    )
