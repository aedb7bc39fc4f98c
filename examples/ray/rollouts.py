"""A trainer and rollout actors on Ray: samples go through Ray, weights through a registry.

python examples/ray/rollouts.py [ROOT] [--steps N] [--rollouts N]

A small policy learns which of four actions a context asks for. Each rollout actor pulls the newest version before it
samples, so that none waits for another, and one that dies and is restarted needs nothing but the registry.
"""

import argparse
from dataclasses import dataclass

import ray
import torch

import pulse_registry

RUN, CONTEXT, ACTIONS = "ray", 16, 4


def policy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(CONTEXT, 64), torch.nn.Tanh(), torch.nn.Linear(64, ACTIONS))


@dataclass
class Batch:
    """What an actor sampled, and with which version of the weights."""

    version: int
    contexts: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor  # of the actions, by the weights that chose them
    rewards: torch.Tensor


@ray.remote(num_cpus=1)  # it is not restarted: one that comes back begins with registry.take_over(model)
class Trainer:
    """Trains FP32 weights, and pushes a version each step."""

    def __init__(self, root: str) -> None:
        torch.manual_seed(0)
        self.model = policy()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.registry = pulse_registry.open(root, run=RUN)
        self.steps = 0
        self.pushed = self.registry.push(self.steps, self.model, wait=False)

    def step(self, batch: Batch) -> float:
        """Take a step of PPO; returns the batch's mean reward."""
        log_probs = torch.log_softmax(self.model(batch.contexts), 1).gather(1, batch.actions).squeeze(1)
        ratio = (log_probs - batch.log_probs).exp()  # the batch is of an older version: its version is known
        advantage = batch.rewards - batch.rewards.mean()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        reward = batch.rewards.mean().item()
        # Returns after the diff: the next step may change the weights while this version is stored.
        metadata = {"reward": reward, "sampled_by": batch.version}
        self.pushed = self.registry.push(self.steps, self.model, metadata=metadata, wait=False)
        return reward

    def finish(self) -> int:
        """Wait for what is on its way; returns the last version."""
        return self.pushed.result().version

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights as they are published: rounded to BF16."""
        return {name: tensor.bfloat16() for name, tensor in self.model.state_dict().items()}


@ray.remote(num_cpus=0.25, max_restarts=-1, max_task_retries=-1)  # Ray starts it anew, and asks again what it asked
class Rollout:
    """Samples with the newest weights; its process may end at any moment."""

    def __init__(self, root: str, name: str) -> None:
        self.model = policy().bfloat16().requires_grad_(False)
        one = pulse_registry.ComputeOptions(threads=1)  # many actors share a host
        self.registry = pulse_registry.open(root, run=RUN, name=name, compute=one)

    def sample(self, count: int) -> Batch:
        """Return a batch that the newest version chose."""
        pulled = self.registry.pull(into=self.model)  # only what changed since the last one, in place
        contexts = torch.randn(count, CONTEXT)
        chances = torch.log_softmax(self.model(contexts.bfloat16()).float(), 1)
        actions = torch.multinomial(chances.exp(), 1)
        rewards = (contexts[:, :ACTIONS].argmax(1) == actions.squeeze(1)).float()
        return Batch(pulled.version, contexts, actions, chances.gather(1, actions).squeeze(1), rewards)

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """Go to a version, check every cell against its digest, and return the weights."""
        self.registry.pull(version, into=self.model)
        self.registry.verify(version, model=self.model)
        return self.model.state_dict()


def main() -> None:
    """Train, and compare the weights of all actors bit for bit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", default="policies", help="a folder, s3://bucket/prefix or https://service")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=3)
    given = parser.parse_args()

    ray.init()  # a cluster that RAY_ADDRESS names, or one on this machine
    trainer = Trainer.remote(given.root)
    ray.get(trainer.finish.remote())  # version 0 is there
    actors = [Rollout.remote(given.root, f"rollout-{number}") for number in range(given.rollouts)]
    sampling = {actor.sample.remote(256): actor for actor in actors}
    for step in range(1, given.steps + 1):
        (batch,), _ = ray.wait([*sampling])
        actor = sampling.pop(batch)
        sampling[actor.sample.remote(256)] = actor  # it goes on while the trainer steps
        reward = ray.get(trainer.step.remote(batch))
        if step % 10 == 0:
            print(f"step {step}: reward {reward:.2f}")

    version, trained = ray.get([trainer.finish.remote(), trainer.weights.remote()])
    for found in ray.get([actor.weights.remote(version) for actor in actors]):
        assert all(torch.equal(found[name].view(torch.int16), trained[name].view(torch.int16)) for name in trained)
    print(f"{len(actors)} rollouts hold version {version}, bit for bit")


if __name__ == "__main__":
    main()
