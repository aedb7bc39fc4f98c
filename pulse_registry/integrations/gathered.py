"""Gathered weights: what a trainer yields one by one, gathered from its ranks for the moment, as a whole."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pulse_registry.errors import InvalidModel


class Gathered:
    """Takes all weights that are yielded, by name. What is on a device is copied to host memory, used again each time.

    A tensor that is gathered for the moment goes when the next one comes: all of them at once would not fit there.
    """

    def __init__(self) -> None:
        self._copies: dict[str, torch.Tensor] = {}

    def take(self, weights: Iterable[tuple[str, torch.Tensor]], *, lasting: bool = False) -> dict[str, torch.Tensor]:
        """Read weights to their end, before anything is refused: other ranks take part in what makes them.

        Args:
            weights: names and tensors.
            lasting: the tensors are the model's own memory, and need no copy wherever they are.

        Raises:
            InvalidModel: two have one name.
        """
        taken: dict[str, torch.Tensor] = {}
        twice = []
        for name, tensor in weights:
            if name in taken:
                twice.append(name)
            taken[name] = tensor.detach() if lasting or tensor.device.type == "cpu" else self._copied(name, tensor)
        if twice:
            raise InvalidModel(f"weight {twice[0]!r} was sent twice: only one adapter of a module can be trained")
        return taken

    def _copied(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        copy = self._copies.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = self._copies[name] = torch.empty_like(tensor, device="cpu")
        return copy.copy_(tensor)
