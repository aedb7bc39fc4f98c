"""Staged cells: what brings weights from what they hold to a version, verified; in memory or in a keyframe's files."""

from __future__ import annotations

from dataclasses import dataclass

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.pull.destination import Destination
from pulse_registry.pull.keyframe_cells import FetchedKeyframe
from pulse_registry.pull.route import Route
from pulse_registry.pull.sliced_destination import SliceDigests
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.nonfinite import first_in_groups


@dataclass(slots=True)
class StagedCells:
    """What is to be written into a destination, to make it a version.

    Attributes:
        context: threads and kernels.
        destination: the live weights.
        route: that led there in the end.
        digest: the version's.
        update: of the weights, or of ``keyframe`` where that is set.
        keyframe: all cells are copied from here first; None: ``update`` alone leads to the version.
        whole: whether all cells are replaced.
        avoided: keys of the objects that are gone or damaged, in the order in which they were found to be.
        slices: digests of the slices at the version; None: the destination is no slices.
        nbytes: of the route; of slices, what was fetched of it.
    """

    context: Context
    destination: Destination
    route: Route
    digest: Digest
    update: ModelUpdate
    keyframe: FetchedKeyframe | None = None
    whole: bool = False
    avoided: tuple[str, ...] = ()
    slices: SliceDigests | None = None
    nbytes: int = 0

    @property
    def changed(self) -> int:
        """Cells that will be written."""
        return self.destination.geometry.cells if self.whole else self.update.changed

    def store(self) -> None:
        """Write the version's cells; safe to do again after it was cut off."""
        if self.keyframe is None:
            self.destination.apply(self.update)
            return
        on_top = by_group(self.update)
        with self.destination.filling() as write:
            map_, groups = self.context.map_, self.destination.geometry.groups
            list(map_(lambda group: write(group, self._cells_of(group, on_top)), groups))

    def not_finite(self) -> int | None:
        """Return the flat index of a cell to be stored that is NaN or infinite, None if there is none."""
        if not self.whole:
            return self.update.not_finite()
        on_top = by_group(self.update)
        return first_in_groups(
            self.destination.geometry, lambda group: self._cells_of(group, on_top), self.context.map_
        )

    def close(self) -> None:
        """Give back files and memory; a keyframe's in the pool, as a system takes a while to free gigabytes."""
        self.update = HostUpdate()
        if self.keyframe is None:
            return
        kept, self.keyframe = [self.keyframe], None
        try:
            self.context.pool.submit(_close, kept)
        except (InvalidArgument, RuntimeError):  # the pool ends, or the process
            _close(kept)

    def _cells_of(self, group: Group, on_top: dict[int, SparseUpdate]) -> Cells:
        """Return a group's cells as the version has them, to be read: a copy, unless nothing is on top of one piece.

        The pages of the keyframe's files are given back.
        """
        if self.keyframe is None:
            cells = self.destination.read(group)
        elif group.number not in on_top and (there := self.keyframe.weights.in_piece(group)) is not None:
            return there
        else:
            cells = self.keyframe.weights.copy_of(group)
            self.keyframe.release(group)
        if group.number in on_top:
            on_top[group.number].apply_to(self.context.backend, cells)
        return cells


def _close(kept: list[FetchedKeyframe]) -> None:
    """Close what is kept, and be the last to refer to it."""
    kept.pop().close()


def by_group(update: ModelUpdate) -> dict[int, SparseUpdate]:
    """Return the updates on top of a keyframe, which is in host memory, and so are they."""
    return {change.group.number: change for change in update.groups} if isinstance(update, HostUpdate) else {}
