"""Synthetic states: what a small policy's BF16 weights do under AdamW at learning rate 1e-6.

Tensors have the shapes of a 135 M-parameter Llama (scaled to the size asked for), weights are normal with a scale of
their own a tensor, and FP32 masters take real Adam steps on heavy-tailed gradients (Student's t with 2 degrees of
freedom). What is published is the masters rounded to BF16. Some 0.5 % of the cells change a step, small weights
far more often than large ones, nearly always to a neighbouring value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from benchmarks.states import Cells, Changed, States, Tensor, compare

DEFAULT_CELLS = 134_515_008
DEFAULT_RATE = 1e-6
"""Of learning: some 0.5 % of the cells change a step."""
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8
_WARM_UP = 8
"""Steps before state 0, so that the moments are those of a run under way."""
_PIECE = 1 << 16
"""Cells that go through all steps together: they stay in the cache."""
Floats = npt.NDArray[np.float32]


def shapes(cells: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return tensor names and shapes of about ``cells`` cells in all: a Llama of 30 layers, narrower for fewer."""
    scale = math.sqrt(cells / DEFAULT_CELLS)

    def of(width: int) -> int:
        return max(8, round(width * scale / 8) * 8)

    hidden, narrow, wide = of(576), of(192), of(1536)
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (of(49152), hidden))]
    for layer in range(30):
        found += [
            (f"model.layers.{layer}.{name}.weight", shape)
            for name, shape in (
                ("self_attn.q_proj", (hidden, hidden)),
                ("self_attn.k_proj", (narrow, hidden)),
                ("self_attn.v_proj", (narrow, hidden)),
                ("self_attn.o_proj", (hidden, hidden)),
                ("mlp.gate_proj", (wide, hidden)),
                ("mlp.up_proj", (wide, hidden)),
                ("mlp.down_proj", (hidden, wide)),
                ("input_layernorm", (hidden,)),
                ("post_attention_layernorm", (hidden,)),
            )
        ]
    return [*found, ("model.norm.weight", (hidden,))]


def few_shapes(cells: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return four tensors of about ``cells`` cells in all: for so many steps that more would take all memory."""
    return [(f"model.layers.{layer}.mlp.up_proj.weight", (max(8, cells // 4 // 64), 64)) for layer in range(4)]


def synthetic_states(
    cells: int = DEFAULT_CELLS,
    steps: int = 8,
    seed: int = 0,
    *,
    shapes_of: Callable[[int], list[tuple[str, tuple[int, ...]]]] = shapes,
    scale: float = 0.06,
    rate: float = DEFAULT_RATE,
) -> States:
    """Make ``steps + 1`` states; the same arguments give the same states, however many threads work.

    ``scale``: of the weights, about which each tensor has its own. ``rate``: of learning; 1e-8 changes some 0.01 % of
    the cells a step, 1e-4 some 20 %.
    """
    listed = shapes_of(cells)

    def make(number: int) -> tuple[Cells, list[Changed]]:
        name, shape = listed[number]
        return _tensor(np.random.default_rng([seed, number]), math.prod(shape), "norm" in name, steps, scale, rate)

    with ThreadPoolExecutor() as pool:
        made = list(pool.map(make, range(len(listed))))
    named = f"{rate:.0e}".replace("e-0", "e-")
    title = f"synthetic AdamW steps at learning rate {named}, {sum(math.prod(s) for _, s in listed):,} cells"
    tensors = [Tensor(name, "BF16", shape) for name, shape in listed]
    return States(
        "synthetic", title, seed, tensors, [m[0] for m in made], [[m[1][k] for m in made] for k in range(steps)]
    )


def _tensor(
    rng: np.random.Generator, size: int, norm: bool, steps: int, typical: float, rate: float
) -> tuple[Cells, list[Changed]]:
    scale, centre = (0.1, 1.0) if norm else (typical * math.exp(0.5 * rng.standard_normal()), 0.0)
    first, pieces = np.empty(size, np.uint16), []
    for start in range(0, size, _PIECE):
        part = first[start : start + _PIECE]
        weights = rng.standard_normal(len(part), np.float32) * np.float32(scale) + np.float32(centre)
        pieces.append((start, _walk(rng, weights, part, steps, rate)))
    joined = []
    for step in range(steps):
        parts = [(np.uint32(start) + changed[step].index, changed[step]) for start, changed in pieces]
        joined.append(
            Changed(
                np.concatenate([index for index, _ in parts]),
                np.concatenate([part.old for _, part in parts]),
                np.concatenate([part.new for _, part in parts]),
            )
        )
    return first, joined


def _walk(rng: np.random.Generator, weights: Floats, first: Cells, steps: int, rate: float) -> list[Changed]:
    """Take Adam steps with ``weights`` in place; write state 0 into ``first`` and return the changes after it."""
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    found: list[Changed] = []
    published = first
    for step in range(1, _WARM_UP + steps + 1):
        gradient = rng.standard_normal(len(weights), np.float32)
        gradient /= np.sqrt(rng.standard_exponential(len(weights), np.float32) + np.float32(1e-6))
        mean += np.float32(1 - _BETA_1) * (gradient - mean)
        square += np.float32(1 - _BETA_2) * (gradient * gradient - square)
        size = rate * math.sqrt(1 - _BETA_2**step) / (1 - _BETA_1**step)
        weights -= np.float32(size) * mean / (np.sqrt(square) + np.float32(_EPSILON))
        if step == _WARM_UP:
            first[:] = _bf16(weights)
        elif step > _WARM_UP:
            rounded = _bf16(weights)
            found.append(compare(published, rounded))
            published = rounded
    return found


def _bf16(weights: Floats) -> Cells:
    """Round to nearest, ties to even; there are no NaNs here."""
    bits = weights.view(np.uint32)
    rounded: Cells = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )
    return rounded
