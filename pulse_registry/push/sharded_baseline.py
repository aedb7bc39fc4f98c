"""The baseline of pushes of a sharded model: what each rank speaks for, and its shadow of the newest version.

Ranks agree on it before their first push, after a failure that leaves no shadow, and where a rank holds other tensors
than before. Then each rank diffs by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulse_registry.context import Context
from pulse_registry.errors import Conflict, Gone, InvalidArgument, NotFound
from pulse_registry.log import RunState
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.sliced_destination import SlicedDestination, SliceDigests
from pulse_registry.pull.stage import stage_version
from pulse_registry.push.expected import check_expected
from pulse_registry.push.founding import Founding
from pulse_registry.push.holdings import Spoken, speak, union
from pulse_registry.push.homes import homes_of
from pulse_registry.push.layout_change import check_layout
from pulse_registry.push.options import PushOptions
from pulse_registry.push.replicas import ReplicaWatch
from pulse_registry.push.shadow import Shadow, first_shadow
from pulse_registry.push.shared_log import SharedLog
from pulse_registry.push.whole_groups import follow_whole_groups
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry, Numbers
from pulse_registry.weights.device import Placement
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View, layout_of
from pulse_registry.weights.nonfinite import first_in_groups, judge
from pulse_schemas import Layout, VersionEntry


@dataclass(slots=True)
class Prepared:
    """What all ranks agreed on for one way in which the model is held.

    Attributes:
        id: hash of what this rank holds.
        geometry: of the layout of all ranks.
        spoken: what this rank speaks for.
        homes: the rank of each group.
        shadow: of the cells that it speaks for; None: no version has this layout.
        version: the number of the newest version; -1: there is none.
    """

    id: bytes
    geometry: Geometry
    spoken: Spoken
    homes: Numbers
    shadow: Shadow | None
    version: int


class ShardedBaseline:
    """Makes what pushes are diffed against, and diffs them. Its owner has a lock."""

    def __init__(
        self,
        context: Context,
        peers: Peers,
        log: SharedLog,
        replicas: ReplicaWatch,
        options: PushOptions,
        placement: Placement,
        founding: Founding | None = None,
    ) -> None:
        """Take the ranks; no I/O yet.

        Args:
            context: store, threads, and who hears of events.
            peers: the ranks.
            log: of the run.
            replicas: compares them.
            options: how to push.
            placement: where this rank's part is worked on.
            founding: gives the run its first version, at the coordinator; None: the first push does.
        """
        self._context, self._peers, self._log, self._replicas = context, peers, log, replicas
        self._options, self._placement, self._founding = options, placement, founding

    def prepared(self, id_: bytes, views: Mapping[str, View]) -> Prepared:
        """Agree on the layout, on who speaks for what, and on the version that shadows stand for; a collective.

        Raises:
            InvalidModel: on all ranks: what they hold is no model together, or replicas differ.
            InvalidModel, LayoutMismatch: the layout is new, and another one is expected, or none: on all ranks, and
                nothing was written.
            PulseError: on all ranks, what went wrong on one.
        """
        peers, context = self._peers, self._context
        layout = union(peers, layout_of(views, self._options.dtype), views)
        geometry = Geometry(layout)
        spoken = speak(peers, geometry, views, context.backend, context.map_)
        self._replicas.begin(spoken, views)
        homes = homes_of(peers, spoken.slices)
        try:
            version = self._log.begin(lambda state: self._check(layout, state), self._found)
            self._replicas.begin_after(version)
            shadow = self._caught_up(geometry, spoken, homes, views, version)
        except Gone:  # on all ranks alike
            # The newest version is retired only once there is a newer one: by a newer writer, of which this tells.
            self._log.check_term()
            raise
        return Prepared(id_, geometry, spoken, homes, shadow, version)

    def diff(
        self, prepared: Prepared, step: int, views: Mapping[str, View], timeline: Timeline
    ) -> tuple[Sequence[bytes] | None, Exception | None]:
        """Move the shadow to this rank's live cells, or copy them, where no version has this layout.

        Returns:
            Digests of the replicas, if all ranks are to compare them; and what went wrong, for all ranks to raise.
        """
        shadow, local = prepared.shadow, prepared.spoken.slices.local
        prepared.shadow = None  # cut off in the middle, it may hold no version
        live, advanced = prepared.spoken.live(views), shadow is not None
        replicas: Sequence[bytes] | None = None
        failure: Exception | None = None
        try:
            with timeline.during("diff"):
                replicas = self._replicas.digests(prepared.spoken, views)
            if shadow is None:
                with timeline.during("diff", local.nbytes):
                    shadow = self._new_shadow(prepared.spoken, live, prepared.version + 1)
            else:
                shadow.advance(live, None, timeline)
            self._judge(step, prepared, shadow, advanced=advanced)
        except Exception as error:  # noqa: BLE001 - for all ranks to raise, as it was before the diff here
            failure = error
        prepared.shadow = shadow
        return replicas, failure

    def _judge(self, step: int, prepared: Prepared, shadow: Shadow, *, advanced: bool) -> None:
        """Do what the policy says about NaN and infinities among the cells that a push changed, or all, if all are new.

        Raises:
            InvalidModel: the policy is to refuse.
        """
        nonfinite, version, local = self._options.nonfinite, shadow.version, shadow.geometry
        if nonfinite == "allow":
            return
        if advanced:
            flat = shadow.changes_of(version).not_finite()
        else:
            flat = first_in_groups(local, lambda group: shadow.cells_at(version, group), self._context.map_)
        whole = None if flat is None else prepared.spoken.slices.flat_of(flat)
        judge(nonfinite, prepared.geometry, whole, f"step {step}", self._log.reader.run, self._context.events)

    def _new_shadow(self, spoken: Spoken, live: Mapping[str, View], version: int) -> Shadow:
        local = spoken.slices.local
        return first_shadow(self._context, self._placement, local, live, version, self._options.shadow)

    def _found(self, state: RunState) -> None:
        if self._founding is not None:
            self._founding.begin(state)

    def _check(self, layout: Layout, state: RunState) -> None:
        """Check that this layout may follow the newest version, or the one that the run is to begin with."""
        if self._founding is not None:
            self._founding.check(state, layout)
        latest, context, run = state.latest, self._context, self._log.reader.run
        check_expected(self._options.expect, layout, latest)
        if latest is None or latest.layout == layout.id:
            return
        before, allowed = latest.layout, self._options.allow_new_layout
        check_layout(
            run, layout, latest.version, lambda: context.geometry(before).layout, context.events, allowed=allowed
        )

    def _caught_up(
        self, geometry: Geometry, spoken: Spoken, homes: Numbers, views: Mapping[str, View], version: int
    ) -> Shadow | None:
        """Bring a shadow to the newest version, if that has this layout: each rank by its own route."""
        context, attempt = self._context, Attempt(self._peers)
        state = self._log.reader.state
        entry = state.version(version) if version >= 0 else None
        if entry is None or entry.layout != geometry.id:
            return None
        nothing: list[tuple[Shadow, SlicedDestination, SliceDigests]] = []

        def copied() -> list[tuple[Shadow, SlicedDestination, SliceDigests]]:
            shadow = self._new_shadow(spoken, spoken.live(views), version)
            cells = SlicedDestination(shadow.destination(), spoken.slices, context.backend, context.pool)
            return [(shadow, cells, cells.digests(context.map_))]

        made = attempt.run(copied, nothing)
        attempt.agree("shadow")
        [(shadow, cells, digests)] = made
        base = state.by_digest(geometry.id, self._whole(digests, "live").hex())
        if base is None or base.version != version:
            cells.known = None if base is None else digests
            digests = attempt.run(lambda: self._stored(state, entry, cells, base), digests)
            if self._need_whole_groups(attempt, state, spoken):
                follow_whole_groups(context, self._peers, homes, state, entry, cells)
                digests = attempt.run(lambda: cells.digests(context.map_), digests)
            attempt.agree("newest cells")
            found = self._whole(digests, "newest cells").hex()
            if found != entry.digest:
                raise Conflict(
                    f"the ranks' cells of version {version} have the state digest {found}, and {entry.digest} was "
                    "committed"
                )
        shadow.resume(version, digests.local)
        return shadow

    def _stored(
        self, state: RunState, entry: VersionEntry, cells: SlicedDestination, base: VersionEntry | None
    ) -> SliceDigests:
        """Bring this rank's cells from ``base``, or from nothing, to a version; return their digests."""
        staged = stage_version(self._context, PullRequest(state, entry, cells, Timeline(), base))
        staged.store()
        found = staged.slices
        staged.close()
        if found is None:
            raise InvalidArgument("slices without digests")
        return found

    def _need_whole_groups(self, attempt: Attempt, state: RunState, spoken: Spoken) -> bool:
        """Tell whether a rank found no way but by patches that it can't read, of groups that it holds in part.

        A collective. That rank's attempt goes on then.
        """
        lacking = isinstance(attempt.failure, NotFound) and not isinstance(attempt.failure, Gone)
        unread = lacking and not spoken.slices.whole and len(state.edges.rows_of_class()) > 0
        needed = any(self._peers.all_gather(b"1" if unread else b"", "whole groups needed"))
        if unread:
            attempt.failure = None
        return needed

    def _whole(self, digests: SliceDigests, what: str) -> Digest:
        """Return the state digest of what all ranks speak for."""
        return Digest(*sum_lanes(self._peers, (digests.share.lane_0, digests.share.lane_1), what))
