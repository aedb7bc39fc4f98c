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

    # The prompt is most of the tokens and the same for the whole group: it goes through the model once.
    prompt = torch.tensor([rollout.prompt])
    cache = model(input_ids=prompt[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(len(tokens))
    inputs = torch.cat([prompt[:, -1:].expand(len(tokens), 1), tokens[:, :-1]], dim=1)
    # Attention is causal: what pads a completion on its right reaches none of its tokens.
    logits = model(input_ids=inputs, past_key_values=cache, use_cache=True).logits.float()

    chosen = logits.gather(-1, tokens[:, :, None]).squeeze(-1) - logits.logsumexp(-1)
    ratio = torch.exp(chosen - before)
    gain = torch.tensor(gains)[:, None]
    kept = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -(kept * mask).sum() / mask.sum()
