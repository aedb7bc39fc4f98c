"""A task that is on every machine with Python: a byte model of the standard library's code learns its prose.

The model is trained on source code first; then trainers go on with the reference texts of ``pydoc_data``, of which each
has a shard of its own, and a last one is held out.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.outer.inner import FlatModel, Inner, Loss

CONTEXT, BATCH = 64, 2
FIRST_BATCH, FIRST_RATE = 8, 1e-3


@dataclass(frozen=True, slots=True)
class Size:
    """Of the model, and of what it is trained with first.

    Attributes:
        width, layers, heads: of the transformer.
        first_steps: on source code.
        held_out: windows of the held-out text that the loss is of.
    """

    width: int = 144
    layers: int = 4
    heads: int = 6
    first_steps: int = 250
    held_out: int = 128


class ByteModel(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, size.width), nn.Embedding(CONTEXT, size.width)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next byte."""
        found = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            found = block(found)
        logits: torch.Tensor = self.head(self.norm(found))
        return logits


class _Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        rows, length, width = found.shape
        parts = self.qkv(self.norm_1(found)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found = found + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        after: torch.Tensor = found + self.down(functional.gelu(self.up(self.norm_2(found))))
        return after


class Prose:
    """The text, the model that has learnt code, and losses of the trainers' shards.

    Attributes:
        model: shared by all; ``model.start`` is what it has learnt.
        sha256: of the text: other releases of Python have other ones.
    """

    def __init__(self, seed: int, trainers: int, size: Size) -> None:
        """Train on code."""
        library = Path(sysconfig.get_paths()["stdlib"])
        code = b"".join(path.read_bytes() for path in sorted(library.glob("*.py")))
        prose = (library / "pydoc_data" / "topics.py").read_bytes()
        self.sha256 = hashlib.sha256(code + prose).hexdigest()
        self._seed = seed
        share = len(prose) // (trainers + 1)
        parts = [_tokens(prose[k * share : (k + 1) * share]) for k in range(trainers + 1)]
        self._held_out, self._shards = parts[0], parts[1:]
        torch.manual_seed(seed)
        self.model = FlatModel(ByteModel(size))
        self._learn_code(_tokens(code), size.first_steps)
        draw = torch.Generator().manual_seed(seed)
        self._windows = [_batch(self._held_out, draw, 64) for _ in range(max(1, size.held_out // 64))]

    def loss(self, trainer: int, step: int) -> Loss:
        """Return the loss of a batch of a trainer's shard; the same for the same arguments."""
        draw = torch.Generator().manual_seed((self._seed * 1000 + trainer) * 1_000_000 + step)
        return _loss(*_batch(self._shards[trainer], draw, BATCH))

    def evaluate(self, weights: torch.Tensor) -> float:
        """Return the held-out loss of float32 weights, seen as BF16, in nats a byte."""
        self.model.show(weights)
        with torch.no_grad():
            losses = [float(_loss(*window)(self.model.module).double()) for window in self._windows]
        return math.fsum(losses) / len(losses)

    def _learn_code(self, code: torch.Tensor, steps: int) -> None:
        weights = torch.nn.Parameter(self.model.start.clone())
        inner, draw = Inner(self.model, weights, FIRST_RATE), torch.Generator().manual_seed(self._seed)
        for step in range(steps):
            inner.rate = FIRST_RATE * min(1.0, (step + 1) / 50, (steps - step) / (0.3 * steps))
            inner.step(_loss(*_batch(code, draw, FIRST_BATCH)))
        self.model.start = weights.detach().bfloat16().float()


def _tokens(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def _batch(text: torch.Tensor, draw: torch.Generator, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, len(text) - CONTEXT - 1, (rows,), generator=draw)
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def _loss(inputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    return lambda module: functional.cross_entropy(module(inputs).reshape(-1, 256), targets.reshape(-1))
