"""Into: a worker's weights, as a pull takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pulse_registry.pull.replica import ReplicaState
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import View
from pulse_registry.weights.reading import once
from pulse_registry.weights.slice_map import SliceMap


@dataclass(frozen=True, slots=True)
class Into:
    """A worker's weights, and how they are to be read.

    Attributes:
        views: of their tensors.
        replica: what they are known to hold.
        cast: whether BF16 and F16 may go into F32.
        replace: take them as holding nothing known.
        check_every: see ``PullSettings``; None: as there.
        partial: whether tensors of the version may be missing.
    """

    views: Mapping[str, View]
    replica: ReplicaState
    cast: bool = False
    replace: bool = False
    check_every: int | None = None
    partial: bool = False

    @property
    def sliced(self) -> bool:
        """Whether they may be less than all tensors of the version, whole."""
        views = self.views
        return self.partial or once(views, "sliced", lambda: any(view.part is not None for view in views.values()))

    def slices(self, geometry: Geometry, *, alone: bool = True) -> SliceMap | None:
        """Return where they lie in a layout; None if they are all of its tensors, whole. See ``slice_map``.

        Raises:
            LayoutMismatch: they are not of this layout.
        """
        return self.slice_map(geometry, alone=alone) if self.sliced else None

    def slice_map(self, geometry: Geometry, *, alone: bool) -> SliceMap:
        """Return where they lie in a layout, made once; ``alone``: no other rank holds any of it.

        Raises:
            LayoutMismatch: they are not of this layout.
        """
        asked = geometry.id, self.partial, alone, tuple((name, view.shape) for name, view in self.views.items())
        found = self.replica.slice_maps.get(asked)
        if found is None:
            found = SliceMap.of(geometry, self.views, partial=self.partial, alone=alone)
            self.replica.slice_maps = {asked: found}  # who asks in turns for two layouts makes each anew
        return found
