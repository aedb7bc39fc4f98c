"""What transformers calls the cache of keys and values: ``cache`` from release 5.24 on, ``past_key_values`` before."""

from __future__ import annotations

import inspect
from typing import Any


def cache_name(model: Any) -> str:
    """Return under which name a causal language model takes its cache, and gives it out."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
