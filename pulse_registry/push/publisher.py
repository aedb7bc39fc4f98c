"""The trainer's side of a run. A push: diff -> code -> upload -> commit.

``Publisher.push`` diffs, group by group, while the caller waits; each group is coded on the pool as soon as it is
diffed. One background thread stores and commits, in order: a large patch goes up while it is coded. The log says what
exists: objects are stored first and the record last, so a push that dies at any point leaves orphans and never half a
version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, SupportsIndex

from pulse_registry.context import Context
from pulse_registry.errors import Conflict, LayoutMismatch, PulseError
from pulse_registry.log import LogWriter, NewId
from pulse_registry.log.integers import integer
from pulse_registry.push.baseline import Baseline
from pulse_registry.push.commit import draft_of, result_of
from pulse_registry.push.failure import taken_along
from pulse_registry.push.files import FilesArgument, read_files
from pulse_registry.push.founding import Base, Founding
from pulse_registry.push.future import PushFuture
from pulse_registry.push.keyframe import KeyframeWriter
from pulse_registry.push.labels import checked_metadata
from pulse_registry.push.options import PushOptions
from pulse_registry.push.pending import PendingPush
from pulse_registry.push.publishing import Publishing
from pulse_registry.push.shadow import Shadow
from pulse_registry.push.upload import store_patch
from pulse_registry.results import PushResult
from pulse_registry.timeline import Timeline
from pulse_registry.weights.device import Placement, on_host
from pulse_registry.weights.model import Model, View, check_whole, layout_of
from pulse_registry.weights.reading import ModelReader, once
from pulse_schemas import KeyframeRef, Layout, PatchRef


class Publisher(Publishing[PendingPush]):
    """The trainer's side of one run: pushes are diffed one by one; their uploads follow in the background, in order."""

    def __init__(
        self,
        context: Context,
        writer: LogWriter,
        new_id: NewId,
        options: PushOptions,
        thread: Executor,
        placement: Placement = on_host,
        committed: Sequence[Callable[[PushResult], None]] = (),
        base: Base | None = None,
    ) -> None:
        """Prepare to publish; no I/O yet.

        Args:
            context: store, threads, and who hears of events.
            writer: of the run's log.
            new_id: gives write ids.
            options: how to push.
            thread: one, for this publisher alone; ``close`` ends it.
            placement: where models are worked on.
            committed: are called with each version's result, in that thread; they neither wait nor raise.
            base: what the run begins with, if it has no version yet; None: with the first push.
        """
        super().__init__(context, writer, options, thread, committed)
        self._reader, self._writer, self._new_id = writer.reader, writer, new_id
        founding = None if base is None else Founding(base, context.store, writer, new_id)
        self._baseline = Baseline(context, self._reader, writer, options, placement, founding)
        self._models = ModelReader()
        self._keyframes = KeyframeWriter(context, writer, new_id, options)

    def push(
        self,
        step: SupportsIndex,
        model: Model,
        metadata: Mapping[str, Any] | None,
        files: FilesArgument | None = None,
    ) -> PushFuture:
        """Diff the model and queue the rest. See ``Registry.push``."""
        timeline, label, kept = Timeline(), integer(step, "step"), checked_metadata(metadata)
        given = None if files is None else read_files(files)
        views = self._models.read(model)
        layout = self._layout_of(views)
        while True:
            with self._lock:
                self._check_open()
                if (unseen := self._queue.unseen()) is not None:
                    raise unseen
                replaced = self._room(label, layout, views)
                if replaced is not None:
                    shadow, advance = self._diff(label, views, layout, timeline, replaced)
                    generation, future = self._baseline.generation, PushFuture(label)
                    carried = self._files.take(given, model, layout.id)
                    push = PendingPush(
                        version=shadow.version,
                        step=label,
                        shadow=shadow,
                        advance=advance,
                        metadata=kept,
                        files=carried,
                        generation=generation,
                        timeline=timeline,
                        future=future,
                        replaced=replaced,
                    )
                    self._queue.put(push, self._publish_next)
                    return future
            with timeline.during("wait"):
                self._queue.wait()

    def take_over(self, model: Model) -> None:
        """Begin this writer's term, and bring the shadow to the newest version. See ``Registry.take_over``."""
        views = self._models.read(model)
        layout = self._layout_of(views)
        while True:
            with self._lock:
                self._check_open()
                if not self._lost:
                    shadow, _ = self._baseline.newest(layout, views)
                    self._baseline.trusted |= shadow is not None
                    return
            self._queue.wait()

    def _layout_of(self, views: Mapping[str, View]) -> Layout:
        def whole() -> Layout:
            check_whole(views)
            return layout_of(views, self._options.dtype)

        return once(views, ("layout", self._options.dtype), whole)

    @property
    def _lost(self) -> bool:
        """Whether there is no shadow, and what it would be made from is not in the log yet, but on its way."""
        return self._baseline.shadow is None and self._queue.busy

    def _room(self, step: int, layout: Layout, views: Mapping[str, View]) -> list[PushFuture] | None:
        """Make room for one more push; None: it has to wait. The lock is held.

        Returns:
            The futures of the pushes whose place it is to take: the shadow is at the version before them again.
        """
        if self._lost:
            return None
        if not self._queue.full:
            return []
        push = self._queue.waiting
        if self._options.when_full == "wait" or push is None or push.advance is None:
            return None
        if not self._baseline.may_replace(push, layout):
            return None
        # What this push changes must be fit to be published before another one is given up for it.
        self._baseline.check_finite(step, views)
        if not self._queue.take_back(push):
            return None
        push.advance.stop()
        push.shadow.revert(push.version)
        return [push.future, *push.replaced]

    def _diff(
        self, step: int, views: Mapping[str, View], layout: Layout, timeline: Timeline, replaced: list[PushFuture]
    ) -> tuple[Shadow, Any]:
        """Move the baseline to the model's cells; the lock is held.

        If it fails, the pushes whose place it was to take have failed as well.
        """
        try:
            try:
                newest = self._baseline.newest(layout, views)
            except LayoutMismatch:
                raise
            except PulseError as error:
                self._tell_failed(step, error)
                raise
            return self._baseline.diff(step, views, layout, newest, timeline)
        except BaseException as error:
            for future in replaced:
                lost = f"step {step} was to take its place, and failed: {error!r}. The next push carries its changes"
                self._tell_failed(future.step, failure := Conflict(f"step {future.step} was not pushed: {lost}"))
                self._queue.fail(future, failure)
            raise

    def _publish(self, push: PendingPush) -> PushResult:
        """Code -> upload -> commit."""
        self._check_in_order(push)
        write_id, timeline = self._new_id(), push.timeline
        stored: PatchRef | KeyframeRef
        if push.advance is not None:
            coded = push.advance.coded()
            context, geometry = self._context, push.shadow.geometry
            stored = store_patch(context.store, geometry, push.version, write_id, coded, context.fetchers, timeline)
        else:
            with timeline.during("upload", push.shadow.geometry.nbytes):
                stored = self._keyframes.store(push.shadow, push.version, write_id)
        geometry = push.shadow.geometry
        parent = self._reader.state.find(push.version - 1)
        files = push.files.store(self._context.store, parent, geometry.id)
        with timeline.during("commit"):
            record = self._writer.commit(draft_of(push, geometry, push.digest, write_id, stored, files))
            push.shadow.settle(push.version)
        with self._lock:
            self._files.committed(push.files)
        self._queue_keyframe(push.shadow)
        return result_of(push, push.shadow.geometry, record)

    def _check_in_order(self, push: PendingPush) -> None:
        if push.generation != self._baseline.generation:
            raise taken_along(push.step, self._baseline.failure)

    def _take_back(self, push: PendingPush, error: BaseException) -> None:
        if push.advance is not None:
            push.advance.stop()
        with self._lock:
            self._baseline.take_back(push, error)

    def _queue_keyframe(self, shadow: Shadow) -> None:
        """Let a keyframe of the newest version follow the pushes that are on their way, if it is due."""
        if not self._keyframes.due(self._reader.state, shadow):
            return
        try:
            self._queue.then("a keyframe", lambda: self._attach_keyframe(shadow))
        except RuntimeError:
            # The process ends: this thread is the last to work, so it does it now.
            self._attach_keyframe(shadow)

    def _attach_keyframe(self, shadow: Shadow) -> None:
        self._keyframes.attach(self._reader.state, shadow)
