"""Device names: how a caller says where weights are worked on, and the rule that such a name stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from pulse_registry.weights.model import View

DeviceName = Literal["auto", "cpu", "gpu"]
ShadowPlace = Literal["device", "host"]
"""Where the shadow of a model on a GPU stays: in its memory, or in pinned host memory, to be streamed at each push."""
Placement: TypeAlias = Callable[[Mapping[str, View]], Any]
"""Returns the torch device that a model is worked on, None for host memory."""


def on_host(views: Mapping[str, View]) -> None:
    """Take host memory, whatever the model."""
