"""Publishing: diff -> code -> upload -> commit.

Groups go through diff and coding one by one, side by side; the caller waits for the last diff, and one background
thread stores and commits, in order: a large patch goes up while it is coded. The log says what exists: objects are
stored first and the record last, so a push that dies at any point leaves orphans and never half a version.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Literal

from pulse_kernels import Cells
from pulse_registry.coding import KeyframeCoding
from pulse_registry.detour import stage_version
from pulse_registry.digest import Digest
from pulse_registry.errors import Conflict, Gone, InvalidArgument, InvalidModel, PulseError
from pulse_registry.finite import NonFinite, first_in_groups, judge
from pulse_registry.geometry import Geometry, Group
from pulse_registry.keyframe import write_keyframe
from pulse_registry.log import CommitDraft, LogReader, LogWriter, NewId, RunState
from pulse_registry.log.keys import layout_key
from pulse_registry.model import Model, PublishDtype, View, layout_of, read_model
from pulse_registry.patch import CoderChoice
from pulse_registry.patch_upload import store_patch
from pulse_registry.placement import ShadowPlace
from pulse_registry.shadow import Advance, Shadow
from pulse_registry.stage import Staging
from pulse_registry.store import create
from pulse_registry.timeline import Timeline, extents
from pulse_registry.versions import PushResult
from pulse_schemas import KeyframeRef

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How a trainer publishes.

    Attributes:
        coder: ``gap``, ``class``, or ``auto`` to choose for each group (docs/adr/0004).
        dtype: ``bf16`` publishes float32 tensors rounded to BF16; ``keep`` publishes every tensor as it is.
        keyframe_share: a keyframe follows when the patches since the last one exceed this share of its bytes.
        keyframe_every: a keyframe at least every so many versions; None: by share alone.
        keyframe_coding: ``raw`` stores ordinary checkpoints; ``exponents`` smaller ones, which only this library reads.
        shadow: of a model on a GPU, what was published last stays in its memory, or in pinned ``host`` memory.
        compact: ``inline`` makes merged patches in a background thread; ``off`` leaves them to a compactor elsewhere.
    """

    coder: CoderChoice = "auto"
    dtype: PublishDtype = "bf16"
    keyframe_share: float = 0.5
    keyframe_every: int | None = None
    keyframe_coding: KeyframeCoding = "raw"
    shadow: ShadowPlace = "device"
    compact: Literal["off", "inline"] = "off"


@dataclass(frozen=True, slots=True)
class _Job:
    """One push on its way; ``advance`` is None for a version that is held by a keyframe alone."""

    version: int
    step: int
    shadow: Shadow
    advance: Advance | None
    digest: Digest
    metadata: Mapping[str, Any]
    generation: int
    timeline: Timeline


class Publisher:
    """The trainer's side of one run: pushes are diffed one by one; their uploads follow in the background, in order."""

    def __init__(
        self,
        staging: Staging,
        reader: LogReader,
        writer: LogWriter,
        new_id: NewId,
        options: PublishOptions,
        queue: Executor,
        nonfinite: NonFinite = "allow",
    ) -> None:
        """Prepare to publish; no I/O yet. ``queue`` has one thread, and is shut down by ``close``."""
        self._nonfinite: NonFinite = nonfinite
        self._staging = staging
        self._reader = reader
        self._writer = writer
        self._new_id = new_id
        self._options = options
        self._lock = threading.RLock()
        self._queue = queue
        self._shadow: Shadow | None = None
        self._trusted = False  # whether the shadow is known to be the newest version
        self._generation = 0
        self._failure: BaseException | None = None
        self._stored_layouts: set[str] = set()

    def push(self, step: int, model: Model, metadata: Mapping[str, Any] | None) -> Future[PushResult]:
        """Diff the model and queue the rest. See ``Registry.push``."""
        timeline = Timeline()
        views = read_model(model)
        layout = layout_of(views, self._options.dtype)
        with self._lock:
            shadow, version = self._newest(layout.id, views)
            advance: Advance | None = None
            if shadow is None:
                geometry = Geometry(layout)
                with timeline.during("diff", geometry.nbytes):
                    shadow = self._staging.first_shadow(geometry, views, version, self._options.shadow)
                self._judge(step, shadow, None)
            else:
                self._shadow = None  # cut off in the middle, it may hold no version
                advance = shadow.advance(views, self._options.coder, timeline)
                self._judge(step, shadow, advance)
            self._shadow, self._trusted = shadow, True
            job = _Job(shadow.version, step, shadow, advance, shadow.digest, metadata or {}, self._generation, timeline)
            return self._queue.submit(self._run, job)

    def close(self) -> None:
        """Wait for everything that was queued."""
        self._queue.shutdown(wait=True)

    def _judge(self, step: int, shadow: Shadow, advance: Advance | None) -> None:
        """Do what the policy says about NaN and infinities among the cells that a push changed, or all, if all are new.

        Raises:
            InvalidModel: the policy is to refuse; the shadow is at the version before, for the next push.
        """
        if self._nonfinite == "allow":
            return
        geometry, staging = shadow.geometry, self._staging
        if advance is None:
            flat = first_in_groups(geometry, self._cells_of(shadow, shadow.version), staging.map_)
        else:
            flat = shadow.changes_of(advance.version).not_finite()
        try:
            judge(self._nonfinite, geometry, flat, f"step {step}", self._reader.run, staging.events)
        except InvalidModel:
            if advance is not None:
                advance.stop()
                shadow.revert(advance.version)
                self._shadow = shadow
            raise

    def _newest(self, layout_id: str, views: Mapping[str, View]) -> tuple[Shadow | None, int]:
        """Return the shadow to diff against, None where this layout begins anew, and the number after the newest."""
        if self._shadow is None or not self._trusted:
            self._writer.begin()
            try:
                self._shadow = self._caught_up(self._reader.refresh(), layout_id, views)
            except Gone:
                # The newest version is retired only once there is a newer one: by a newer writer, of which this tells.
                self._writer.begin()
                raise
        if self._shadow is not None:
            after = self._shadow.version + 1
            return (self._shadow, after) if self._shadow.geometry.id == layout_id else (None, after)
        return None, len(self._reader.state.versions)

    def _caught_up(self, state: RunState, layout_id: str, views: Mapping[str, View]) -> Shadow | None:
        """Bring the shadow (or a new one) to the newest version, as a worker would."""
        latest = state.latest
        if latest is None or latest.layout != layout_id:
            return None
        known = self._shadow if self._shadow is not None and self._shadow.geometry.id == layout_id else None
        base = state.find(known.version) if known is not None else None
        if base is None or known is None or base.digest != known.digest.hex():
            known = base = None  # so old that it is forgotten, or another writer's version has its number
        shadow = known or self._staging.empty_shadow(self._staging.geometry(layout_id), views, self._options.shadow)
        target = shadow.target()
        staged = stage_version(self._staging, state, latest, target, base=base, timeline=Timeline()).cells
        self._shadow = None  # until all cells are written, there is nothing to go on from
        staged.store_into(self._staging, target)
        digest = staged.digest
        staged.close()
        shadow.resume(latest.version, digest)
        return shadow

    def _run(self, job: _Job) -> PushResult:
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
            raise
        self._queue_keyframe(job.shadow)
        return result

    def _take_back(self, job: _Job, error: BaseException) -> None:
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

    def _publish(self, job: _Job) -> PushResult:
        geometry, timeline = job.shadow.geometry, job.timeline
        write_id = self._new_id()
        patch = keyframe = None
        if job.advance is not None:
            coded = job.advance.coded()
            patch = store_patch(self._staging.store, geometry, job.version, write_id, coded, timeline)
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

    def _store_keyframe(self, job: _Job, write_id: str) -> KeyframeRef:
        geometry, store = job.shadow.geometry, self._staging.store
        if geometry.id not in self._stored_layouts:
            create(store, layout_key(geometry.id), geometry.layout.canonical())
            self._stored_layouts.add(geometry.id)
        return self._write_keyframe(geometry, job.version, write_id, self._cells_of(job.shadow, job.version))

    def _write_keyframe(
        self, geometry: Geometry, version: int, write_id: str, cells_of: Callable[[Group], Cells]
    ) -> KeyframeRef:
        return write_keyframe(
            self._staging.store,
            geometry,
            version,
            write_id,
            cells_of,
            coding=self._options.keyframe_coding,
            backend=self._staging.backend.name,
            map_=self._staging.map_,
        )

    @staticmethod
    def _cells_of(shadow: Shadow, version: int) -> Any:
        return lambda group: shadow.cells_at(version, group)

    def _queue_keyframe(self, shadow: Shadow) -> None:
        if not keyframe_due(self._reader.state, shadow.geometry.nbytes, self._options):
            return
        try:
            self._queue.submit(self._attach_keyframe, shadow)
        except RuntimeError:
            # Closing: this thread is the last to work, so it does it now.
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
            digest = Digest(*self._staging.backend.digest(cells, group.start))
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


def keyframe_due(state: RunState, full_nbytes: int, options: PublishOptions) -> bool:
    """Tell whether the newest version is to have a keyframe made, by bytes and versions since the last one. Pure."""
    latest = state.latest
    if latest is None:
        return False
    nbytes = 0
    version = latest.version
    while state.keyframe(version) is None:
        nbytes += sum(patch.size for patch in state.patches_into(version) if patch.base == version - 1)
        since = latest.version - version + 1
        if options.keyframe_every is not None and since >= options.keyframe_every:
            return True
        if nbytes > options.keyframe_share * full_nbytes or version == 0:
            return True
        version -= 1
    return False


def check_options(options: PublishOptions) -> None:
    """Raise InvalidArgument where an option is out of range."""
    if options.coder not in ("auto", "gap", "class"):
        raise InvalidArgument(f"coder is {options.coder!r}; it is one of auto, gap, class")
    if options.shadow not in ("device", "host"):
        raise InvalidArgument(f"shadow is {options.shadow!r}; it is one of device, host")
    if options.compact not in ("off", "inline"):
        raise InvalidArgument(f"compact is {options.compact!r}; it is one of off, inline")
    if options.dtype not in ("bf16", "keep"):
        raise InvalidArgument(f"publish_dtype is {options.dtype!r}; it is one of bf16, keep")
    if not options.keyframe_share > 0:
        raise InvalidArgument(
            f"keyframe_share is {options.keyframe_share}; it is a share of a keyframe's bytes, over 0"
        )
    if options.keyframe_coding not in ("raw", "exponents"):
        raise InvalidArgument(f"keyframe_coding is {options.keyframe_coding!r}; it is one of raw, exponents")
    if options.keyframe_every is not None and options.keyframe_every < 1:
        raise InvalidArgument(f"keyframe_every is {options.keyframe_every}; it counts versions, from 1 on")
