"""Placement: whether a model is worked on where its tensors are, on a GPU, or in host memory.

Imports neither torch nor triton before it has met tensors on a device.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument
from pulse_registry.pull.destination import Destination, HostDestination
from pulse_registry.pull.sliced_destination import SlicedDestination
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.device import DeviceName, Placement, on_host
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.fit import check_layout
from pulse_registry.weights.model import View
from pulse_registry.weights.reading import once
from pulse_registry.weights.slice_map import SliceMap

OLDEST_TRITON = (3, 4)
"""The oldest release that all kernels are compiled with; pyproject.toml names the same."""


def placement(name: DeviceName, tell: Callable[[str], None] | None = None) -> Placement:
    """Return the rule that a name stands for.

    ``auto`` takes the GPU where all tensors are on one and its kernels run, and host memory else; ``cpu`` always takes
    host memory; ``gpu`` raises InvalidArgument where ``auto`` would take host memory.

    Args:
        name: of the rule.
        tell: is told, once, why ``auto`` takes host memory for tensors that are all on one GPU.

    Raises:
        InvalidArgument: there is no such name.
    """
    if name not in get_args(DeviceName):
        raise InvalidArgument(f"device is {name!r}; it is one of {', '.join(get_args(DeviceName))}")
    return {"auto": _auto(tell), "cpu": on_host, "gpu": _on_gpu}[name]


class PlacedDestinations:
    """Worker's tensors as destinations where a rule says that they are worked on; see ``pull.puller.Destinations``."""

    def __init__(self, placement: Placement) -> None:
        """Take a rule."""
        self._placement = placement

    def into(
        self,
        context: Context,
        geometry: Geometry,
        views: Mapping[str, View],
        *,
        cast: bool,
        slices: SliceMap | None = None,
    ) -> Destination:
        """Return tensors, or the ``slices`` of tensors that they are, as what a pull changes.

        In host memory they may be tied otherwise than in the layout, and ``cast`` lets BF16 go into F32.

        Raises:
            LayoutMismatch: names, dtypes or shapes differ from the layout.
            InvalidModel: a tensor can't be written in place.
        """
        if slices is not None:
            inner = self._into(context, slices.local, slices.local_views(views), cast=cast, strided=True)
            return SlicedDestination(inner, slices, context.backend, context.pool)
        return self._into(context, geometry, views, cast=cast, strided=False)

    def digest(self, context: Context, geometry: Geometry, views: Mapping[str, View], *, cast: bool) -> Digest:
        """Return the state digest of tensors by a full pass where they are; ``cast`` as for ``into``.

        Raises:
            LayoutMismatch: they are not those of the layout.
        """
        if self._placement(views) is None:
            return Weights.of(geometry, views, cast=cast).digest(context.backend, context.map_)
        return self.into(context, geometry, views, cast=cast).digest()

    def _into(
        self, context: Context, geometry: Geometry, views: Mapping[str, View], *, cast: bool, strided: bool
    ) -> Destination:
        device = self._placement(views)
        if device is None:
            return HostDestination(Weights.into(geometry, views, cast=cast), context.backend, context.pool)
        from pulse_registry.gpu.destination import DeviceDestination
        from pulse_registry.gpu.strided_destination import StridedDestination

        check_layout(geometry.layout, views)
        if strided and not all(view.tensor.is_contiguous() for view in views.values()):
            return StridedDestination.into(geometry, views, device)
        return DeviceDestination.into(geometry, views, device)


def _auto(tell: Callable[[str], None] | None) -> Placement:
    told: set[str] = set()

    def place(views: Mapping[str, View]) -> Any:
        devices = _devices_of(views)
        if _elsewhere(devices) is not None:
            return None
        [device] = devices.values()
        fault = kernel_fault(device)
        if fault is None:
            return device
        if tell is not None and fault not in told:
            told.add(fault)
            tell(f"the model is on {device} and is worked on in host memory: {fault}")
        return None

    return place


def _on_gpu(views: Mapping[str, View]) -> Any:
    devices = _devices_of(views)
    hindrance = _elsewhere(devices) or kernel_fault(*devices.values())
    if hindrance is not None:
        raise InvalidArgument(f"device='gpu', but {hindrance}")
    [device] = devices.values()
    return device


def _devices_of(views: Mapping[str, View]) -> dict[str, Any]:
    """Return where a model's tensors are, by the name that messages have for it; NumPy's are in host memory."""

    def found() -> dict[str, Any]:
        tensors = [view.tensor for view in views.values()]
        devices = {None if tensor is None else tensor.device for tensor in tensors}
        return {"host memory" if device is None else str(device): device for device in devices}

    return once(views, "devices", found)


def _elsewhere(devices: Iterable[str]) -> str | None:
    """Say where a model's tensors are, None if all of them are on one GPU."""
    names = sorted(devices)
    if len(names) != 1:
        return f"the model's tensors are in several places: {', '.join(names)}"
    if names[0].partition(":")[0] != "cuda":  # torch's name for AMD's GPUs too
        return f"the model's tensors are in {names[0]}"
    return None


def kernel_fault(device: Any) -> str | None:
    """Say why the kernels do not run on a GPU, None if they do: the first time, they are compiled and tried."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'pulse-registry[gpu]'"
    found = str(importlib.import_module("triton").__version__)
    numbers = re.findall(r"\d+", found)[:2]
    if tuple(map(int, numbers)) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return f"triton {found} is too old for its kernels: install {oldest} or later, and a torch that goes with it"
    from pulse_registry.gpu.trial import fault_on

    return fault_on(device)
