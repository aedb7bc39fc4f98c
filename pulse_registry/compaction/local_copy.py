"""The compactor's local copy of the weights: one version in a mapped file, moved between versions in place.

What it takes of memory is a few groups and ranges, however large the model and however many cells change: the file's
pages are the system's to write out. Nothing of it outlives the process.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import numpy as np

from pulse_registry.context import Context
from pulse_registry.errors import BaseMismatch, CorruptObject, NotFound, StoreUnavailable
from pulse_registry.format.delta_step import patch_step
from pulse_registry.log import RunState
from pulse_registry.process.open_files import reserve
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.pull.failover import Routes
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.group_stream import arriving, in_pool
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.pull.route import Leg, Route
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights, arrays_over
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import VersionEntry


class LocalCopy:
    """Cells on disk, and which version they are. For one thread at a time.

    Attributes:
        version: None while they hold nothing known.
    """

    def __init__(self, context: Context) -> None:
        """Begin with nothing; the file is made in the context's spool when it is needed."""
        self.version: int | None = None
        self._context = context
        self._digest = Digest()
        self._weights: Weights | None = None
        self._mapped: mmap.mmap | None = None

    @property
    def weights(self) -> Weights:
        """The cells, once ``move_to`` has brought some.

        Raises:
            BaseMismatch: they hold nothing known.
        """
        if self._weights is None or self.version is None:
            raise BaseMismatch("the compactor's copy of the weights holds no version")
        return self._weights

    def move_to(self, state: RunState, version: int) -> None:
        """Bring the cells to a version, by the cheapest route whose objects are whole.

        Raises:
            Gone, NotFound, CorruptObject: nothing leads there but by an object that is gone or damaged.
            BaseMismatch: the cells were not those that they were taken for; they hold nothing known now, so that to
                try again fetches a keyframe.
            StoreUnavailable: the store, or the disk, did not do it.
        """
        entry = state.version(version)
        geometry = self._context.geometry(entry.layout)
        if self._weights is None or self._weights.geometry.id != geometry.id:
            self.close()
            self._weights = self._allocate(geometry)
        routes = Routes(self._context, state, version, have=self.version)
        while self.version != version:
            routes.have = self.version
            route = routes.cheapest()
            try:
                self._follow(routes.state, geometry, route)
            except (NotFound, CorruptObject) as error:
                routes.avoid(route, error)

    def check(self) -> None:
        """Look at all cells.

        Raises:
            BaseMismatch: some were changed since they were written; they hold nothing known now.
        """
        weights = self.weights
        if weights.digest(self._context.backend, self._context.map_) != self._digest:
            version, self.version = self.version, None
            raise BaseMismatch(f"the compactor's copy of version {version} was changed by something else")

    def forget(self) -> None:
        """Take the cells as holding nothing known."""
        self.version = None

    def close(self) -> None:
        """Give the file back. Idempotent; the copy can be used again."""
        self.version, self._weights, self._mapped = None, None, None

    def _follow(self, state: RunState, geometry: Geometry, route: Route) -> None:
        for leg in route.legs:
            # Until the leg's last cell is stored they are of no version.
            self.version = None
            if leg.keyframe is not None:
                self._take_keyframe(geometry, leg)
            else:
                self._take_patch(state.run, geometry, leg)
            self._arrive(state.version(leg.target), leg)

    def _arrive(self, entry: VersionEntry, leg: Leg) -> None:
        if self._digest != Digest.parse(entry.digest):
            error = CorruptObject(
                f"version {entry.version}: {leg.refs[0].key} leads to state digest {self._digest.hex()}, "
                f"{entry.digest} was committed"
            )
            error.key = leg.refs[0].key
            raise error
        self.version = entry.version

    def _take_keyframe(self, geometry: Geometry, leg: Leg) -> None:
        context, weights = self._context, self._weights
        if leg.keyframe is None or weights is None:
            raise BaseMismatch("there is no keyframe to take")
        keyframe = KeyframeCells.fetch(context.store, geometry, leg.keyframe, context.fetch_map, context.spool)
        try:

            def copy(group: Group) -> Digest:
                weights.fill(group, keyframe.weights.copy_of(group))
                keyframe.release(group)
                return weights.digest_of(context.backend, group)

            self._digest = sum(context.map_(copy, geometry.groups), Digest())
        finally:
            keyframe.close()

    def _take_patch(self, run: str, geometry: Geometry, leg: Leg) -> None:
        context, weights = self._context, self._weights
        if leg.patch is None or weights is None:
            raise BaseMismatch("there is no patch to take")
        [patch] = begin_patches(context.store, run, geometry, [leg.patch], context.fetch_map)
        backend, numbers = context.backend, sorted(patch.entries)

        def step(number: int) -> Digest:
            group = geometry.groups[number]
            link = patch_step(backend, group, patch, inverse=leg.kind == "inverse")
            delta = link.decode(weights.spans(group) if link.needs_base else None)
            _, new, before, after = weights.step(backend, group, delta.index, delta.distance)
            if (before, after) != (link.before, link.after):
                raise BaseMismatch(f"the compactor's copy of version {leg.base} was changed by something else")
            weights.scatter(backend, group, delta.index, new)
            return after - before

        moved = in_pool(context.pool, step, arriving([patch], numbers, context.fetchers, Timeline()))
        self._digest += sum(moved, Digest())

    def _allocate(self, geometry: Geometry) -> Weights:
        self._mapped = _map_file(geometry.nbytes, self._context.spool)
        return Weights(geometry, arrays_over(geometry, np.frombuffer(self._mapped, np.uint8)))


def _map_file(nbytes: int, folder: Path | None) -> mmap.mmap:
    where = folder or temporary_folder()
    try:
        with tempfile.TemporaryFile(dir=where) as file:
            reserve(file.fileno(), max(1, nbytes))
            return mmap.mmap(file.fileno(), max(1, nbytes))
    except OSError as error:
        raise StoreUnavailable(
            f"the compactor's copy of the weights can't be kept in {where}: {error.strerror}; it takes {nbytes} bytes"
        ) from error
