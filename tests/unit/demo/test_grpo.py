"""The task's rewards, the advantages within a group, and the loss with its shared prompt."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from pulse_registry.demo.grpo import advantages, policy_loss
from pulse_registry.demo.messages import Rollout
from pulse_registry.demo.sums import FORMAT_SHARE, Sum, is_right, reward, sums


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("12 + 5 = 17", True),
        ("The answer is 17.", True),
        ("17", True),
        ("12 + 5 = 18", False),
        ("117", False),
        ("1 7", False),
        ("", False),
    ],
)
def test_a_completion_is_right_when_it_holds_the_sum_as_a_number(text: str, right: bool) -> None:
    assert is_right(Sum(12, 5), text) is right


def test_numbers_without_idle_talk_earn_the_share_for_format() -> None:
    task = Sum(2, 2)
    assert reward(task, "2 + 2 = 4") == pytest.approx(1 + FORMAT_SHARE)
    assert reward(task, "2 + 2 = 5") == pytest.approx(FORMAT_SHARE)
    assert reward(task, "four") == 0
    assert reward(task, "") == 0
    assert 1 < reward(task, "4, clearly") < 1 + FORMAT_SHARE


def test_the_same_seed_asks_the_same_sums() -> None:
    first, again, other = (list(itertools.islice(sums(seed), 20)) for seed in (1, 1, 2))
    assert first == again != other


def test_advantages_have_mean_zero_and_deviation_one() -> None:
    gains = advantages([1.0, 0.0, 0.0, 1.1])
    assert sum(gains) == pytest.approx(0)
    assert math.sqrt(sum(gain**2 for gain in gains) / len(gains)) == pytest.approx(1)
    assert gains[3] > gains[0] > gains[1] == gains[2]


def test_a_group_of_equal_rewards_has_no_advantages() -> None:
    assert advantages([0.1] * 8) == [0.0] * 8


@pytest.fixture(scope="module")
def model() -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from pulse_registry.demo.policy import empty_model
    from pulse_registry.demo.toy import toy_config

    torch.manual_seed(0)
    return empty_model(toy_config(), torch.float32)


def logprobs(model: Any, prompt: tuple[int, ...], completion: tuple[int, ...]) -> Any:
    """Score one completion in the plain way: prompt and completion together, nothing shared, nothing padded."""
    import torch

    logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)


@pytest.mark.parametrize("completions", [((53, 0), (54, 55, 56, 57, 0), (58, 59, 60)), ((53,), (54,), (0,))])
def test_the_loss_with_a_shared_prompt_has_the_gradient_of_the_plain_one(
    model: Any, completions: tuple[tuple[int, ...], ...]
) -> None:
    import torch

    prompt, gains = (50, 44, 51, 62), [1.2, -0.2, -1.0]
    before = [tuple((logprobs(model, prompt, row).detach() - 0.05).tolist()) for row in completions]
    rollout = Rollout(0, "worker", 0, prompt, completions, tuple(before))

    model.zero_grad()
    loss = policy_loss(model, rollout, gains, clip=0.2)
    loss.backward()
    shared = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.zero_grad()
    terms = [
        gain * torch.exp(logprobs(model, prompt, row) - torch.tensor(old))
        for row, old, gain in zip(completions, before, gains, strict=True)
    ]
    plain = -torch.cat(terms).sum() / sum(len(row) for row in completions)
    plain.backward()

    torch.testing.assert_close(loss, plain)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(shared[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


def test_tokens_whose_ratio_has_left_the_clip_range_in_the_gain_s_favour_teach_nothing(model: Any) -> None:
    prompt, completion = (50, 44, 51, 62), (53, 54)
    much_less_likely_before = tuple((logprobs(model, prompt, completion).detach() - 1.0).tolist())
    rollout = Rollout(0, "worker", 0, prompt, (completion,), (much_less_likely_before,))
    model.zero_grad()
    loss = policy_loss(model, rollout, [1.0], clip=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(-1.2)
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_a_worker_reports_the_probabilities_that_its_model_gave_to_what_it_chose(model: Any) -> None:
    import torch

    from pulse_registry.demo.messages import Prompt
    from pulse_registry.demo.rollout import answer

    prompt = Prompt(3, (50, 44, 51, 62))
    made, again = (answer(model, prompt, worker="w", version=7, group_size=3, new_tokens=5, seed=1) for _ in range(2))
    assert made == again
    assert (made.number, made.version, made.prompt) == (3, 7, prompt.tokens)
    assert len(set(made.completions)) > 1
    for completion, told in zip(made.completions, made.logprobs, strict=True):
        assert 1 <= len(completion) == len(told) <= 5
        torch.testing.assert_close(torch.tensor(told), logprobs(model, prompt.tokens, completion).detach())
