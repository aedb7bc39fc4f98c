"""What a tensor's name says of it: the layer that it is of, and its kind."""

from __future__ import annotations

import re
from typing import Final, Literal

Kind = Literal["attention", "mlp", "experts", "norm", "embedding", "other"]
KINDS: Final[tuple[Kind, ...]] = ("attention", "mlp", "experts", "norm", "embedding", "other")
# The first that fits: a norm is often named for what it comes after, and experts lie in what is called mlp.
_SIGNS: Final[tuple[tuple[Kind, str], ...]] = (
    ("norm", r"norm|(^|\.)ln(_|\d|\.|$)"),
    ("embedding", r"embed|_emb(\.|$)|(^|\.)(wte|wpe|lm_head|output|head)(\.|$)"),
    ("experts", r"expert|router|moe|\bmlp\.gate\."),
    ("attention", r"attn|attention|(^|\.)[qkvo]_proj(\.|$)|(^|\.)w[qkvo](\.|$)"),
    ("mlp", r"mlp|ffn|feed_forward|intermediate|(gate|up|down)_proj|(^|\.)(fc\d?|w[123]|c_fc)(\.|$)"),
)
_PATTERNS: Final = tuple((kind, re.compile(pattern, re.ASCII | re.IGNORECASE)) for kind, pattern in _SIGNS)


def kind_of(name: str) -> Kind:
    """Return the kind of a tensor, by the names that models give; routers count as experts, heads as embeddings."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


def layer_of(name: str) -> str:
    """Return a tensor's layer: its name up to the first number, or, where it has none, up to the last dot."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if _is_number(part):
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-1]) or name


def in_order(layers: set[str]) -> list[str]:
    """Return layers in the order of their numbers, 2 before 10."""
    return sorted(layers, key=lambda layer: [(_is_number(p), len(p) * _is_number(p), p) for p in layer.split(".")])


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit()
