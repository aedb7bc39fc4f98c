"""Inner steps: flat float32 masters, a forward pass that sees them as BF16, an AdamW of each trainer's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Loss = Callable[[torch.nn.Module], torch.Tensor]
CLIP = 1.0
"""Norm that gradients are cut to."""


class FlatModel:
    """A module whose parameters, and their gradients, are views of one flat buffer each.

    Attributes:
        module: whose forward pass sees what ``show`` was given.
        shapes: names and shapes of its parameters, in the order of the buffer.
        start: its weights as they were.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        named = list(module.named_parameters())
        self.shapes = [(name, tuple(parameter.shape)) for name, parameter in named]
        self.start = torch.cat([parameter.detach().reshape(-1) for _, parameter in named])
        self._seen, self.gradient = torch.zeros_like(self.start), torch.zeros_like(self.start)
        done = 0
        for _, parameter in named:
            cells = slice(done, done + parameter.numel())
            parameter.data = self._seen[cells].view(parameter.shape)
            parameter.grad = self.gradient[cells].view(parameter.shape)
            done = cells.stop

    @property
    def cells(self) -> int:
        """Parameters in all."""
        return len(self.start)

    def show(self, weights: torch.Tensor) -> None:
        """Let the forward pass see float32 weights as BF16."""
        self._seen.copy_(weights.bfloat16())

    def learn(self, loss: Loss) -> float:
        """Make ``gradient`` that of a loss, its norm cut; return the loss."""
        self.gradient.zero_()
        value = loss(self.module)
        value.backward()  # type: ignore[no-untyped-call]
        norm = float(self.gradient.norm())
        if norm > CLIP:
            self.gradient.mul_(CLIP / norm)
        return float(value.detach())


class Inner:
    """One trainer's AdamW, whose moments last over rounds; its weights begin each round anew."""

    def __init__(self, model: FlatModel, weights: torch.nn.Parameter, lr: float) -> None:
        """Prepare.

        Args:
            model: shared by all trainers, one after the other.
            weights: float32 masters; shared likewise.
            lr: of AdamW, without decay of weights.
        """
        self._model, self._weights = model, weights
        self._optimizer = torch.optim.AdamW([weights], lr=lr, weight_decay=0.0, fused=True)

    @property
    def rate(self) -> float:
        """Learning rate of the next step."""
        found: float = self._optimizer.param_groups[0]["lr"]
        return found

    @rate.setter
    def rate(self, rate: float) -> None:
        self._optimizer.param_groups[0]["lr"] = rate

    def step(self, loss: Loss) -> float:
        """Make one step; return the loss before it."""
        self._model.show(self._weights.detach())
        value = self._model.learn(loss)
        self._weights.grad = self._model.gradient
        self._optimizer.step()
        return value
