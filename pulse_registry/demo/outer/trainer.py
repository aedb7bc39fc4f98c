"""A trainer: GRPO on sums by itself, and outer rounds with others that it never talks to.

``python -m pulse_registry.demo.outer.trainer NAME URL SETTINGS``. It keeps its state after each round; where there is
one, it goes on with that.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import pulse_registry
from pulse_registry.demo.fingerprint import fingerprint
from pulse_registry.demo.grpo import advantages, policy_loss
from pulse_registry.demo.messages import Prompt
from pulse_registry.demo.outer.events import Ended, Joined, Trained, now, tell
from pulse_registry.demo.outer.settings import FIRST, TRAINERS, Settings
from pulse_registry.demo.outer.trained import trained_part
from pulse_registry.demo.policy import Policy, load_policy
from pulse_registry.demo.rollout import answer
from pulse_registry.demo.source import locate
from pulse_registry.demo.sums import reward, sums
from pulse_registry.outer.result import RoundResult
from pulse_registry.outer.session import OuterSession


def main(name: str, url: str, settings: Settings) -> None:
    """Train until the last round has ended."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    policy = load_policy(locate(settings.model), settings.seed)
    part = trained_part(policy.model, settings.layers)
    saved = settings.state_of(name)
    with pulse_registry.open(url, run=settings.run, name=name) as registry:
        if name == FIRST:
            registry.push(0, part)
        elif next(registry.watch(after=-1, timeout=settings.patience), None) is None:
            raise TimeoutError(f"no first version for {settings.patience:.0f} s")
    with pulse_registry.open(url, run=settings.run, name=name) as registry:
        outer = registry.outer(
            part,
            member=name,
            inner_steps=settings.inner_steps,
            gain=settings.gain,
            quorum=settings.quorum,
            grace=settings.grace,
        )
        if saved.exists():
            outer.load_state_dict(_saved(saved))
        with outer:
            unsent = outer.state_dict()["residual"]
            tell(Joined(name, outer.round, int(unsent.count_nonzero()), unsent.numel(), now()))
            del unsent
            _train(name, policy, part, outer, settings)
            theta, momentum = _exact(part), hashlib.sha256(outer.weights.momentum.data).hexdigest()
            tell(Trained(name, outer.round, theta, momentum, fingerprint(part), now()))


def _train(name: str, policy: Policy, part: Mapping[str, Any], outer: OuterSession, settings: Settings) -> None:
    optimizer = torch.optim.AdamW(part.values(), lr=settings.learning_rate, weight_decay=0.0, fused=True)
    learnt = _learn(policy, settings, seed=1000 * (settings.seed + TRAINERS.index(name)) + outer.round)
    while not _ended(outer, settings):
        began, rewards = time.monotonic(), list[float]()
        for _ in range(settings.inner_steps):
            rewards.append(next(learnt))
            optimizer.step()
            optimizer.zero_grad()
        trained = time.monotonic()
        counts, entries, nbytes, result = _end_round(outer, settings)
        ended = time.monotonic()
        _save(outer, name, settings)
        tell(
            Ended(
                trainer=name,
                round=result.round,
                members=result.members,
                late=result.late,
                counts=counts,
                entries=entries,
                nbytes=nbytes,
                cells=result.cells,
                reward=statistics.fmean(rewards),
                inner_s=trained - began,
                outer_s=ended - trained,
                sha256=fingerprint(part),
                rss=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                at=now(),
            )
        )


def _ended(outer: OuterSession, settings: Settings) -> bool:
    last = settings.last
    return last is not None and outer.round >= last


def _end_round(outer: OuterSession, settings: Settings) -> tuple[bool, int, int, RoundResult]:
    """Contribute and make the round's step; what came too late goes out with the round that is open then.

    So does ``OuterSession.step``; but nobody is left to wait for after the last round of this run.
    """
    entries = nbytes = 0
    in_time = True
    while True:
        sent = outer.contribute(settings.inner_steps if in_time else None)
        entries, nbytes = entries + sent.entries, nbytes + sent.nbytes
        outer.await_round()
        result = outer.apply()
        in_time = in_time and sent.counts
        if sent.counts or _ended(outer, settings):
            return in_time, entries, nbytes, result


def _learn(policy: Policy, settings: Settings, seed: int) -> Iterator[float]:
    """Sample a group of completions of each task and leave their gradients; yield their mean reward."""
    model = policy.model
    for number, task in enumerate(sums(seed)):
        model.eval()
        prompt = Prompt(number, tuple(policy.codec.encode(task)))
        made = answer(
            model,
            prompt,
            worker="",
            version=0,
            group_size=settings.group_size,
            new_tokens=settings.new_tokens,
            seed=seed,
        )
        rewards = [reward(task, policy.codec.decode(tokens)) for tokens in made.completions]
        model.train()
        policy_loss(model, made, advantages(rewards), settings.clip).backward()
        yield statistics.fmean(rewards)


def _save(outer: OuterSession, name: str, settings: Settings) -> None:
    """Keep what was not sent, whole or not at all."""
    path = settings.state_of(name)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    state = outer.state_dict()
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    rest = {key: value for key, value in state.items() if key not in tensors}
    save_file(tensors, part, metadata={"rest": json.dumps(rest)})
    os.replace(part, path)


def _saved(path: Path) -> dict[str, Any]:
    """Return what was kept."""
    with safe_open(path, "pt") as file:
        rest: dict[str, Any] = json.loads(file.metadata()["rest"])
        return rest | {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping


def _exact(part: Mapping[str, Any]) -> str:
    """Return the SHA-256 of parameters as they are, in FP32, by names in order."""
    digest = hashlib.sha256()
    for name, parameter in sorted(part.items()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(parameter.detach().contiguous().numpy().data)
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Settings.from_json(sys.argv[3]))
