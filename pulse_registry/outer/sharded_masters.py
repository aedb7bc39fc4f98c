"""Sharded masters: the float32 weights of a model that many ranks hold, as outer rounds read and write them.

Each group of the versions is at home at one rank, which keeps its outer state. Once a round its cells go there, and
what they are to be comes back: 8 bytes a cell between the ranks, a group a rank at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, Self

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_kernels.protocol import Floats
from pulse_registry.errors import InvalidArgument
from pulse_registry.outer.masters import check_masters
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.parallel import Map
from pulse_registry.push.exchange import cells_from, cells_to
from pulse_registry.push.holdings import Spoken, fingerprint, speak, union
from pulse_registry.push.homes import dealt
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group, Numbers
from pulse_registry.weights.model import View, layout_of
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import Layout

_COUNT: Final = np.dtype("<i8")
_KNOWN, _OTHER = b"=", b"!"


class ShardedMasters:
    """The weights of a model that these ranks hold together; see ``Masters``.

    Attributes:
        numbers: of the groups of the versions that are at home here, in order.
    """

    def __init__(self, peers: Peers, geometry: Geometry, backend: Backend, map_: Map) -> None:
        """Take the ranks, and the geometry of the versions; nothing is agreed on yet."""
        self._peers, self._geometry, self._backend, self._map = peers, geometry, backend, map_
        self._id: bytes | None = None
        self._views: Mapping[str, View] = {}
        self._spoken: Spoken
        self._held: SliceMap
        self._homes: Numbers | None = None
        self.numbers: list[int] = []

    def take(self, views: Mapping[str, View]) -> Self:
        """Take what this rank holds now, and return these masters; a collective.

        Where the groups are at home is decided by the first call.

        Raises:
            InvalidModel: on all ranks: a tensor is of another dtype, name or shape than the versions' layout has; a
                cell is held by no rank, or boxes overlap without being equal.
        """
        attempt = Attempt(self._peers)
        id_ = attempt.run(lambda: fingerprint(views), b"")
        said = self._peers.all_gather(_KNOWN if id_ == self._id else _OTHER, "what is held")
        attempt.agree("tensors")
        self._views = views
        if any(one != _KNOWN for one in said):
            self._plan(views)
            self._id = id_
        return self

    def cells(self) -> Iterator[tuple[Group, list[Floats]]]:
        """Yield the groups that are at home here; see ``Masters.cells``."""
        attempt, slices = Attempt(self._peers), self._spoken.slices
        live = attempt.run(lambda: list(self._spoken.live(self._views).values()), list[View]())

        def read(tensor: int, where: slice) -> Cells:
            return live[tensor].span(where.start, where.stop)

        homes = self._live_homes()
        wanted = {rank: np.flatnonzero(homes == rank).tolist() for rank in range(self._peers.size)}
        cells = np.empty(0, np.float32)
        for number, part in cells_to(self._peers, slices, wanted, read, attempt):
            if attempt.failure is not None:
                continue
            group, first = self._place(slices.geometry.groups[number])
            if not first:
                cells = np.empty(group.cells, np.float32)
            cells[first : first + len(part)] = part.view(np.float32)
            if first + len(part) == group.cells:
                yield group, [cells]
        attempt.agree("cells of masters")

    def store(self, read: Callable[[Group], Floats]) -> None:
        """Write all cells, with all who hold them; see ``Masters.store``."""
        attempt, slices = Attempt(self._peers), self._held
        into = attempt.run(lambda: Weights.into(slices.local, slices.local_views(self._views)), None)
        attempt.agree("masters")

        def asked(live: Group) -> Cells:
            group, first = self._place(live)
            return read(group)[first : first + live.cells].view(np.uint32)

        for run in cells_from(self._peers, slices, self._live_homes(), asked, attempt):
            if into is not None:
                attempt.run(partial(into.store, *run), None)
        attempt.agree("weights of the round")

    def _plan(self, views: Mapping[str, View]) -> None:
        """Agree on who holds and who speaks for which cells, and where groups are at home."""
        peers, attempt = self._peers, Attempt(self._peers)
        layout = attempt.run(lambda: [layout_of(views, "keep")], list[Layout]())
        attempt.agree("tensors")
        whole = union(peers, layout[0], views)
        check_masters(self._geometry, whole)  # of all ranks, and so the same on all
        live = Geometry(whole)
        self._spoken = speak(peers, live, views, self._backend, self._map)
        held = attempt.run(lambda: [SliceMap.of(live, views, partial=True, alone=False)], list[SliceMap]())
        attempt.agree("slices")
        [self._held] = held
        if self._homes is None:
            slices = self._spoken.slices
            counts = np.zeros(len(self._geometry.groups), _COUNT)
            np.add.at(counts, self._numbers_of(live)[slices.groups], slices.counts)
            self._homes = dealt(peers.all_gather(counts.tobytes(), "cells of groups"))
            self.numbers = np.flatnonzero(self._homes == peers.rank).tolist()

    def _live_homes(self) -> Numbers:
        """Return the home of each group of the model's own layout, of which several are one of the versions'."""
        if self._homes is None:
            raise InvalidArgument("these masters hold nothing yet: call take first")
        homes: Numbers = self._homes[self._numbers_of(self._spoken.slices.geometry)]
        return homes

    def _numbers_of(self, live: Geometry) -> Numbers:
        """Return the number of the versions' group that each group of the model's own layout is part of."""
        return self._geometry.groups.holding(live.groups.starts(np.arange(len(live.groups))))

    def _place(self, live: Group) -> tuple[Group, int]:
        """Return the versions' group that a group of the model's own layout is part of, and where it begins there."""
        group = self._geometry.groups[self._geometry.groups.meeting(live.start, live.start + 1)[0]]
        return group, live.start - group.start
