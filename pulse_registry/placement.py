"""Placement: whether a model is worked on where its tensors are, on a GPU, or in host memory.

Imports neither torch nor triton before it has met tensors on a device.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from pulse_registry.errors import InvalidArgument
from pulse_registry.model import View

DeviceName = Literal["auto", "cpu", "gpu"]
ShadowPlace = Literal["device", "host"]
"""Where the shadow of a model on a GPU stays: in its memory, or in pinned host memory, to be streamed at each push."""
Placement: TypeAlias = Callable[[Mapping[str, View]], Any]
"""Returns the torch device that a model is worked on, None for host memory."""


def placement(name: DeviceName) -> Placement:
    """Return the rule that a name stands for.

    ``auto`` takes the GPU where all tensors are on one and its kernels run, and host memory else; ``cpu`` always takes
    host memory; ``gpu`` raises InvalidArgument where ``auto`` would take host memory.

    Raises:
        InvalidArgument: there is no such name.
    """
    if name not in get_args(DeviceName):
        raise InvalidArgument(f"device is {name!r}; it is one of {', '.join(get_args(DeviceName))}")
    return {"auto": _auto, "cpu": on_host, "gpu": _on_gpu}[name]


def on_host(views: Mapping[str, View]) -> None:
    """Take host memory, whatever the model."""


def _auto(views: Mapping[str, View]) -> Any:
    tensors = [view.tensor for view in views.values()]
    return None if _hindrance(tensors) else tensors[0].device


def _on_gpu(views: Mapping[str, View]) -> Any:
    tensors = [view.tensor for view in views.values()]
    hindrance = _hindrance(tensors)
    if hindrance is not None:
        raise InvalidArgument(f"device='gpu', but {hindrance}")
    return tensors[0].device


def _hindrance(tensors: Iterable[Any]) -> str | None:
    """Say why a model's tensors can't be worked on where they are."""
    devices = {"host memory" if tensor is None else str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        return f"the model's tensors are in several places: {', '.join(sorted(devices))}"
    name = devices.pop()
    if name.partition(":")[0] != "cuda":  # torch's name for AMD's GPUs too
        return f"the model's tensors are in {name}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'pulse-registry[gpu]'"
    return None
