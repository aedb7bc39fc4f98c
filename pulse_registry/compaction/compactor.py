"""The compactor: plan -> move the local copy -> merge -> verify -> upload -> attach, one task after the other.

Nothing that it keeps counts: it may stop anywhere and begin anew, and several may work on one run. Before it uploads
and before it attaches it looks at the log again, so that another's work is seldom done twice; a duplicate does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pulse_kernels import Cells
from pulse_registry.compaction.ladder import CompactOptions, KeyframeTask, MergeTask, Task, due, patch_of
from pulse_registry.compaction.local_copy import LocalCopy
from pulse_registry.compaction.merge import merge
from pulse_registry.compaction.rounds import RoundMerger, RoundTask
from pulse_registry.compaction.temp_patch import TempPatch
from pulse_registry.context import Context
from pulse_registry.errors import (
    AccessDenied,
    BaseMismatch,
    Conflict,
    CorruptObject,
    Fenced,
    Gone,
    InvalidArgument,
    NotFound,
    PulseError,
    StoreUnavailable,
    Untrusted,
)
from pulse_registry.events import Event, EventKind
from pulse_registry.format.keyframe import write_keyframe
from pulse_registry.format.patch_parts import key_of_patch
from pulse_registry.log import LogReader, LogWriter, NewId, RunState
from pulse_registry.outer.log import OuterLog
from pulse_registry.pull.failover import Routes
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.route import Leg
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import KeyframeRef

_logger = logging.getLogger(__name__)

TRIES = 3
"""How often a task that fails is tried, each time after a new version, before this compactor leaves it."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What was attached, and its bytes: a merged patch, a keyframe, or the totals of outer round ``target``."""

    kind: Literal["patch", "keyframe", "round"]
    base: int | None
    target: int
    nbytes: int


class Compactor:
    """Makes what a run's ladder lacks. For one thread; ``close`` it to give its file back."""

    def __init__(
        self,
        context: Context,
        reader: LogReader,
        writer: LogWriter,
        new_id: NewId,
        options: CompactOptions,
        rounds: OuterLog | None = None,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            context: store, threads and spool, where a copy of the weights and one patch at a time lie.
            reader: of the run.
            writer: of the run; it needs no term.
            new_id: gives new write ids.
            options: what to make beside the ladder.
            rounds: the log of the run's outer rounds, whose contributions are to be merged, too; None: they are not.
        """
        self._context = context
        self._reader = reader
        self._writer = writer
        self._new_id = new_id
        self._options = options
        self._copy = LocalCopy(context)
        self._merger = None if rounds is None else RoundMerger(context, rounds, self._copy)
        self._after = -1  # all that ends at or before this version is done, or was left
        self._failed: dict[Task | RoundTask, tuple[int, int]] = {}  # tries, and versions at the last of them
        self._again: set[Task] = set()  # those of them that are to be tried again
        self._errors: dict[Task | RoundTask, PulseError] = {}  # of what failed, and was not done since

    def pending(self) -> list[Task | RoundTask]:
        """Return what the ladder lacks, as the log says now; what this compactor has left is in it too."""
        rounds = [] if self._merger is None else self._merger.pending()
        return [*due(self._reader.refresh(), self._options), *rounds]

    def error(self, task: Task | RoundTask) -> PulseError | None:
        """Return what kept this compactor from a task when it tried last; None if nothing did."""
        return self._errors.get(task)

    def step(self) -> Attached | None:
        """Make and attach the next missing merged patch or keyframe, if any can be made.

        What fails costs nothing but an event, and is tried again after the next version.

        Raises:
            AccessDenied: the credentials don't allow it.
            Fenced: the run has moved elsewhere.
            Untrusted: what is signed, or has to be, is not to be believed, or would not be.
            UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        while True:
            state = self._reader.refresh()
            task = next(self._next(state), None)
            if task is None:
                return self._step_rounds(state)
            done = self._try(state, task)
            if done is not None:
                self._again.discard(task)
                self._errors.pop(task, None)
                return done

    def keyframe(self, version: int) -> KeyframeRef:
        """Return the keyframe of a version, which is made and attached if there is none.

        Raises:
            NotFound, Gone: there is no such version.
            Untrusted: the run is signed, and this writer has no key that fits.
            Conflict: it was taken away at once.
            PulseError: it can't be made.
        """
        state = self._reader.refresh()
        state.version(version)
        if state.keyframe(version) is None:
            self._writer.check("attach")
            self._do(state, KeyframeTask(version))
        found = self._reader.refresh().keyframe(version)
        if found is None:
            raise Conflict(f"run {state.run!r}: version {version} was retired meanwhile")
        return found

    def close(self) -> None:
        """Give the copy of the weights back. Idempotent."""
        self._copy.close()

    def _step_rounds(self, state: RunState) -> Attached | None:
        """Make and attach the totals of the next outer round that lacks them, if there are outer rounds."""
        for task in () if self._merger is None else self._merger.pending():
            tries, at = self._failed.get(task, (0, -1))
            if self._merger is None or tries == TRIES or at == len(state.versions):
                continue
            try:
                nbytes = self._merger.make(state, task)
            except (AccessDenied, Fenced, Untrusted):
                raise
            except PulseError as error:
                if isinstance(error, BaseMismatch):
                    self._copy.forget()
                self._note(state, task, error)
                continue
            self._errors.pop(task, None)
            if nbytes is not None:
                return Attached("round", None, task.round, nbytes)
        return None

    def _next(self, state: RunState) -> Iterator[Task]:
        """Yield what is due and was not left, oldest first; take note of how far all is done."""
        newest = len(state.versions)
        for task in due(state, self._options, self._after):
            tries, at = self._failed.get(task, (0, -1))
            if tries < TRIES and at < newest:
                self._done_before(task.target)
                yield task
        self._done_before(newest)

    def _done_before(self, version: int) -> None:
        self._after = min([version, *(task.target for task in self._again)]) - 1

    def _try(self, state: RunState, task: Task) -> Attached | None:
        """Do a task; None where it failed, is not needed any more, or was done by another meanwhile."""
        try:
            self._writer.check("attach")  # before the work, not after it
            return self._do(state, task)
        except (InvalidArgument, Gone) as error:
            # What it was to be attached to was retired meanwhile.
            _logger.info("run %s: %s is not needed any more: %s", state.run, task, error)
            self._leave(task)
        except (AccessDenied, Fenced, Untrusted):
            raise
        except PulseError as error:
            self._fail(state, task, error)
        return None

    def _leave(self, task: Task) -> None:
        self._failed[task] = (TRIES, 0)
        self._again.discard(task)

    def _fail(self, state: RunState, task: Task, error: PulseError) -> None:
        (self._again.add if self._note(state, task, error) < TRIES else self._again.discard)(task)

    def _note(self, state: RunState, task: Task | RoundTask, error: PulseError) -> int:
        """Tell what kept this compactor from a task, and return how often it was tried."""
        # A store, or a disk, that fails is no fault of the objects.
        tries = self._failed.get(task, (0, 0))[0] + (not isinstance(error, StoreUnavailable))
        self._failed[task] = (tries, len(state.versions))
        self._errors[task] = error
        then = "it is left" if tries == TRIES else "it is tried again after the next version"
        self._context.events.tell(
            Event(EventKind.COMPACTION_FAILED, state.run, f"{task} could not be made: {error}; {then}", error.key)
        )
        return tries

    def _do(self, state: RunState, task: Task) -> Attached | None:
        try:
            return self._make(state, task)
        except BaseMismatch:
            # The local copy is not what it should be: from a keyframe it is again.
            self._copy.forget()
            return self._make(state, task)

    def _make(self, state: RunState, task: Task) -> Attached | None:
        return self._merge(state, task) if isinstance(task, MergeTask) else self._write_keyframe(state, task)

    def _merge(self, state: RunState, task: MergeTask) -> Attached | None:
        """Join the patches of the cheapest route whose objects are whole; None without one, or if it is there now."""
        routes = Routes(self._context, state, task.target, have=task.base, keyframes=False)
        while True:
            try:
                route = routes.cheapest()
            except Gone:
                raise
            except NotFound:
                if routes.avoided:
                    raise
                self._leave(task)
                return None
            try:
                return self._merge_along(routes.state, task, route.legs)
            except (NotFound, CorruptObject) as error:
                routes.avoid(route, error)

    def _merge_along(self, state: RunState, task: MergeTask, legs: Sequence[Leg]) -> Attached | None:
        patches = [leg.patch for leg in legs if leg.patch is not None]
        backwards = all(patch.coder == "gap" for patch in patches)
        self._copy.move_to(state, task.target if backwards else task.base)
        if not backwards:
            self._copy.check()  # ranks count cells that no patch on the way speaks of
        context, weights = self._context, self._copy.weights
        begun = begin_patches(context.store, state.run, weights.geometry, patches, context.fetch_map)
        coded = merge(context.backend, context.pool, context.fetchers, weights, legs, begun, backwards=backwards)
        with TempPatch(weights.geometry, task.base, task.target, coded, context.spool) as patch:
            self._verify(state, task, patch)
            if not self._still_due(task):
                return None
            write_id = self._new_id()
            ref = patch.store(context.store, key_of_patch(weights.geometry, task.base, task.target, write_id))
        if not self._still_due(task):
            return None
        self._writer.attach(patches=[ref], write_id=write_id)
        return Attached("patch", task.base, task.target, ref.size)

    def _verify(self, state: RunState, task: MergeTask, patch: TempPatch) -> None:
        base, target = (Digest.parse(state.version(version).digest) for version in task.versions)
        if base + patch.delta != target:
            raise CorruptObject(
                f"{task} leads to state digest {(base + patch.delta).hex()}, {target.hex()} was committed; it was not "
                "attached"
            )

    def _write_keyframe(self, state: RunState, task: KeyframeTask) -> Attached | None:
        self._copy.move_to(state, task.target)
        self._copy.check()
        if not self._still_due(task):
            return None
        context, weights, write_id = self._context, self._copy.weights, self._new_id()
        sums: dict[int, Digest] = {}

        def cells_of(group: Group) -> Cells:
            cells = weights.copy_of(group)
            sums[group.number] = Digest(*context.backend.digest(cells, group.start))
            return cells

        ref = write_keyframe(context.store, weights.geometry, task.target, write_id, cells_of, map_=context.map_)
        if sum(sums.values(), Digest()) != Digest.parse(state.version(task.target).digest):
            raise BaseMismatch(f"the compactor's copy of version {task.target} was changed while it was written")
        if not self._still_due(task):
            return None
        self._writer.attach(keyframes=[ref], write_id=write_id)
        return Attached("keyframe", None, task.target, ref.size)

    def _still_due(self, task: Task) -> bool:
        """Tell whether what was just made is not there yet, and may be."""
        state = self._reader.refresh()
        if any(state.is_retired(version) for version in task.versions):
            return False
        if isinstance(task, MergeTask):
            return patch_of(state, task.base, task.target) is None
        return state.keyframe(task.target) is None
