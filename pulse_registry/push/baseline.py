"""The baseline of a push: a shadow of the newest version, or of the pushes on their way to be it.

A failed push takes the baseline back to the version before it, so that the next push carries its changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pulse_registry.context import Context
from pulse_registry.errors import Gone, InvalidModel
from pulse_registry.log import LogReader, LogWriter, RunState
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.stage import stage_version
from pulse_registry.push.expected import check_expected
from pulse_registry.push.founding import Founding
from pulse_registry.push.layout_change import check_layout
from pulse_registry.push.options import PushOptions
from pulse_registry.push.pending import PendingPush
from pulse_registry.push.shadow import Advance, Shadow, first_shadow
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.device import Placement
from pulse_registry.weights.model import View
from pulse_registry.weights.nonfinite import first_in_groups, judge
from pulse_schemas import Layout, VersionEntry


class Baseline:
    """The cells that the next push is diffed against. Not thread-safe: its owner has a lock.

    Attributes:
        shadow: the cells; None where they are to be made anew.
        trusted: whether the shadow is known to be the newest version.
        generation: how often it was taken back: what was diffed before is not to be committed.
        failure: what it was taken back for last.
    """

    def __init__(
        self,
        context: Context,
        reader: LogReader,
        writer: LogWriter,
        options: PushOptions,
        placement: Placement,
        founding: Founding | None = None,
    ) -> None:
        """Begin with no cells; no I/O yet.

        Args:
            context: store, threads, and who hears of events.
            reader: of the run's log.
            writer: of the same; begins a term before a baseline is made.
            options: how to push.
            placement: where models are worked on.
            founding: gives the run its first version; None: the first push does.
        """
        self.shadow: Shadow | None = None
        self.trusted = False
        self.generation = 0
        self.failure: BaseException | None = None
        self._context = context
        self._reader = reader
        self._writer = writer
        self._options = options
        self._placement = placement
        self._founding = founding

    def newest(self, layout: Layout, views: Mapping[str, View]) -> tuple[Shadow | None, int]:
        """Return the shadow to diff against, None where this layout begins anew, and the number after the newest."""
        if self.shadow is None or not self.trusted:
            if self._options.expect is not None or not self._options.allow_new_layout:
                latest = self._reader.refresh().latest  # before this term's record is written
                check_expected(self._options.expect, layout, latest)
                if not self._options.allow_new_layout:
                    self._check_layout(layout, latest)
            if self._founding is not None:
                self._founding.check(self._reader.refresh(), layout)
            self._writer.begin()
            if self._founding is not None:
                self._founding.begin(self._reader.refresh())
            try:
                self.shadow = self._caught_up(self._reader.refresh(), layout.id, views)
            except Gone:
                # The newest version is retired only once there is a newer one: by a newer writer, of which this tells.
                self._writer.begin()
                raise
        if self.shadow is not None:
            if self.shadow.geometry.id != layout.id:
                check_expected(self._options.expect, layout, None)
                self._check_layout(layout, self.shadow)
                return None, self.shadow.version + 1
            return self.shadow, self.shadow.version + 1
        self._check_layout(layout, self._reader.state.latest)
        return None, len(self._reader.state.versions)

    def diff(
        self,
        step: int,
        views: Mapping[str, View],
        layout: Layout,
        newest: tuple[Shadow | None, int],
        timeline: Timeline,
    ) -> tuple[Shadow, Advance | None]:
        """Move to the model's cells, whose coding begins; or copy them, where no version of this layout is there.

        Raises:
            InvalidModel: the policy refuses NaN and infinities; the shadow is at the version before.
        """
        shadow, version = newest
        advance: Advance | None = None
        if shadow is None:
            geometry = Geometry(layout)
            with timeline.during("diff", geometry.nbytes):
                shadow = self._new_shadow(geometry, views, version)
            self._judge(step, shadow, None)
        else:
            self.shadow = None  # cut off in the middle, it may hold no version
            advance = shadow.advance(views, self._options.coder, timeline)
            self._judge(step, shadow, advance)
        self.shadow, self.trusted = shadow, True
        return shadow, advance

    def may_replace(self, push: PendingPush | None, layout: Layout) -> bool:
        """Tell whether a new push can take the place of one that waits: nothing else is between them."""
        shadow = self.shadow
        if push is None or push.advance is None or shadow is None:
            return False
        if not self.trusted or push.generation != self.generation:
            return False  # it has failed, or is about to
        return push.shadow is shadow and layout.id == shadow.geometry.id

    def check_finite(self, step: int, views: Mapping[str, View]) -> None:
        """Refuse a model whose changes have NaN or infinities, where the policy says so, and change nothing.

        Raises:
            InvalidModel: they have.
        """
        shadow = self.shadow
        if self._options.nonfinite != "refuse" or shadow is None:
            return
        self.shadow = None
        advance = shadow.advance(views, self._options.coder, Timeline())
        self.shadow = shadow
        self._judge(step, shadow, advance)
        advance.stop()
        shadow.revert(advance.version)

    def take_back(self, push: PendingPush, error: BaseException) -> None:
        """Go back to the version before a push that failed, for the next one to carry its changes."""
        if push.generation != self.generation:
            return  # what failed before it has taken it back already, and the shadow may have gone on since
        self.generation += 1
        self.failure = error
        if push.advance is None or self.shadow is not push.shadow:
            self.shadow = None
        else:
            push.shadow.revert(push.version)
        self.trusted = False

    def _new_shadow(self, geometry: Geometry, views: Mapping[str, View], version: int) -> Shadow:
        return first_shadow(self._context, self._placement, geometry, views, version, self._options.shadow)

    def _judge(self, step: int, shadow: Shadow, advance: Advance | None) -> None:
        """Do what the policy says about NaN and infinities among the cells that a push changed, or all, if all are new.

        Raises:
            InvalidModel: the policy is to refuse; the shadow is at the version before, for the next push.
        """
        if self._options.nonfinite == "allow":
            return
        geometry, context = shadow.geometry, self._context
        if advance is None:
            version = shadow.version
            flat = first_in_groups(geometry, lambda group: shadow.cells_at(version, group), context.map_)
        else:
            flat = shadow.changes_of(advance.version).not_finite()
        try:
            judge(self._options.nonfinite, geometry, flat, f"step {step}", self._reader.run, context.events)
        except InvalidModel:
            if advance is not None:
                advance.stop()
                shadow.revert(advance.version)
                self.shadow = shadow
            raise

    def _check_layout(self, layout: Layout, before: Shadow | VersionEntry | None) -> None:
        """Tell of a push whose layout is not that of the version before it, or refuse it.

        Raises:
            LayoutMismatch: the options are to refuse it.
        """
        if before is None or layout.id == (before.layout if isinstance(before, VersionEntry) else before.geometry.id):
            return
        reader, events, allowed = self._reader, self._context.events, self._options.allow_new_layout

        def old() -> Layout:
            geometry = self._context.geometry(before.layout) if isinstance(before, VersionEntry) else before.geometry
            return geometry.layout

        check_layout(reader.run, layout, before.version, old, events, allowed=allowed)

    def _caught_up(self, state: RunState, layout_id: str, views: Mapping[str, View]) -> Shadow | None:
        """Bring the shadow (or a new one) to the newest version, as a worker would.

        A new one begins as a copy of the live weights. Where those are a version, as a trainer's are that has pulled it
        or has loaded its own checkpoint of it, no more is fetched than what follows that version.
        """
        latest = state.latest
        if latest is None or latest.layout != layout_id:
            return None
        known = self.shadow if self.shadow is not None and self.shadow.geometry.id == layout_id else None
        base = state.find(known.version) if known is not None else None
        if base is None or known is None or base.digest != known.digest.hex():
            known = None  # so old that it is forgotten, or another writer's version has its number
        shadow = known
        if shadow is None:
            shadow = self._new_shadow(self._context.geometry(layout_id), views, -1)
            base = state.by_digest(layout_id, shadow.digest.hex())
        if base is not None and base.version == latest.version:
            shadow.resume(latest.version, shadow.digest)
            return shadow
        staged = stage_version(self._context, PullRequest(state, latest, shadow.destination(), Timeline(), base))
        self.shadow = None  # until all cells are written, there is nothing to go on from
        staged.store()
        digest = staged.digest
        staged.close()
        shadow.resume(latest.version, digest)
        return shadow
