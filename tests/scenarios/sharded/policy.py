"""A small policy that is sharded in every way: tied, frozen, of dimensions that no number of ranks divides."""

from __future__ import annotations

import torch

VERSIONS = 3


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(12, 10, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(10, 12, bias=False, dtype=torch.bfloat16)
        self.narrow = torch.nn.Linear(12, 2, dtype=torch.bfloat16).requires_grad_(False)


class Policy(torch.nn.Module):
    """Its embedding has fewer rows than ranks where there are four, and is its head's; layers lie between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(103, 12, dtype=torch.bfloat16)
        self.few = torch.nn.Parameter(torch.ones(3, 5, dtype=torch.bfloat16))
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.head = torch.nn.Linear(12, 103, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(0))


def train(policy: torch.nn.Module, seed: int) -> None:
    """Change some cells of each tensor that is trained, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in policy.parameters():
            if one.requires_grad:
                one[torch.rand(one.shape, generator=generator) < 0.1] *= -1.5
        policy.steps += 1
