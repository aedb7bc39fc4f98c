"""A trainer's outer state: the weights of the round's start, the momentum, and the residual of what it has not sent.

Each rank of a sharded model keeps that of the groups which are at home with it; the ranks call the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_kernels.protocol import LEVELS, Floats, OuterLoops, OuterRates
from pulse_registry.errors import InvalidModel
from pulse_registry.format.contribution import LARGEST
from pulse_registry.outer.masters import ADVICE, Masters
from pulse_registry.outer.mean import GroupLevels, GroupTotals, GroupValues, Part, step_group
from pulse_registry.peers.lone import LonePeers
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.parallel import Map
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest

Sent = Sequence[tuple[Group, Part]]
"""What a member sends, by group."""
AGAIN: Final = "nothing was sent; call reset() to go on from the weights of the newest round"
_AT_ONCE: Final = 8
"""Groups of a model that are looked at side by side: of a sharded one, so many are fetched before."""
_GATED: Final = np.dtype([("group", "<i8"), ("count", "<i8"), ("square", "<f8")])


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gate passes: how many cells, and the sum of their squares."""

    count: int
    square: float


class OuterWeights:
    """Float32 arrays of the cells of a BF16 layout's groups, end to end: 12 bytes a cell in host memory, and 8 spare.

    What a model has moved goes into the residual once: ``origin`` is where the model was when that was done last.

    Attributes:
        geometry: of the versions.
        groups: those that are kept here, in order; all, unless the model is sharded.
        backend, loops: compute.
        peers: the ranks of this member.
        homes: of each rank, the numbers of the groups that it keeps.
        each: calls a function on each group, maybe in threads.
        theta: weights that all members hold; a version is these, rounded to BF16.
        momentum: of the outer optimizer; all members hold the same.
        residual: of this member alone.
        origin: the model when it was collected, until weights are stored in it. None: it was at ``theta``.
    """

    def __init__(
        self,
        geometry: Geometry,
        backend: Backend,
        loops: OuterLoops,
        peers: Peers | None = None,
        numbers: Sequence[int] | None = None,
        each: Map = map,
    ) -> None:
        """Allocate; all cells are 0.

        Args:
            geometry: of the versions.
            backend: computes digests, and rounds to BF16.
            loops: compute all else.
            peers: the ranks of this member; one by default.
            numbers: of the groups that are at home here, in order; all by default.
            each: calls a function on each group, maybe in threads.

        Raises:
            InvalidModel: a tensor is not BF16.
        """
        for tensor in geometry.layout.tensors:
            if tensor.dtype != "BF16":
                raise InvalidModel(f"tensor {tensor.name!r} is {tensor.dtype} in the run: {ADVICE}")
        self.geometry, self.backend, self.loops, self.each = geometry, backend, loops, each
        self.peers = LonePeers() if peers is None else peers
        self.groups = [*geometry.groups] if numbers is None else [geometry.groups[number] for number in numbers]
        ends = np.cumsum([0, *(group.cells for group in self.groups)]).tolist()
        mine = np.array([group.number for group in self.groups], np.int64)
        every = self.peers.all_gather(mine.tobytes(), "homes")
        self.homes = [frozenset(np.frombuffer(numbers, np.int64).tolist()) for numbers in every]
        self._places = {group.number: slice(*ends[k : k + 2]) for k, group in enumerate(self.groups)}
        self.theta, self.momentum, self.residual = (np.zeros(ends[-1], np.float32) for _ in range(3))
        self.origin: Floats | None = None
        self._spares: list[Floats] = []  # kept from round to round: fresh pages would cost more than the work

    @property
    def held(self) -> str:
        """The numbers of the groups that are kept here, in words."""
        numbers = [group.number for group in self.groups]
        return "all" if len(numbers) == len(self.geometry.groups) else ",".join(map(str, numbers))

    def begin(self, version: Callable[[Group], Cells]) -> None:
        """Take the weights of a version, by group; there is no momentum. What was not sent stays."""
        for group in self.groups:
            cells = version(group).astype(np.uint32) << 16
            self._of(self.theta, group)[:] = cells.view(np.float32)
        self.momentum[:] = 0

    def collect(self, masters: Masters, limit: float = LARGEST) -> None:
        """Add to the residual what the weights have moved since the round's start, or the last call; a collective.

        Args:
            masters: the model.
            limit: below which each sum must be.

        Raises:
            InvalidModel: on all ranks: a sum is NaN, infinite or over the limit; nothing was changed.
        """
        attempt, sums, origin = Attempt(self.peers), self._spare(), self._spare()

        def collect(group: Group, local: Sequence[Floats]) -> None:
            self._add_moved(group, local, self.residual, sums, limit)
            np.concatenate(local, out=self._of(origin, group))

        self._over(masters, attempt, collect)
        attempt.agree("pseudo-gradient")
        self._spares += [self.residual] if self.origin is None else [self.residual, self.origin]
        self.residual, self.origin = sums, origin

    def unsent(self, masters: Masters, sent: Sent = ()) -> Floats:
        """Return the residual, less what was sent, with what the weights have moved meanwhile; a collective.

        Raises:
            InvalidModel: on all ranks: a sum is NaN or infinite.
        """
        attempt, residual = Attempt(self.peers), self.residual.copy()
        self._take(residual, sent)

        def add(group: Group, local: Sequence[Floats]) -> None:
            self._add_moved(group, local, residual, residual, np.inf)

        self._over(masters, attempt, add)
        attempt.agree("residual")
        return residual

    def measured(self, gain: float | None) -> Gate:
        """Return what the gate passes, of all ranks; all cells, where ``gain`` is None. A collective."""
        known = _known(gain)

        def row(group: Group) -> tuple[int, int, float]:
            return group.number, *self.loops.square(self._of(self.theta, group), self._of(self.residual, group), known)

        rows = [*self.each(row, self.groups)]
        every = b"".join(self.peers.all_gather(np.array(rows, _GATED).tobytes(), "gated"))
        table = np.sort(np.frombuffer(every, _GATED), order="group")  # added up in one order, however it is sharded
        return Gate(int(table["count"].sum()), sum(table["square"].tolist()))

    def gated(self, gain: float | None, exponent: int, weight: int) -> list[tuple[Group, Part]]:
        """Return the levels that are sent, by group; the residual stays as it is until ``settle``. A collective.

        Raises:
            InvalidModel: on all ranks: a value is too large for its exponent to be taken exactly.
        """
        limit, attempt = np.ldexp(np.float32(1), 24 + exponent), Attempt(self.peers)

        def part(group: Group) -> tuple[Group, Part]:
            residual = self._of(self.residual, group)
            index, levels = self.loops.gate(self._of(self.theta, group), residual, _known(gain), exponent)
            if max(levels.max(initial=0), -levels.min(initial=0)) == LEVELS:  # what is too large is cut to this
                cut = index[np.abs(levels) == LEVELS]
                sizes = np.abs(residual[cut])
                if sizes.max(initial=0) >= limit:
                    raise self._too_large(group.start + int(cut[sizes.argmax()]))
            return group, GroupLevels(index, levels, exponent, weight)

        found = attempt.run(lambda: [*self.each(part, self.groups)], list[tuple[Group, Part]]())
        attempt.agree("levels")
        return [one for one in found if len(one[1].index)]

    def passed(self, gain: float | None, weight: int) -> list[tuple[Group, Part]]:
        """Return the float32 values that are sent, by group; the residual stays as it is until ``settle``."""

        def part(group: Group) -> tuple[Group, Part]:
            residual = self._of(self.residual, group)
            index = self.loops.passed(self._of(self.theta, group), residual, _known(gain))
            return group, GroupValues(index, residual[index], weight)

        return [found for found in self.each(part, self.groups) if len(found[1].index)]

    def settle(self, sent: Sent) -> None:
        """Take from the residual what was sent, exactly: once its record is in the log, and never before."""
        self._take(self.residual, sent)

    def step(
        self, parts: Mapping[int, Sequence[Part] | GroupTotals], exponent: int, weight: int, rates: OuterRates
    ) -> None:
        """Make a round's outer step.

        Args:
            parts: of all contributions, by number of the group; or their totals.
            exponent: the least of them.
            weight: of all members of the round.
            rates: of the round.
        """

        def step(group: Group) -> None:
            theta, momentum = self._of(self.theta, group), self._of(self.momentum, group)
            step_group(self.loops, theta, momentum, parts.get(group.number, ()), exponent, weight, rates)

        list(self.each(step, self.groups))

    def store(self, masters: Masters) -> None:
        """Write the weights into a model; what it has moved since it was collected, it keeps. A collective."""
        origin = self.origin
        if origin is None:
            masters.store(lambda group: self._of(self.theta, group))
            return
        attempt, moved = Attempt(self.peers), self._spare()

        def move(group: Group, local: Sequence[Floats]) -> None:
            found = self._of(moved, group)
            with np.errstate(over="ignore", invalid="ignore"):
                for here, cells in _along(local):
                    np.subtract(self._of(origin, group)[here], cells, out=found[here])
                np.subtract(self._of(self.theta, group), found, out=found)

        self._over(masters, attempt, move)
        attempt.agree("moved weights")
        masters.store(lambda group: self._of(moved, group))
        self._spares += [moved, origin]
        self.origin = None

    def drop(self, masters: Masters) -> None:
        """Write the weights into a model, and forget what it has moved since it was collected; a collective."""
        masters.store(lambda group: self._of(self.theta, group))
        if self.origin is not None:
            self.origin[:] = self.theta

    def patterns(self, group: Group) -> tuple[Cells, Cells]:
        """Return theta and momentum of a group as uint32 patterns, to read and write in place."""
        return self._of(self.theta, group).view(np.uint32), self._of(self.momentum, group).view(np.uint32)

    def sums(self, group: Group) -> tuple[Digest, Digest]:
        """Return a group's shares of the state digests of theta and of momentum, as float32 cells."""
        theta, momentum = (Digest(*self.backend.digest(cells, group.start)) for cells in self.patterns(group))
        return theta, momentum

    def version_cells(self, group: Group) -> Cells:
        """Return the group's weights, rounded to BF16."""
        cells = np.empty(group.cells, np.uint16)
        self.backend.cast_f32(self._of(self.theta, group).view(np.uint32), cells)
        return cells

    def digest(self) -> Digest:
        """Return the state digest of the version that the weights of all ranks are; a collective."""
        shares = self.each(lambda group: self.backend.digest(self.version_cells(group), group.start), self.groups)
        share = sum((Digest(*pair) for pair in shares), Digest())
        return Digest(*sum_lanes(self.peers, (share.lane_0, share.lane_1), "state"))

    def _over(self, masters: Masters, attempt: Attempt, work: Callable[[Group, Sequence[Floats]], None]) -> None:
        """Call a function on the cells of each group of a model that is at home here, some groups at a time."""
        groups = masters.cells()
        while some := [*islice(groups, _AT_ONCE)]:
            attempt.run(partial(self._called, work, some), None)

    def _called(
        self, work: Callable[[Group, Sequence[Floats]], None], some: Sequence[tuple[Group, Sequence[Floats]]]
    ) -> None:
        list(self.each(work, *zip(*some, strict=True)))

    def _add_moved(self, group: Group, local: Sequence[Floats], residual: Floats, sums: Floats, limit: float) -> None:
        """Add what the weights of a group have moved to the residual, and check the sums."""
        before = self._of(self.theta if self.origin is None else self.origin, group)
        residual, sums, worst = self._of(residual, group), self._of(sums, group), 0.0
        for here, cells in _along(local):
            largest = self.loops.collect(before[here], cells, residual[here], sums[here])
            worst = largest if largest > worst or np.isnan(largest) else worst
        if not np.isfinite(worst):
            place = group.start + int(np.argmin(np.isfinite(sums)))
            raise InvalidModel(f"the pseudo-gradient is not finite: {self._name(place)}; {AGAIN}")
        if worst >= limit:
            raise self._too_large(group.start + int(np.abs(sums).argmax()))

    def _take(self, residual: Floats, sent: Sent) -> None:
        def take(one: tuple[Group, Part]) -> None:
            group, part = one
            if isinstance(part, GroupLevels):
                self.loops.settle(self._of(residual, group), part.index, part.levels, part.exponent)
            else:
                self._of(residual, group)[part.index] = 0

        list(self.each(take, sent))

    def _too_large(self, place: int) -> InvalidModel:
        return InvalidModel(
            f"the pseudo-gradient is too large to be sent: {self._name(place)}; training has left the others: lower "
            f"its learning rate; {AGAIN}"
        )

    def _spare(self) -> Floats:
        """Return an array for the cells of all groups, of whatever is in it."""
        return self._spares.pop() if self._spares else np.empty_like(self.theta)

    def _of(self, cells: Floats, group: Group) -> Floats:
        return cells[self._places[group.number]]

    def _name(self, place: int) -> str:
        number = next(k for k, size in enumerate(self.geometry.sizes) if place < self.geometry.tensor_start(k) + size)
        within = place - self.geometry.tensor_start(number)
        return f"tensor {self.geometry.layout.tensors[number].name!r} at flat index {within}"


def _along(spans: Sequence[Floats]) -> Iterator[tuple[slice, Floats]]:
    """Yield where each of some spans lies that lie end to end, and its cells."""
    start = 0
    for cells in spans:
        yield slice(start, start := start + len(cells)), cells


def _known(gain: float | None) -> float:
    """Return the gain that the loops know: an infinite one passes all."""
    return np.inf if gain is None else gain
