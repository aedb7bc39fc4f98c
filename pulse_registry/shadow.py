"""The shadow: the cells that a trainer last published, kept beside its live weights to diff against.

It runs ahead of the log by the pushes that are still on their way: each is kept with its old cells until it is
committed, so that a failure takes them back, the newest first, and the next push carries them again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_registry.change import Change
from pulse_registry.digest import Digest
from pulse_registry.fetch import Map
from pulse_registry.geometry import Geometry, Group
from pulse_registry.model import View
from pulse_registry.weights import Weights


class Shadow:
    """One layout's published cells.

    Attributes:
        geometry: of the layout.
        version: the newest version that the cells hold, committed or on its way; None before the first.
        digest: of these cells.
    """

    def __init__(self, weights: Weights, backend: Backend, version: int | None, digest: Digest) -> None:
        self.geometry: Geometry = weights.geometry
        self.version = version
        self.digest = digest
        self._weights = weights
        self._backend = backend
        self._lock = threading.RLock()
        self._pending: list[tuple[int, Sequence[Change], Digest]] = []

    @property
    def weights(self) -> Weights:
        """The cells; nothing may be pending when they are changed from outside."""
        return self._weights

    def advance(self, views: Mapping[str, View], map_: Map) -> tuple[int, list[Change], Digest]:
        """Diff live tensors against the shadow and take them over; return (version, changes, its digest).

        Only the changes are written: O(model) reads, O(changed) writes. Not to be called beside itself or ``revert``.
        """
        # The lock is not held while threads work for us: those that code a push under way wait for it in ``cells_at``.
        changes = [c for c in map_(lambda g: self._diff(views, g), self.geometry.groups) if len(c.index)]
        delta = sum(map_(self._delta, changes), Digest())
        with self._lock:
            version, digest = 0 if self.version is None else self.version + 1, self.digest + delta
            self._pending.append((version, changes, self.digest))
            self.version, self.digest = version, digest
        # From here on ``cells_at`` of an older version stores the old cells, whether these are written yet or not.
        list(map_(lambda change: change.apply(self._backend, self._weights), changes))
        return version, changes, digest

    def settle(self, version: int) -> None:
        """Forget the way back from a version: it is committed."""
        with self._lock:
            self._pending = [entry for entry in self._pending if entry[0] > version]

    def revert(self, version: int) -> None:
        """Take back ``version`` and all after it."""
        with self._lock:
            while self._pending and self._pending[-1][0] >= version:
                number, changes, digest = self._pending.pop()
                for change in changes:
                    change.undo(self._backend, self._weights)
                self.version, self.digest = number - 1, digest

    def cells_at(self, version: int, group: Group) -> Cells:
        """Return a copy of a group's cells as they are in ``version``, which is the newest committed or later."""
        with self._lock:
            cells = self._weights.copy_of(group)
            for number, changes, _ in reversed(self._pending):
                if number <= version:
                    break
                for change in changes:
                    if change.group.number == group.number:
                        self._backend.scatter(cells, change.index, change.old)
            return cells

    def digest_at(self, version: int) -> Digest:
        """Return the digest of the cells that ``cells_at`` gives."""
        with self._lock:
            digest = self.digest
            for number, _, before in reversed(self._pending):
                if number <= version:
                    break
                digest = before
            return digest

    def _delta(self, change: Change) -> Digest:
        old, new = change.sums(self._backend)
        return new - old

    def _diff(self, views: Mapping[str, View], group: Group) -> Change:
        parts = []
        base = 0
        for span, cells in zip(group.spans, self._weights.spans(group), strict=True):
            tensor = self.geometry.layout.tensors[span.tensor]
            view = views[tensor.name]
            live = _span(view, span.start, span.stop)
            run = self._backend.diff if view.dtype == tensor.dtype else self._backend.diff_f32
            index, old, new = run(live, cells)
            if len(index):
                parts.append((index + np.uint32(base), old, new))
            base += len(cells)
        if not parts:
            none = np.empty(0, group.cell_type.dtype)
            return Change(group, np.empty(0, np.uint32), none, none)
        if len(parts) == 1:
            return Change(group, *parts[0])
        index, old, new = map(np.concatenate, zip(*parts, strict=True))
        return Change(group, index, old, new)


def first_shadow(geometry: Geometry, views: Mapping[str, View], backend: Backend, map_: Map, version: int) -> Shadow:
    """Copy live tensors, rounded where the layout says so, into a shadow that stands for ``version``."""
    weights = Weights.empty(geometry)

    def take(group: Group) -> Digest:
        for span, cells in zip(group.spans, weights.spans(group), strict=True):
            tensor = geometry.layout.tensors[span.tensor]
            view = views[tensor.name]
            live = _span(view, span.start, span.stop)
            if view.dtype == tensor.dtype:
                cells[:] = live
            else:
                backend.cast_f32(live, cells)
        return weights.digest_of(backend, group)

    digest = sum(map_(take, geometry.groups), Digest())
    return Shadow(weights, backend, version, digest)


def _span(view: View, start: int, stop: int) -> Cells:
    if view.cells.flags.c_contiguous:
        return view.cells.reshape(-1)[start:stop]
    return np.ascontiguousarray(view.cells.flat[start:stop])
