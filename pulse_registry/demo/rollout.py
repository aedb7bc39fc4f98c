"""Answering prompts with the weights that a worker holds."""

from __future__ import annotations

from typing import Any

from pulse_registry.demo.kv_cache import cache_name
from pulse_registry.demo.messages import Prompt, Rollout


def answer(
    model: Any, prompt: Prompt, *, worker: str, version: int, group_size: int, new_tokens: int, seed: int
) -> Rollout:
    """Complete a prompt ``group_size`` times, sampling from the model's own distribution (temperature 1)."""
    import torch

    torch.manual_seed(seed + prompt.number)
    tokens = torch.tensor([prompt.tokens] * group_size)
    with torch.inference_mode():
        # The prompt goes through the model once, not once a completion; ``generate`` goes on from its cache.
        cached = cache_name(model)
        cache = model(input_ids=tokens[:1, :-1], use_cache=True, logits_to_keep=1)[cached]
        cache.batch_repeat_interleave(group_size)
        made = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            return_dict_in_generate=True,
            output_logits=True,
            **{cached: cache},
        )
    chosen = made.sequences[:, len(prompt.tokens) :]
    logprobs = torch.stack([logits.float().log_softmax(-1) for logits in made.logits], dim=1)
    logprobs = logprobs.gather(-1, chosen[:, :, None]).squeeze(-1)
    lengths = [_length(row, model.config.eos_token_id) for row in chosen.tolist()]
    return Rollout(
        number=prompt.number,
        worker=worker,
        version=version,
        prompt=prompt.tokens,
        completions=tuple(tuple(row[:n]) for row, n in zip(chosen.tolist(), lengths, strict=True)),
        logprobs=tuple(tuple(row[:n]) for row, n in zip(logprobs.tolist(), lengths, strict=True)),
    )


def _length(tokens: list[int], end: int | list[int] | None) -> int:
    """Return how many tokens were chosen, the end mark included; what follows it is padding."""
    ends = {end} if isinstance(end, int) else set(end or ())
    return next((position + 1 for position, token in enumerate(tokens) if token in ends), len(tokens))
