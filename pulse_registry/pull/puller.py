"""Pulls of one run: the worker's side, as ``Publisher`` is the trainer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from pulse_registry.context import Context
from pulse_registry.errors import BaseMismatch, CorruptObject, Gone, PulseError
from pulse_registry.events import Events
from pulse_registry.log import RunState
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.pull.apply import PullSettings, Staged, on_base, stage_into, stage_new
from pulse_registry.pull.base_check import BaseCheck, pulls_a_check
from pulse_registry.pull.destination import Destination, HostDestination
from pulse_registry.pull.differing import differing
from pulse_registry.pull.early_patch import EarlyPatch
from pulse_registry.pull.host_copy import HostCopy
from pulse_registry.pull.into import Into
from pulse_registry.pull.prefetch import WAIT_SECONDS, Prefetch
from pulse_registry.pull.prefetch_together import PrefetchTogether, Ranks
from pulse_registry.pull.replica import Replicas
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.sliced_destination import SlicedDestination, SliceDigests
from pulse_registry.pull.together import Together
from pulse_registry.results import PullResult, VersionName
from pulse_registry.timeline import Timeline
from pulse_registry.versions import Versions
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import Model, View, read_model
from pulse_registry.weights.reading import ModelReader, once
from pulse_registry.weights.slice_map import SliceMap
from pulse_registry.weights.tensors import Framework, new_tensors
from pulse_schemas import Record, VersionEntry

Result = TypeVar("Result")


class Destinations(Protocol):
    """Where a worker's tensors are worked on: in host memory, or on their device."""

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

        Raises:
            LayoutMismatch: names, dtypes or shapes differ from the layout.
            InvalidModel: a tensor can't be written in place.
        """
        ...

    def digest(self, context: Context, geometry: Geometry, views: Mapping[str, View], *, cast: bool) -> Digest:
        """Return the state digest of tensors by a full pass.

        Raises:
            LayoutMismatch: they are not those of the layout.
        """
        ...


class Held(Protocol):
    """A worker's weights, whenever they are asked for; see ``Puller.into``."""

    def __call__(self, *, alone: bool) -> Into:
        """Return them; of ranks that pull together a collective, but for ``alone``."""
        ...


class Puller:
    """The worker's side of one run.

    Attributes:
        replicas: what weights are known to hold.
        prefetches: those that were begun, and are alive.
    """

    def __init__(
        self,
        versions: Versions,
        context: Callable[[], Context],
        destinations: Destinations,
        settings: PullSettings,
        peers: Peers | None = None,
    ) -> None:
        """Prepare to pull; no I/O yet.

        Args:
            versions: of the run.
            context: returns what pulls work with, once one is asked for.
            destinations: where weights are worked on.
            settings: of all pulls.
            peers: the ranks that pull together; None: each by itself.
        """
        self._together = None if peers is None else Together(peers)
        self._copy = HostCopy(peers, settings) if peers is not None and settings.host_copy else None
        self.replicas = Replicas()
        self._models = ModelReader()
        self.prefetches: WeakSet[Prefetch] = WeakSet()
        self._versions, self._context = versions, context
        self._destinations, self._settings = destinations, settings

    def into(
        self,
        model: Model,
        *,
        cast: bool = False,
        replace: bool = False,
        check: BaseCheck | None = None,
        partial: bool = False,
        alone: bool = False,
    ) -> Into:
        """Return a worker's weights as pulls take them. Of ranks that pull together, a collective, but for ``alone``.

        Raises:
            InvalidArgument: ``check`` is not valid: on all ranks that pull together.
            InvalidModel: it is no model, or can't be changed in place: on all ranks that pull together.
        """
        found: list[Into] = []

        def read() -> None:
            every = None if check is None else pulls_a_check(check)
            views = self._models.read_destination(model)
            replica = once(views, self.replicas, lambda: self.replicas.of(views))
            found.append(Into(views, replica, cast, replace, every, partial))

        if self._together is None or alone:
            read()
        else:
            self._together.agree(read, "weights")
        [into] = found
        return into

    def pull(self, version: VersionName, into: Into, timeline: Timeline) -> PullResult:
        """Bring weights to a version; of two threads that pull into the same weights, one waits for the other."""
        try:
            with into.replica.pulling, self.stage(version, into, timeline) as staged:
                return staged.apply()
        except PulseError:
            for prefetch in list(self.prefetches):
                prefetch.wake()  # what it had given into this pull's hands is discarded
            raise

    def stage(self, version: VersionName, into: Into, timeline: Timeline, *, alone: bool = False) -> Staged:
        """Fetch, decode and verify all that leads to a version; see ``Registry.stage``.

        Of ranks that pull together, a collective. What one of them stages ``alone`` is for ``Prefetch.hand_out``.
        """
        if self._together is not None and not alone:
            return self._stage_together(self._together, version, into, timeline)
        early = self._early(version, into)

        def staged(state: RunState, entry: VersionEntry) -> Staged:
            context = self._context()
            geometry = context.geometry(entry.layout)
            slices = into.slices(geometry) if self._together is None else into.slice_map(geometry, alone=False)
            destination = self._destinations.into(context, geometry, into.views, cast=into.cast, slices=slices)
            if isinstance(destination, SlicedDestination) and self._together is not None:
                held = into.replica.slices
                destination.speaks, destination.together = None if held is None else held.speaks, True
            request = PullRequest(state, entry, destination, timeline)
            if early is not None:
                request = replace(request, early=early.take)
            return stage_into(context, request, self._settings_of(into), into.replica, replace_all=into.replace)

        return self.of(version, staged, None if early is None else early.heard)

    def _early(self, version: VersionName, into: Into) -> EarlyPatch | None:
        """Return what reads the next patch as soon as its record is known; None where it would not be wanted."""
        base = into.replica.version
        if base is None or into.replace or (isinstance(version, int) and version <= base):
            return None
        if self._together is not None or into.sliced:
            return None  # of slices' groups some are read
        early = EarlyPatch(self._context(), base)
        early.known(self._versions.seen)
        return early

    def _settings_of(self, into: Into) -> PullSettings:
        return self._settings if into.check_every is None else replace(self._settings, check_every=into.check_every)

    def _stage_together(self, together: Together, version: VersionName, into: Into, timeline: Timeline) -> Staged:
        """Stage a version on all ranks, or on none; if it is retired meanwhile, the one that its name then means."""
        versions = self._versions

        def find() -> int:
            return versions.found(version)[1].version

        number = together.same_version(find)
        while True:
            try:
                return self._stage_number(together, number, into, timeline)
            except Gone:  # on all ranks alike
                gone, number = number, together.same_version(find)
                if number == gone:
                    raise

    def _stage_number(self, together: Together, number: int, into: Into, timeline: Timeline) -> Staged:
        """Stage a version by its number on all ranks, or on none; a fixed sequence of collectives."""
        attempt = Attempt(together.peers)
        nothing: list[tuple[Context, PullRequest, SliceMap]] = []
        prepared = attempt.run(lambda: [self._prepared(number, into, timeline)], nothing)
        attempt.agree("layout")
        [(context, request, slices)] = prepared
        cover = together.cover(slices, context.backend, context.map_)
        if self._copy is not None:
            request = replace(request, given=self._copy.stage(context, request, slices))

        with ExitStack() as undo:

            def stage() -> list[Staged]:
                settings, destination = self._settings_of(into), request.destination
                if (ready := self._prefetched(number, into, undo)) is not None:
                    ready.renew(cover.speaks, settings)
                    return [ready]
                if isinstance(destination, SlicedDestination):
                    destination.speaks, destination.together = cover.speaks, True
                made = stage_into(context, request, settings, into.replica, replace_all=into.replace)
                return [undo.enter_context(made)]

            unstaged: list[Staged] = []
            made = attempt.run(stage, unstaged)
            attempt.agree("stage")
            [staged] = made
            staged.join(together, together.check(staged.found, cover, request.entry, staged.check_open))
            undo.pop_all()
        return staged

    def _prefetched(self, number: int, into: Into, undo: ExitStack) -> Staged | None:
        """Return what a prefetch has ready of a version for these weights; ``undo`` gives it back."""
        for prefetch in list(self.prefetches):
            if isinstance(prefetch, PrefetchTogether) and (ready := prefetch.hand_out(number, into)) is not None:
                undo.callback(prefetch.give_back, ready)
                return ready
        return None

    def _prepared(self, number: int, into: Into, timeline: Timeline) -> tuple[Context, PullRequest, SliceMap]:
        context = self._context()
        state, entry = self._versions.found(number)
        geometry = context.geometry(entry.layout)
        slices = into.slice_map(geometry, alone=False)
        destination = self._destinations.into(context, geometry, into.views, cast=into.cast, slices=slices)
        request = PullRequest(state, entry, destination, timeline)
        return context, on_base(request, into.replica, replace_all=into.replace), slices

    def load(self, version: VersionName, framework: Framework, timeline: Timeline) -> dict[str, Any]:
        """Return a version as new tensors by name; see ``Registry.load``."""

        def loaded(state: RunState, entry: VersionEntry) -> dict[str, Any]:
            context = self._context()
            weights = Weights.empty(context.geometry(entry.layout))
            destination = HostDestination(weights, context.backend, context.pool)
            with stage_new(context, PullRequest(state, entry, destination, timeline), self._settings) as staged:
                staged.apply()
            tensors = new_tensors(weights, framework)
            self.replicas.of(read_model(tensors)).now_at(entry.version)
            return tensors

        return self.of(version, loaded)

    def of(
        self,
        version: VersionName,
        use: Callable[[RunState, VersionEntry], Result],
        told: Callable[[Record], None] | None = None,
    ) -> Result:
        """Return what ``use`` makes of a version; if that is retired meanwhile, of the one that its name then means.

        What is new in the log is ``told``; see ``LogReader.refresh``.
        """
        while True:
            state, entry = self._versions.found(version, told)
            try:
                return use(state, entry)
            except Gone:
                if not self._versions.moved(version, entry):
                    raise

    def verify_stored(self, context: Context, state: RunState, entry: VersionEntry) -> None:
        """Fetch the objects on a version's route, and check them against its state digest by a full pass.

        Raises:
            CorruptObject: an object is damaged.
        """
        weights = Weights.empty(context.geometry(entry.layout))
        destination = HostDestination(weights, context.backend, context.pool)
        with stage_new(context, PullRequest(state, entry, destination, Timeline()), PullSettings()) as staged:
            staged.apply()
        found = weights.digest(context.backend, context.map_)
        if found != Digest.parse(entry.digest):
            raise CorruptObject(_other_cells(entry, found))

    def verify_model(self, state: RunState, entry: VersionEntry, model: Model, *, cast: bool, partial: bool) -> None:
        """Check a model's cells against a version's state digest by a full pass; remember that it holds the version.

        Slices that are not all of the version are compared with what is stored of them, which is fetched. With a host
        copy it is a collective, since that may have to hold the version.

        Raises:
            LayoutMismatch: the model has other tensors.
            BaseMismatch: its cells are not those of the version.
        """
        context = self._context()
        geometry, read = context.geometry(entry.layout), list[tuple[Mapping[str, View], SliceMap | None]]()

        def look() -> None:
            views = read_model(model)
            into = Into(views, self.replicas.of(views), partial=partial)
            if self._copy is None:
                read.append((views, into.slices(geometry, alone=self._together is None)))
                return
            slices = into.slice_map(geometry, alone=False)
            self._destinations.into(context, geometry, views, cast=cast, slices=slices)
            read.append((views, slices))

        if self._together is None or self._copy is None:
            look()
        else:
            self._together.agree(look, "slices")
        [(views, slices)] = read
        if slices is not None:
            held = self._destinations.into(context, geometry, views, cast=cast, slices=slices)
            wanted = self._compared(context, PullRequest(state, entry, held, Timeline()), slices)
            self.replicas.of(views).now_at(entry.version, wanted)
            return
        found = self._destinations.digest(context, geometry, views, cast=cast)
        if found != Digest.parse(entry.digest):
            raise BaseMismatch(_other_cells(entry, found))
        self.replicas.of(views).now_at(entry.version)

    def _compared(self, context: Context, request: PullRequest, slices: SliceMap) -> SliceDigests:
        """Compare slices with what is stored of a version, or with the host copy; return the digests of that."""
        held, entry = request.destination, request.entry
        copied = None if self._copy is None else self._copy.cells(context, request, slices)
        weights = Weights.empty(slices.local) if copied is None else copied
        cells = HostDestination(weights, context.backend, context.pool)
        stored = SlicedDestination(cells, slices, context.backend, context.pool)
        if copied is not None:
            wanted: SliceDigests | None = stored.digests(context.map_)
        else:
            with stage_new(context, replace(request, destination=stored), PullSettings()) as staged:
                staged.apply()
                wanted = staged.slices
        if wanted is None or held.digest() != wanted.local:
            names = list(differing(held, stored))
            listed = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise BaseMismatch(f"the slices are not those of version {entry.version}: {listed} differ", names)
        return wanted

    def close(self) -> None:
        """Let go of the host copy. Idempotent."""
        if self._copy is not None:
            self._copy.close()

    def prefetch(
        self, held: Held, stage: Callable[[VersionName], Staged], poll_seconds: float, events: Events
    ) -> Prefetch:
        """Keep the newest version staged in the background; see ``Registry.prefetch``.

        Args:
            held: returns the weights, as ``into`` does.
            stage: stages a version for them, on this rank.
            poll_seconds: between two looks at the log.
            events: hear of each try that fails.
        """
        versions, together = self._versions, self._together

        def news(state: RunState | None, sleep: Callable[[float], object]) -> RunState:
            return versions.look() if state is None else versions.wait(state, poll_seconds, WAIT_SECONDS, sleep)

        def number(version: VersionName) -> int:
            return versions.found(version)[1].version

        into = held(alone=True)
        made: Prefetch
        if together is None:
            made = Prefetch(stage, number, news, into.replica, events, versions.run)
        else:
            ranks = Ranks(together, into, lambda version: self.stage(version, held(alone=False), Timeline()))
            made = PrefetchTogether(stage, number, news, ranks, events, versions.run)
        self.prefetches.add(made)
        return made


def _other_cells(entry: VersionEntry, found: Digest) -> str:
    return (
        f"the cells are not those of version {entry.version}: their state digest is {found.hex()}, {entry.digest} was "
        "committed"
    )
