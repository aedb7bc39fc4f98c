"""The trainer: GRPO on completions that workers send, and a push after every optimizer step.

It is one process, or the ranks of one: then FSDP2 shards the model, each rank learns from its share of a step's groups,
and all call ``push``, each with what it holds.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pulse_registry
from pulse_registry import NetworkOptions, PushResult, Registry
from pulse_registry.demo.fingerprint import fingerprints
from pulse_registry.demo.grpo import advantages, policy_loss
from pulse_registry.demo.messages import Loaded, Prompt, Published, Rollout, Sharded, Stepped, Trained
from pulse_registry.demo.place import Place
from pulse_registry.demo.policy import Policy, load_policy
from pulse_registry.demo.process import Wires, receive
from pulse_registry.demo.sums import Sum, is_right, reward, sums
from pulse_registry.timeline import stacked


def train(place: Place, wires: Wires, name: str) -> None:
    """Load the model, publish it, and make the steps. The first function of the trainer's process, or of its ranks'."""
    import torch

    settings = wires.settings
    began = time.perf_counter()
    torch.manual_seed(settings.seed)
    policy = load_policy(settings.source, settings.seed)
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    with place.joined(2 * settings.patience):
        if place.ranks > 1:
            wires.tell(_shard(policy.model, place, name))
        if place.first:
            wires.tell(Loaded(parameters, time.perf_counter() - began))
        optimizer = torch.optim.AdamW(
            policy.model.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        desk = PromptDesk(wires, policy, place)
        network = NetworkOptions(peer_timeout_s=settings.patience)
        with pulse_registry.open(settings.root, run=settings.run, network=network) as registry:
            pushes = Pushes(wires, registry, policy.model, place)
            pushes.push(0, {"config": dict(policy.config)})
            desk.hand_out(settings.in_flight)
            for step in range(1, settings.steps + 1):
                tally = _step(wires, policy, optimizer, desk, place, current=step - 1)
                stepped = _stepped(step, place.gather(tally))
                if place.first:
                    wires.tell(stepped)
                pushes.push(step, {"reward": stepped.reward})
            pushes.wait()
        if place.first:
            wires.tell(Trained(pushes.newest))


def _shard(model: Any, place: Place, name: str) -> Sharded:
    """Let FSDP2 shard a model over all ranks, layer by layer; each has read it whole, and keeps its rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (place.ranks,))
    for layer in getattr(model.base_model, "layers", ()):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    cells = sum(parameter.to_local().numel() for parameter in model.parameters())
    return Sharded(name, place.rank, place.ranks, cells, 2 * cells)


@dataclass(slots=True)
class _Tally:
    """What a step comes to on a rank while its groups arrive; seconds by phase."""

    rewards: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    loss: float = 0.0
    staleness: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"wait": 0.0, "learn": 0.0, "optimizer": 0.0})


def _step(wires: Wires, policy: Policy, optimizer: Any, desk: PromptDesk, place: Place, current: int) -> _Tally:
    """Learn from a rank's share of a step's groups, as they arrive, then change the weights, of version ``current``.

    Each backward reduces the gradients of all ranks to their mean: so all make as many.
    """
    settings, tally = wires.settings, _Tally()
    groups = settings.groups // place.ranks
    policy.model.train()
    for _ in range(groups):
        began = time.perf_counter()
        rollout: Rollout = receive(wires.rollouts, settings.patience, "completions")
        tally.seconds["wait"] += time.perf_counter() - began
        desk.hand_out(place.ranks)
        began = time.perf_counter()
        _learn(policy, rollout, desk.task(rollout), tally, settings.clip, groups, alone=place.ranks == 1)
        tally.staleness.append(current - rollout.version)
        tally.seconds["learn"] += time.perf_counter() - began
    began = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    tally.seconds["optimizer"] = time.perf_counter() - began
    return tally


def _stepped(step: int, ranks: Sequence[_Tally]) -> Stepped:
    """Return what a step came to on all ranks; of each phase, the time of the rank that took longest."""
    return Stepped(
        step=step,
        reward=statistics.fmean(reward for tally in ranks for reward in tally.rewards),
        right=statistics.fmean(right for tally in ranks for right in tally.right),
        loss=statistics.fmean(tally.loss for tally in ranks),
        staleness=tuple(behind for tally in ranks for behind in tally.staleness),
        seconds={phase: max(tally.seconds[phase] for tally in ranks) for phase in ranks[0].seconds},
    )


def _learn(
    policy: Policy, rollout: Rollout, task: Sum, tally: _Tally, clip: float, groups: int, *, alone: bool
) -> None:
    texts = [policy.codec.decode(tokens) for tokens in rollout.completions]
    rewards = [reward(task, text) for text in texts]
    tally.rewards += rewards
    tally.right += [is_right(task, text) for text in texts]
    gains = advantages(rewards)
    if any(gains) or not alone:  # the other ranks reduce their gradients with this one's
        loss = policy_loss(policy.model, rollout, gains, clip) / groups
        loss.backward()
        tally.loss += loss.item()


class PromptDesk:
    """Hands prompts to the workers and knows what is asked; of several ranks, the first one hands them out."""

    def __init__(self, wires: Wires, policy: Policy, place: Place) -> None:
        self._wires = wires
        self._policy = policy
        self._place = place
        count = wires.settings.steps * wires.settings.groups
        self._tasks = list(itertools.islice(sums(wires.settings.seed), count))
        self._given = 0

    def hand_out(self, count: int) -> None:
        """Put up to ``count`` prompts where workers take them; there are as many as the run learns from."""
        for task in self._tasks[self._given : self._given + count] if self._place.first else ():
            self._wires.prompts.put(Prompt(self._given, tuple(self._policy.codec.encode(task))))
            self._given += 1

    def task(self, rollout: Rollout) -> Sum:
        """Return what a rollout's prompt asked for."""
        return self._tasks[rollout.number]


class Pushes:
    """Publishes a model's weights in the background and tells the supervisor of each version that is committed.

    Of several ranks, all make the same calls, and the first one tells.
    """

    def __init__(self, wires: Wires, registry: Registry, model: Any, place: Place) -> None:
        self._wires = wires
        self._registry = registry
        self._model = model
        self._place = place
        self._under_way: list[Future[PushResult]] = []
        self.newest = -1

    def push(self, step: int, metadata: dict[str, Any]) -> None:
        """Publish the weights as they are now, and go on: only the diff happens here.

        Raises:
            PulseError: a push before this one failed.
        """
        while self._under_way and self._under_way[0].done():
            self._under_way.pop(0).result()
        sha256, *slices = fingerprints(self._model, len(self._wires.settings.sharded_names))
        if self._place.ranks > 1:
            metadata = {**metadata, "ranks": self._place.ranks}
        future = self._registry.push(step, self._model, metadata=metadata, wait=False)
        if self._place.first:
            future.add_done_callback(lambda done: self._tell(done, sha256, tuple(slices)))
        self._under_way.append(future)

    def wait(self) -> None:
        """Wait until all that was pushed is committed.

        Raises:
            PulseError: a push failed.
        """
        for future in self._under_way:
            self.newest = future.result(timeout=self._wires.settings.patience).version

    def _tell(self, future: Future[PushResult], sha256: str, slices: tuple[str, ...]) -> None:
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
                slices=slices,
            )
        )
