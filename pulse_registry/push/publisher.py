"""Publishing: diff -> code -> upload -> commit.

Groups go through diff and coding one by one, side by side; the caller waits for the last diff, and one background
thread stores and commits, in order: a large patch goes up while it is coded. The log says what exists: objects are
stored first and the record last, so a push that dies at any point leaves orphans and never half a version.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import Conflict, Fenced, Gone, InvalidArgument, InvalidModel, LayoutMismatch, PulseError
from pulse_registry.events import Event, EventKind
from pulse_registry.format.keyframe import write_keyframe
from pulse_registry.format.keys import layout_key
from pulse_registry.log import CommitDraft, LogReader, LogWriter, NewId, RunState
from pulse_registry.log.documents import LAYOUT
from pulse_registry.process.closing import Closing
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.stage import stage_version
from pulse_registry.push.future import PushFuture
from pulse_registry.push.layout_change import first_difference
from pulse_registry.push.options import PushOptions
from pulse_registry.push.queue import Job, PushQueue
from pulse_registry.push.shadow import Advance, Shadow, first_shadow
from pulse_registry.push.upload import store_patch
from pulse_registry.results import PushResult
from pulse_registry.store import create
from pulse_registry.timeline import Timeline, extents
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.device import Placement, on_host
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import Model, View, layout_of, read_model
from pulse_registry.weights.nonfinite import NonFinite, first_in_groups, judge
from pulse_schemas import KeyframeRef, Layout, VersionEntry

_logger = logging.getLogger(__name__)


class Publisher:
    """The trainer's side of one run: pushes are diffed one by one; their uploads follow in the background, in order."""

    def __init__(
        self,
        context: Context,
        reader: LogReader,
        writer: LogWriter,
        new_id: NewId,
        options: PushOptions,
        thread: Executor,
        placement: Placement = on_host,
        nonfinite: NonFinite = "allow",
        committed: Callable[[PushResult], None] = lambda result: None,
    ) -> None:
        """Prepare to publish; no I/O yet.

        Args:
            context: store, threads, and who hears of events.
            reader: of the run's log.
            writer: of the same.
            new_id: gives write ids.
            options: how to publish.
            thread: one, for this publisher alone; ``close`` ends it.
            placement: where models are worked on.
            nonfinite: what becomes of weights that are NaN or infinite.
            committed: is told of each version, in that thread; it neither waits nor raises.
        """
        self._nonfinite: NonFinite = nonfinite
        self._placement = placement
        self._context = context
        self._reader = reader
        self._writer = writer
        self._new_id = new_id
        self._options = options
        self._tell = committed
        self._lock = threading.RLock()
        self._queue = thread
        self._pushes = PushQueue(thread, self._run, options.max_pending, reader.run)
        self._shadow: Shadow | None = None
        self._trusted = False  # whether the shadow is known to be the newest version
        self._closed = False
        self._generation = 0
        self._failure: BaseException | None = None
        self._stored_layouts: set[str] = set()

    def push(self, step: int, model: Model, metadata: Mapping[str, Any]) -> PushFuture:
        """Diff the model and queue the rest; ``metadata`` is plain and nobody else's. See ``Registry.push``."""
        timeline = Timeline()
        views = read_model(model)
        layout = layout_of(views, self._options.dtype)
        while True:
            with self._lock:
                self._check_open()
                if (unseen := self._pushes.unseen()) is not None:
                    raise unseen
                replaced = self._room(step, layout, views)
                if replaced is not None:
                    return self._begin(step, views, layout, metadata, timeline, replaced)
            with timeline.during("wait"):
                self._pushes.wait()

    def take_over(self, model: Model) -> None:
        """Begin this writer's term, and bring the shadow to the newest version. See ``Registry.take_over``."""
        views = read_model(model)
        layout = layout_of(views, self._options.dtype)
        while True:
            with self._lock:
                self._check_open()
                if not self._lost:
                    shadow, _ = self._newest(layout, views)
                    self._trusted |= shadow is not None
                    return
            self._pushes.wait()

    def close(self, closing: Closing) -> None:
        """Refuse new pushes, and wait for those on their way. Idempotent.

        Raises:
            StoreUnavailable: they are not done in time.
        """
        self._closed = True
        with self._lock:
            pass  # a push that had begun is queued now
        self._pushes.finish(closing)

    def unseen(self) -> BaseException | None:
        """Return the first failure that nobody has seen; once."""
        return self._pushes.unseen()

    @property
    def _lost(self) -> bool:
        """Whether there is no shadow, and what it would be made from is not in the log yet, but on its way."""
        return self._shadow is None and self._pushes.busy

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the registry was closed; open it again")

    def _room(self, step: int, layout: Layout, views: Mapping[str, View]) -> list[PushFuture] | None:
        """Make room for one more push; None: it has to wait. The lock is held.

        Returns:
            The futures of the pushes whose place it is to take: the shadow is at the version before them again.
        """
        if self._lost:
            return None
        if not self._pushes.full:
            return []
        job, shadow = self._pushes.waiting, self._shadow
        if self._options.when_full == "wait" or job is None or job.advance is None or shadow is None:
            return None
        if not self._trusted or job.generation != self._generation:
            return None  # it has failed, or is about to
        if job.shadow is not shadow or layout.id != shadow.geometry.id:
            return None
        if self._nonfinite == "refuse":
            # What this push changes must be fit to be published before another one is given up for it.
            self._shadow = None
            advance = shadow.advance(views, self._options.coder, Timeline())
            self._shadow = shadow
            self._judge(step, shadow, advance)
            advance.stop()
            shadow.revert(advance.version)
        if not self._pushes.take_back(job):
            return None
        job.advance.stop()
        shadow.revert(job.version)
        return [job.future, *job.replaced]

    def _begin(
        self,
        step: int,
        views: Mapping[str, View],
        layout: Layout,
        metadata: Mapping[str, Any],
        timeline: Timeline,
        replaced: list[PushFuture],
    ) -> PushFuture:
        """Move the shadow to the model's cells, and queue what follows; the lock is held.

        If it fails, the pushes whose place it was to take have failed as well.
        """
        try:
            shadow, advance = self._advance(step, views, layout, timeline)
        except BaseException as error:
            for future in replaced:
                lost = f"step {step} was to take its place, and failed: {error!r}. The next push carries its changes"
                self._tell_failed(future.step, failure := Conflict(f"step {future.step} was not pushed: {lost}"))
                self._pushes.fail(future, failure)
            raise
        future = PushFuture(step)
        digest, generation = shadow.digest, self._generation
        self._pushes.put(
            Job(shadow.version, step, shadow, advance, digest, metadata, generation, timeline, future, replaced)
        )
        return future

    def _advance(
        self, step: int, views: Mapping[str, View], layout: Layout, timeline: Timeline
    ) -> tuple[Shadow, Advance | None]:
        """Move the shadow to the model's cells, or make one of them where there is none of this layout."""
        try:
            shadow, version = self._newest(layout, views)
        except LayoutMismatch:
            raise
        except PulseError as error:
            self._tell_failed(step, error)
            raise
        advance: Advance | None = None
        if shadow is None:
            geometry = Geometry(layout)
            with timeline.during("diff", geometry.nbytes):
                shadow = self._new_shadow(geometry, views, version)
            self._judge(step, shadow, None)
        else:
            self._shadow = None  # cut off in the middle, it may hold no version
            advance = shadow.advance(views, self._options.coder, timeline)
            self._judge(step, shadow, advance)
        self._shadow, self._trusted = shadow, True
        return shadow, advance

    def _new_shadow(self, geometry: Geometry, views: Mapping[str, View], version: int) -> Shadow:
        return first_shadow(self._context, self._placement, geometry, views, version, self._options.shadow)

    def _judge(self, step: int, shadow: Shadow, advance: Advance | None) -> None:
        """Do what the policy says about NaN and infinities among the cells that a push changed, or all, if all are new.

        Raises:
            InvalidModel: the policy is to refuse; the shadow is at the version before, for the next push.
        """
        if self._nonfinite == "allow":
            return
        geometry, context = shadow.geometry, self._context
        if advance is None:
            flat = first_in_groups(geometry, self._cells_of(shadow, shadow.version), context.map_)
        else:
            flat = shadow.changes_of(advance.version).not_finite()
        try:
            judge(self._nonfinite, geometry, flat, f"step {step}", self._reader.run, context.events)
        except InvalidModel:
            if advance is not None:
                advance.stop()
                shadow.revert(advance.version)
                self._shadow = shadow
            raise

    def _newest(self, layout: Layout, views: Mapping[str, View]) -> tuple[Shadow | None, int]:
        """Return the shadow to diff against, None where this layout begins anew, and the number after the newest."""
        if self._shadow is None or not self._trusted:
            if not self._options.allow_new_layout:
                self._check_layout(layout, self._reader.refresh().latest)  # before this term's record is written
            self._writer.begin()
            try:
                self._shadow = self._caught_up(self._reader.refresh(), layout.id, views)
            except Gone:
                # The newest version is retired only once there is a newer one: by a newer writer, of which this tells.
                self._writer.begin()
                raise
        if self._shadow is not None:
            if self._shadow.geometry.id != layout.id:
                self._check_layout(layout, self._shadow)
                return None, self._shadow.version + 1
            return self._shadow, self._shadow.version + 1
        self._check_layout(layout, self._reader.state.latest)
        return None, len(self._reader.state.versions)

    def _check_layout(self, layout: Layout, before: Shadow | VersionEntry | None) -> None:
        """Tell of a push whose layout is not that of the version before it, or refuse it.

        Raises:
            LayoutMismatch: the options are to refuse it.
        """
        if before is None or layout.id == (before.layout if isinstance(before, VersionEntry) else before.geometry.id):
            return
        difference: str | None = None
        with suppress(PulseError):  # whatever became of the old layout, the new one can be stored
            old = self._context.geometry(before.layout) if isinstance(before, VersionEntry) else before.geometry
            difference = first_difference(old.layout, layout)
        what = difference or "the layout of the version before can't be read"
        if not self._options.allow_new_layout:
            raise LayoutMismatch(
                f"run {self._reader.run!r}: the model has another layout than version {before.version}: {what}. "
                "Nothing was written; allow_new_layout=True would make it a keyframe"
            )
        message = f"the model has another layout than version {before.version}, and is stored whole: {what}"
        self._context.events.tell(Event(EventKind.LAYOUT_CHANGED, self._reader.run, message))

    def _caught_up(self, state: RunState, layout_id: str, views: Mapping[str, View]) -> Shadow | None:
        """Bring the shadow (or a new one) to the newest version, as a worker would.

        A new one begins as a copy of the live weights. Where those are a version, as a trainer's are that has pulled it
        or has loaded its own checkpoint of it, no more is fetched than what follows that version.
        """
        latest = state.latest
        if latest is None or latest.layout != layout_id:
            return None
        known = self._shadow if self._shadow is not None and self._shadow.geometry.id == layout_id else None
        base = state.find(known.version) if known is not None else None
        if base is None or known is None or base.digest != known.digest.hex():
            known = None  # so old that it is forgotten, or another writer's version has its number
        shadow = known
        if shadow is None:
            shadow = self._new_shadow(self._context.geometry(layout_id), views, -1)
            base = version_of(state, layout_id, shadow.digest.hex())
        if base is not None and base.version == latest.version:
            shadow.resume(latest.version, shadow.digest)
            return shadow
        staged = stage_version(self._context, PullRequest(state, latest, shadow.destination(), Timeline(), base))
        self._shadow = None  # until all cells are written, there is nothing to go on from
        staged.store()
        digest = staged.digest
        staged.close()
        shadow.resume(latest.version, digest)
        return shadow

    def _run(self, job: Job) -> PushResult:
        try:
            if job.generation != self._generation:
                failure = self._failure if isinstance(self._failure, PulseError) else Conflict(repr(self._failure))
                raise type(failure)(
                    f"step {job.step} was not pushed, since a push before it failed: {failure}. "
                    "The next push carries its changes"
                )
            result = self._publish(job)
        except BaseException as error:
            self._take_back(job, error)
            self._tell_failed(job.step, error)
            raise
        self._queue_keyframe(job.shadow)
        self._tell(result)
        return result

    def _tell_failed(self, step: int, error: BaseException) -> None:
        message = str(error) if isinstance(error, PulseError) else repr(error)
        if not message.startswith(f"step {step} was not pushed"):
            carried = "" if isinstance(error, Fenced) else ". The next push carries its changes"
            message = f"step {step} was not pushed: {message}{carried}"
        self._context.events.tell(Event(EventKind.PUSH_FAILED, self._reader.run, message))

    def _take_back(self, job: Job, error: BaseException) -> None:
        if job.advance is not None:
            job.advance.stop()
        with self._lock:
            if job.generation != self._generation:
                return  # what failed before it has taken it back already, and the shadow may have gone on since
            self._generation += 1
            self._failure = error
            if job.advance is None or self._shadow is not job.shadow:
                self._shadow = None
            else:
                job.shadow.revert(job.version)
            self._trusted = False

    def _publish(self, job: Job) -> PushResult:
        geometry, timeline = job.shadow.geometry, job.timeline
        write_id = self._new_id()
        patch = keyframe = None
        if job.advance is not None:
            coded = job.advance.coded()
            patch = store_patch(self._context.store, geometry, job.version, write_id, coded, timeline)
        else:
            with timeline.during("upload", geometry.nbytes):
                keyframe = self._store_keyframe(job, write_id)
        changed = patch.changed if patch is not None else geometry.cells
        with timeline.during("commit"):
            record = self._writer.commit(
                CommitDraft(
                    version=job.version,
                    step=job.step,
                    layout=geometry.id,
                    digest=job.digest.hex(),
                    changed=changed,
                    cells=geometry.cells,
                    write_id=write_id,
                    patch=patch,
                    keyframe=keyframe,
                    metadata=dict(job.metadata),
                )
            )
            job.shadow.settle(job.version)
        phases = timeline.phases()
        return PushResult(
            version=record.version,
            step=record.step,
            kind="keyframe" if keyframe is not None else "patch",
            changed=changed,
            cells=geometry.cells,
            nbytes=(patch or keyframe).size,  # type: ignore[union-attr]
            full_nbytes=geometry.nbytes,
            digest=record.digest,
            phases=extents(phases),
            timeline=phases,
        )

    def _store_keyframe(self, job: Job, write_id: str) -> KeyframeRef:
        geometry, store = job.shadow.geometry, self._context.store
        if geometry.id not in self._stored_layouts:
            layout = geometry.layout.canonical()
            if len(layout) > LAYOUT:
                raise InvalidModel(
                    f"a layout has at most {LAYOUT:,} bytes, and the model's names and shapes take {len(layout):,}"
                )
            create(store, layout_key(geometry.id), layout)
            self._stored_layouts.add(geometry.id)
        return self._write_keyframe(geometry, job.version, write_id, self._cells_of(job.shadow, job.version))

    def _write_keyframe(
        self, geometry: Geometry, version: int, write_id: str, cells_of: Callable[[Group], Cells]
    ) -> KeyframeRef:
        return write_keyframe(
            self._context.store,
            geometry,
            version,
            write_id,
            cells_of,
            coding=self._options.keyframe_coding,
            backend=self._context.backend.name,
            map_=self._context.map_,
        )

    @staticmethod
    def _cells_of(shadow: Shadow, version: int) -> Any:
        return lambda group: shadow.cells_at(version, group)

    def _queue_keyframe(self, shadow: Shadow) -> None:
        if not keyframe_due(self._reader.state, shadow.geometry.nbytes, self._options):
            return
        try:
            self._pushes.then("a keyframe", lambda: self._attach_keyframe(shadow))
        except RuntimeError:
            # The process ends: this thread is the last to work, so it does it now.
            self._attach_keyframe(shadow)

    def _attach_keyframe(self, shadow: Shadow) -> None:
        """Store the newest version's cells and attach them; a failure costs no version and is tried after the next."""
        state = self._reader.state
        if state.latest is None or not keyframe_due(state, shadow.geometry.nbytes, self._options):
            return
        if state.latest.layout != shadow.geometry.id:
            return
        version, write_id = state.latest.version, self._new_id()
        if shadow.digest_at(version).hex() != state.latest.digest:
            return  # the newest version is another writer's, or this shadow is no longer the newest
        sums: dict[int, Digest] = {}

        def cells_of(group: Group) -> Cells:
            cells = shadow.cells_at(version, group)
            digest = Digest(*self._context.backend.digest(cells, group.start))
            if sums.setdefault(group.number, digest) != digest:
                raise Conflict(f"group {group.number} changed while it was read")
            return cells

        try:
            keyframe = self._write_keyframe(shadow.geometry, version, write_id, cells_of)
            if sum(sums.values(), Digest()).hex() != state.latest.digest:
                raise Conflict("its cells were changed while they were read")
            self._writer.attach(keyframes=[keyframe], write_id=write_id)
        except PulseError as error:
            _logger.warning("no keyframe of version %d, to be tried after the next push: %s", version, error)
        except Exception:
            # A thread's outermost edge: nobody looks at what this ended with, and no push waits for it.
            _logger.exception("no keyframe of version %d, to be tried after the next push", version)


def version_of(state: RunState, layout_id: str, digest: str) -> VersionEntry | None:
    """Return the newest version that the log knows of a layout and a digest; None if there is none. Pure."""
    for entry in reversed(state.versions):
        if entry.digest == digest and entry.layout == layout_id:
            return entry
    return None


def keyframe_due(state: RunState, full_nbytes: int, options: PushOptions) -> bool:
    """Tell whether the newest version is to have a keyframe made, by bytes and versions since the last one. Pure."""
    latest = state.latest
    if latest is None:
        return False
    nbytes = 0
    for entry in reversed(state.versions):
        since = latest.version - entry.version
        if state.keyframe(entry.version) is not None:
            return options.keyframe_every is not None and since >= options.keyframe_every
        nbytes += sum(patch.size for patch in state.patches_into(entry.version) if patch.base == entry.version - 1)
        if options.keyframe_every is not None and since + 1 >= options.keyframe_every:
            return True
        if nbytes > options.keyframe_share * full_nbytes:
            return True
    return True
