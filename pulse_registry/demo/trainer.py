"""The trainer: GRPO on completions that workers send, and a push after every optimizer step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pulse_registry
from pulse_registry import PushResult, Registry
from pulse_registry.demo.fingerprint import fingerprint
from pulse_registry.demo.grpo import advantages, policy_loss
from pulse_registry.demo.messages import Loaded, Prompt, Published, Rollout, Stepped, Trained
from pulse_registry.demo.policy import Policy, load_policy
from pulse_registry.demo.process import Wires, receive
from pulse_registry.demo.sums import Sum, is_right, reward, sums
from pulse_registry.timeline import stacked


def train(wires: Wires, name: str) -> None:
    """Load the model, publish it, and make the steps. The first function of the trainer's process."""
    import torch

    settings = wires.settings
    began = time.perf_counter()
    torch.manual_seed(settings.seed)
    policy = load_policy(settings.source, settings.seed)
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    wires.tell(Loaded(parameters, time.perf_counter() - began))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True)
    desk = PromptDesk(wires, policy)

    with pulse_registry.open(settings.root, run=settings.run) as registry:
        pushes = Pushes(wires, registry, policy.model)
        pushes.push(0, {"config": dict(policy.config)})
        desk.hand_out(settings.in_flight)
        for step in range(1, settings.steps + 1):
            stepped = _step(wires, policy, optimizer, desk, step, current=step - 1)
            wires.tell(stepped)
            pushes.push(step, {"reward": stepped.reward})
        pushes.wait()
    wires.tell(Trained(pushes.newest))


@dataclass(slots=True)
class _Tally:
    """What a step comes to while its groups arrive; seconds by phase."""

    rewards: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    loss: float = 0.0
    staleness: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"wait": 0.0, "learn": 0.0, "optimizer": 0.0})


def _step(wires: Wires, policy: Policy, optimizer: Any, desk: PromptDesk, step: int, current: int) -> Stepped:
    """Learn from one step's groups, each as it arrives, then change the weights, which hold version ``current``."""
    settings, tally = wires.settings, _Tally()
    policy.model.train()
    for _ in range(settings.groups):
        began = time.perf_counter()
        rollout: Rollout = receive(wires.rollouts, settings.patience, "completions")
        tally.seconds["wait"] += time.perf_counter() - began
        desk.hand_out(1)
        began = time.perf_counter()
        _learn(policy, rollout, desk.task(rollout), tally, settings.clip, settings.groups)
        tally.staleness.append(current - rollout.version)
        tally.seconds["learn"] += time.perf_counter() - began
    began = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    tally.seconds["optimizer"] = time.perf_counter() - began
    return Stepped(
        step=step,
        reward=statistics.fmean(tally.rewards),
        right=statistics.fmean(tally.right),
        loss=tally.loss,
        staleness=tuple(tally.staleness),
        seconds=tally.seconds,
    )


def _learn(policy: Policy, rollout: Rollout, task: Sum, tally: _Tally, clip: float, groups: int) -> None:
    texts = [policy.codec.decode(tokens) for tokens in rollout.completions]
    rewards = [reward(task, text) for text in texts]
    tally.rewards += rewards
    tally.right += [is_right(task, text) for text in texts]
    gains = advantages(rewards)
    if any(gains):
        loss = policy_loss(policy.model, rollout, gains, clip) / groups
        loss.backward()
        tally.loss += loss.item()


class PromptDesk:
    """Hands prompts to the workers and remembers what was asked."""

    def __init__(self, wires: Wires, policy: Policy) -> None:
        self._wires = wires
        self._policy = policy
        self._tasks: Iterator[Sum] = sums(wires.settings.seed)
        self._asked: dict[int, Sum] = {}
        self._left = wires.settings.steps * wires.settings.groups

    def hand_out(self, count: int) -> None:
        """Put up to ``count`` prompts where workers take them; there are as many as the run learns from."""
        for _ in range(min(count, self._left)):
            task = next(self._tasks)
            number = len(self._asked)
            self._asked[number] = task
            self._left -= 1
            self._wires.prompts.put(Prompt(number, tuple(self._policy.codec.encode(task))))

    def task(self, rollout: Rollout) -> Sum:
        """Return what a rollout's prompt asked for."""
        return self._asked[rollout.number]


class Pushes:
    """Publishes a model's weights in the background and tells the supervisor of each version that is committed."""

    def __init__(self, wires: Wires, registry: Registry, model: Any) -> None:
        self._wires = wires
        self._registry = registry
        self._model = model
        self._under_way: list[Future[PushResult]] = []
        self.newest = -1

    def push(self, step: int, metadata: dict[str, Any]) -> None:
        """Publish the weights as they are now, and go on: only the diff happens here.

        Raises:
            PulseError: a push before this one failed.
        """
        while self._under_way and self._under_way[0].done():
            self._under_way.pop(0).result()
        sha256 = fingerprint(self._model)
        future = self._registry.push(step, self._model, metadata=metadata, wait=False)
        future.add_done_callback(lambda done: self._tell(done, sha256))
        self._under_way.append(future)

    def wait(self) -> None:
        """Wait until all that was pushed is committed.

        Raises:
            PulseError: a push failed.
        """
        for future in self._under_way:
            self.newest = future.result(timeout=self._wires.settings.patience).version

    def _tell(self, future: Future[PushResult], sha256: str) -> None:
        if future.exception() is not None:
            return  # raised where the trainer looks at it
        done = future.result()
        self._wires.tell(
            Published(
                version=done.version,
                step=done.step,
                kind=done.kind,
                changed=done.changed,
                cells=done.cells,
                nbytes=done.nbytes,
                full_nbytes=done.full_nbytes,
                digest=done.digest,
                phases=stacked(done.timeline),
                sha256=sha256,
            )
        )
