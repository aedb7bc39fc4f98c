"""Host copy: all cells of a model, once a node, for ranks that hold parts of groups.

Patches of coder ``class`` are decoded from whole groups of cells. So one rank of each node, its *keeper*, follows the
run with a whole model in memory that the others map, and gives them what leads to a version: its changes, in memory,
too, of which each rank takes its part; or, where many cells change, the cells. The copy takes a model's bytes a node,
from the first version on that needs it, and no time of ``apply``: it is brought to what the ranks hold when the next
version is staged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import BaseModel

from pulse_registry.context import Context
from pulse_registry.errors import CorruptObject, Gone, InvalidArgument, NotFound
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.node_memory import Memory, NodeMemory, mapped, node
from pulse_registry.pull.apply import PullSettings, Staged, stage_into
from pulse_registry.pull.destination import HostDestination
from pulse_registry.pull.given import Given, cells_of, pack, packed_bytes, unpack
from pulse_registry.pull.replica import ReplicaState
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.route import Route, plan
from pulse_registry.weights.arrays import Weights, arrays_over
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import VersionEntry


class _Asked(BaseModel):
    """What a rank is about to do: from which version to which, and whether its slices do not suffice for the route."""

    version: int
    base: int | None
    needs: bool


@dataclass(frozen=True, slots=True)
class _Copy:
    """The whole model's cells, as this rank has them: its keeper's to write, and the others' to read."""

    weights: Weights
    keeper: int


class HostCopy:
    """The host copy of this rank's node, made when it is first needed. ``stage`` and ``cells`` are collectives."""

    def __init__(self, peers: Peers, settings: PullSettings) -> None:
        """Take the ranks, and what holds for their pulls; no memory yet."""
        self._peers = peers
        self._settings = replace(settings, check_every=0, nonfinite="allow", applied=None)
        self._copy: _Copy | None = None
        self._replica = ReplicaState()  # what the copy holds; its keeper's
        self._staged: Staged | None = None  # what was last staged on it, likewise

    def stage(self, context: Context, request: PullRequest, slices: SliceMap) -> Given | None:
        """Stage a version on each node, and return what leads there from ``request.base``; None: slices suffice.

        Raises:
            PulseError: as ``Registry.stage``, on all ranks.
            InvalidArgument: a host does not have the memory, on all ranks.
        """
        asked = self._ask(context, request, slices)
        if asked is None:
            return None
        copy, attempt = self._opened(slices.geometry), Attempt(self._peers)
        base = request.base if asked.base is not None else None
        nothing: tuple[Route, NodeMemory | None] = Route(asked.base, asked.version, ()), None
        keeps = copy.keeper == self._peers.rank
        route, packed = attempt.run(lambda: self._stage(context, request, base, copy) if keeps else nothing, nothing)
        memory = self._shared(attempt, copy.keeper, packed)

        def given() -> Given:
            if memory is None:
                return Given(route, cells=cells_of(slices, copy.weights))
            return Given(route, asked.base, unpack(slices.geometry, memory))

        made = attempt.run(given, Given(route))
        attempt.agree("host copy")  # until here all ranks may read the copy, and its keeper does not write it
        if packed is not None:
            packed.seal()
        return made

    def cells(self, context: Context, request: PullRequest, slices: SliceMap) -> Weights | None:
        """Return a copy of what slices hold of a version; None: slices suffice to fetch it.

        Raises:
            PulseError, InvalidArgument: as ``stage``.
        """
        if self._ask(context, request, slices) is None:
            return None
        copy, attempt = self._opened(slices.geometry), Attempt(self._peers)
        if copy.keeper == self._peers.rank:
            attempt.run(lambda: self._bring(context, request, copy), None)
        attempt.agree("host copy")
        found = attempt.run(lambda: cells_of(slices, copy.weights), None)
        attempt.agree("host copy read")
        return found

    def close(self) -> None:
        """Let go of the memory, and of what is staged; no collective. Idempotent."""
        self._keep(None)
        self._copy, self._replica = None, ReplicaState()

    def _ask(self, context: Context, request: PullRequest, slices: SliceMap) -> _Asked | None:
        """Return what all ranks are about to do, with the version that they all hold; None: no rank needs a copy."""
        attempt, version = Attempt(self._peers), request.entry.version
        base = None if request.base is None else request.base.version
        needs = attempt.run(lambda: _needs(context, request, slices), False)
        said = _Asked(version=version, base=base, needs=needs).model_dump_json().encode()
        every = [_Asked.model_validate_json(one) for one in self._peers.all_gather(said, "host copy needed")]
        attempt.agree("host copy needed")
        if len({one.version for one in every}) > 1:
            raise InvalidArgument("the ranks ask for different versions: give a number, the same on all ranks")
        if not any(one.needs for one in every):
            return None
        alike = len({one.base for one in every}) == 1
        return _Asked(version=version, base=base if alike else None, needs=True)

    def _opened(self, geometry: Geometry) -> _Copy:
        """Return the copy of a layout; a collective where it has to be made."""
        if self._copy is not None and self._copy.weights.geometry.id == geometry.id:
            return self._copy
        self.close()
        attempt = Attempt(self._peers)
        nodes = self._peers.all_gather(attempt.run(node, b""), "nodes")
        keeper = nodes.index(nodes[self._peers.rank])
        keeps = keeper == self._peers.rank
        made = attempt.run(lambda: NodeMemory.reserve(geometry.nbytes) if keeps else None, None)
        memory = self._shared(attempt, keeper, made)
        attempt.agree("host memory")
        if made is not None:
            made.seal()
        if memory is None:
            raise TypeError("the keeper gave no memory")
        self._copy = _Copy(Weights(geometry, arrays_over(geometry, memory)), keeper)
        return self._copy

    def _shared(self, attempt: Attempt, keeper: int, own: NodeMemory | None) -> Memory | None:
        """Return the memory that the keeper of this rank's node gives, if any; a collective."""
        handles = self._peers.all_gather(b"" if own is None else own.handle, "host memory")
        if own is not None:
            return own.cells
        return attempt.run(lambda: mapped(handles[keeper]) if handles[keeper] else None, None)

    def _stage(
        self, context: Context, request: PullRequest, base: VersionEntry | None, copy: _Copy
    ) -> tuple[Route, NodeMemory | None]:
        """Stage a version on the copy, and return its route and its changes; None: the copy holds it now, whole."""
        if base is not None:
            try:
                self._bring(context, replace(request, entry=base), copy)
            except (Gone, NotFound, CorruptObject):  # it can't be had any more: what it leads to may
                base = None
        if base is None:
            return self._bring(context, request, copy), None
        staged = self._staged_on(context, request, copy)
        if staged.whole:
            with staged:
                staged.apply()
            return staged.route, None
        self._keep(staged)
        changes = staged.update()
        packed = NodeMemory.reserve(packed_bytes(changes))
        pack(changes, packed.cells)
        return staged.route, packed

    def _bring(self, context: Context, request: PullRequest, copy: _Copy) -> Route:
        """Let the copy hold a version, by what was staged on it before if that is it; return the route."""
        version, staged = request.entry.version, self._staged
        if self._replica.version == version:
            return Route(version, version, ())
        if staged is None or not staged.fits or staged.version != version:
            staged = self._staged_on(context, request, copy)
        with staged:
            self._staged = None
            staged.apply()
        return staged.route

    def _staged_on(self, context: Context, request: PullRequest, copy: _Copy) -> Staged:
        destination = HostDestination(copy.weights, context.backend, context.pool)
        own = PullRequest(request.state, request.entry, destination, request.timeline)
        return stage_into(context, own, self._settings, self._replica)

    def _keep(self, staged: Staged | None) -> None:
        last, self._staged = self._staged, staged
        if last is not None:
            last.discard()


def _needs(context: Context, request: PullRequest, slices: SliceMap) -> bool:
    """Whether slices that hold groups in part lack the base of a patch on the cheapest route."""
    if slices.whole:
        return False
    have, undo = None if request.base is None else request.base.version, [step.base for step in request.undo]
    route = plan(request.state, request.entry.version, have=have, undo=undo, prices=context.prices())
    return any(leg.patch is not None and leg.patch.coder == "class" for leg in route.legs)
