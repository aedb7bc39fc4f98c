"""The trainer's side of a run whose model is sharded: each rank pushes what it holds, and nothing is gathered.

A push: diff -> exchange -> code -> upload -> vote -> commit. Each rank diffs the cells that it speaks for while the
trainer waits; all else is done by one background thread of each rank, in the same order on all, in a fixed sequence of
collectives. What is stored is, byte for byte, what one process with the whole model would have stored. The coordinator,
rank 0, writes the log; a rank that fails goes on taking part until the vote, and then all ranks raise the same error.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, SupportsIndex

from pulse_registry.context import Context
from pulse_registry.errors import Conflict, Fenced, Gone, InvalidArgument, NotFound, PeerLost, PulseError
from pulse_registry.events import Event, EventKind
from pulse_registry.log import CommitDraft, LogWriter, NewId, RunState
from pulse_registry.log.integers import integer
from pulse_registry.peers.call import named
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt, agree
from pulse_registry.process.closing import Closing
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.sliced_destination import SlicedDestination, SliceDigests
from pulse_registry.pull.stage import stage_version
from pulse_registry.push.baseline import version_of
from pulse_registry.push.expected import check_expected
from pulse_registry.push.future import PushFuture
from pulse_registry.push.holdings import Spoken, check_replicas, fingerprint, speak, union
from pulse_registry.push.labels import checked_metadata
from pulse_registry.push.layout_change import check_layout
from pulse_registry.push.options import PushOptions
from pulse_registry.push.queue import PushQueue, Turn
from pulse_registry.push.shadow import Shadow, first_shadow
from pulse_registry.push.sharded_keyframe import ShardedKeyframes
from pulse_registry.push.sharded_patch import ShardedPatches
from pulse_registry.push.shared_log import SharedLog
from pulse_registry.results import PushResult
from pulse_registry.timeline import Timeline, extents
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.device import Placement, on_host
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import Model, View, layout_of, read_model
from pulse_registry.weights.nonfinite import first_in_groups, judge
from pulse_schemas import CommitRecord, KeyframeRef, Layout, PatchRef, VersionEntry

_logger = logging.getLogger(__name__)
_HEAD: Final = struct.Struct("<BQqq?")
_COUNT: Final = struct.Struct("<Q")
_PATCH, _KEYFRAME, _PREPARE = range(3)
_REVERTED, _ANEW = b"-", b"!"


@dataclass(slots=True)
class _Prepared:
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
    homes: Sequence[int]
    shadow: Shadow | None
    version: int


@dataclass(slots=True, eq=False)
class _Push:
    """This rank's part of a push: diffed, and neither committed nor failed yet.

    Attributes:
        kind: a patch, or a keyframe.
        version: its number, if all pushes before it are committed.
        step: the trainer's label of it.
        prepared: what it was diffed against.
        shadow: holds its cells; None: this rank has failed before it had one.
        metadata: of the version; the coordinator's counts.
        number: of the rank's pushes, from 1 on: the same on all ranks.
        timeline: of the push.
        future: of the push.
        failure: what went wrong on this rank, for all ranks to raise.
        in_doubt: whether its record may be in the log.
        replaced: empty: no push takes another one's place.
    """

    kind: int
    version: int
    step: int
    prepared: _Prepared
    shadow: Shadow | None
    metadata: Mapping[str, Any]
    number: int
    timeline: Timeline
    future: PushFuture
    failure: Exception | None = None
    in_doubt: bool = False
    replaced: list[PushFuture] = field(default_factory=list)


class ShardedPublisher:
    """One rank's part in the pushes of a sharded model; see ``Publisher``. All ranks make the same calls."""

    def __init__(
        self,
        context: Context,
        writer: LogWriter,
        new_id: NewId,
        options: PushOptions,
        thread: Executor,
        peers: Peers,
        placement: Placement = on_host,
        committed: Sequence[Callable[[PushResult], None]] = (),
    ) -> None:
        """Prepare to publish; no I/O yet.

        Args:
            context: store, threads, and who hears of events.
            writer: of the run's log; only the coordinator's is used.
            new_id: gives write ids; only the coordinator's.
            options: how to push; the same on all ranks.
            thread: one, for this publisher alone, which makes all collectives; ``close`` ends it.
            peers: the ranks.
            placement: where this rank's part is worked on.
            committed: are called with each version's result, in that thread, by the coordinator.

        Raises:
            InvalidArgument: pushes are to be coalesced, which ranks can't decide alike.
        """
        if options.when_full != "wait":
            raise InvalidArgument("when_full is 'coalesce', and pushes of a sharded model wait for each other: 'wait'")
        self._context, self._writer, self._new_id = context, writer, new_id
        self._options, self._thread, self._peers, self._committed = options, thread, peers, committed
        self._placement = placement
        self._queue: PushQueue[_Push] = PushQueue(thread, options.max_pending, writer.reader.run)
        self._patches = ShardedPatches(context, peers, options.coder)
        self._log = SharedLog(writer, peers)
        self._keyframes = ShardedKeyframes(context, peers, self._log, new_id, options)
        self._lock = threading.RLock()
        self._count = 0  # pushes that this rank has begun
        self._prepared: _Prepared | None = None
        self._failing = threading.Condition(self._lock)
        self._lapsed: int | None = 0  # number of the last push that a failure took along; None: the ranks agree on it
        self._why: BaseException | None = None
        self._closed = False

    def push(self, step: SupportsIndex, model: Model, metadata: Mapping[str, Any] | None) -> PushFuture:
        """Diff what this rank speaks for, and queue the rest. See ``Registry.push``.

        Only the first push, and one after a failure or with another layout, talks to the other ranks while the trainer
        waits. Each call is one push on all ranks, even if what is wrong shows on one of them alone.
        """
        timeline = Timeline()
        label, kept, wrong = _labels(step, metadata)
        views, id_, failure = self._described(model)
        failure = wrong or failure
        with self._lock:
            self._check_open()
            self._count += 1
            number = self._count
        future = self._queued(number, label, views, id_, kept, timeline, failure)
        if (unseen := self._queue.unseen(last=number - self._options.max_pending)) is not None:
            raise unseen
        return future

    def _queued(
        self,
        number: int,
        step: int,
        views: Mapping[str, View],
        id_: bytes,
        metadata: Mapping[str, Any],
        timeline: Timeline,
        failure: Exception | None,
    ) -> PushFuture:
        """Queue a push once there is room for it, and the ranks have agreed on the layout."""
        while True:
            with self._lock:
                self._failing.wait_for(lambda: self._lapsed is not None)
                if number <= (self._lapsed or 0):
                    future, error = PushFuture(step, number), self._gone(step)
                    self._tell_failed(step, error)
                    self._queue.fail(future, error)
                    return future
                prepared = self._prepared
                known = prepared is not None and (failure is not None or prepared.id == id_)
                if known and not self._queue.full:
                    push = self._diffed(number, step, views, metadata, timeline, failure)
                    self._queue.put(push, self._publish_next)
                    return push.future
            with timeline.during("wait"):
                if known:
                    self._queue.wait()
                else:
                    self._thread.submit(self._prepare_or_fail, number, step, views, id_, failure).result()

    def take_over(self, model: Model) -> None:
        """Begin this job's term, and bring the shadows of all ranks to the newest version."""
        views, id_, failure = self._described(model)
        self._thread.submit(self._prepare_or_fail, self._count, 0, views, id_, failure).result()

    def close(self, closing: Closing) -> None:
        """Refuse new pushes, and wait for those on their way. Idempotent.

        Raises:
            StoreUnavailable: they are not done in time.
        """
        self._closed = True
        with self._lock:
            pass  # a push that had begun is queued now
        self._queue.finish(closing)

    def unseen(self) -> BaseException | None:
        """Return the first failure that nobody has seen; once."""
        return self._queue.unseen()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the registry was closed; open it again")

    def _described(self, model: Model) -> tuple[Mapping[str, View], bytes, Exception | None]:
        """Read this rank's part of the model; what is wrong with it is for all ranks to raise."""
        try:
            views = read_model(model)
            id_, prepared = fingerprint(views), self._prepared
            if prepared is None or prepared.id != id_:
                layout_of(views, self._options.dtype)  # what can't be published is told by this call
            return views, id_, None
        except PulseError as error:
            return {}, bytes(16), error

    def _diffed(
        self,
        number: int,
        step: int,
        views: Mapping[str, View],
        metadata: Mapping[str, Any],
        timeline: Timeline,
        failure: Exception | None,
    ) -> _Push:
        """Move the shadow to the live cells; the lock is held."""
        prepared = self._prepared
        if prepared is None:
            raise InvalidArgument("a push of a sharded model was not prepared")
        shadow, context = prepared.shadow, self._context
        kind = _KEYFRAME if shadow is None else _PATCH
        version = prepared.version + 1 if shadow is None else shadow.version + 1
        if failure is None:
            prepared.shadow = None  # cut off in the middle, it may hold no version
            live, local = prepared.spoken.live(views), prepared.spoken.slices.local
            try:
                if shadow is None:
                    with timeline.during("diff", local.nbytes):
                        shadow = first_shadow(context, self._placement, local, live, version, self._options.shadow)
                else:
                    shadow.advance(live, None, timeline)
                failure = self._judged(step, prepared, shadow, kind)
            except Exception as error:  # noqa: BLE001 - for all ranks to raise, as it was before the diff here
                failure = error
            prepared.shadow = shadow
        future = PushFuture(step, number)
        return _Push(kind, version, step, prepared, shadow, metadata, number, timeline, future, failure)

    def _judged(self, step: int, prepared: _Prepared, shadow: Shadow, kind: int) -> Exception | None:
        """Do what the policy says about NaN and infinities; what it refuses is for all ranks to raise."""
        if self._options.nonfinite == "allow":
            return None
        version, local = shadow.version, shadow.geometry
        if kind == _PATCH:
            flat = shadow.changes_of(version).not_finite()
        else:
            flat = first_in_groups(local, lambda group: shadow.cells_at(version, group), self._context.map_)
        whole = None if flat is None else prepared.spoken.slices.flat_of(flat)
        run, events = self._writer.reader.run, self._context.events
        try:
            judge(self._options.nonfinite, prepared.geometry, whole, f"step {step}", run, events)
        except PulseError as error:
            return error
        return None

    # -- in the background thread: a fixed sequence of collectives ---------------------------------------------------

    def _begin(self, kind: int, number: int, step: int, version: int, failure: Exception | None) -> None:
        """Check that all ranks are about to do the same, and that nothing is wrong on any.

        Raises:
            InvalidArgument: they are not: on all ranks.
            Conflict: some of them have to begin anew, and others do not: on all ranks; now all do.
            PulseError: what is wrong on one rank: on all.
        """
        mine = _HEAD.pack(kind, number, step, version, failure is None)
        said = [_HEAD.unpack(data) for data in self._peers.all_gather(mine, "push")]
        agree(self._peers, failure, "model")
        steps = [row[1:3] for row in said]
        other = next((rank for rank, one in enumerate(steps) if one != steps[0]), None)
        if other is not None:
            (count, first), (number, step) = steps[0], steps[other]
            raise InvalidArgument(
                f"rank {other} pushes step {step}, its push {number}, and rank 0 step {first}, its push {count}: all "
                "ranks push the same steps, in the same order. Nothing was committed"
            )
        kinds, versions = [row[0] for row in said], [row[3] for row in said]
        if len(set(kinds)) > 1 or len(set(versions)) > 1:
            anew = [rank for rank, one in enumerate(kinds) if one == _PREPARE] or range(self._peers.size)
            raise Conflict(
                f"step {step} was not pushed, since {named(anew)} had to begin anew, with other tensors than before, "
                "and the others went on: now all begin anew. The next push carries its changes"
            )

    def _prepare_or_fail(
        self, number: int, step: int, views: Mapping[str, View], id_: bytes, failure: Exception | None
    ) -> None:
        try:
            self._prepare(number, step, views, id_, failure)
        except BaseException as error:
            self._failed(number, error, None)
            raise

    def _prepare(
        self, number: int, step: int, views: Mapping[str, View], id_: bytes, failure: Exception | None
    ) -> None:
        """Agree on the layout, on who speaks for what, and on the version that shadows stand for."""
        peers, context = self._peers, self._context
        with self._lock:
            self._prepared = None
        self._begin(_PREPARE, number, step, 0, failure)
        layout = union(peers, layout_of(views, self._options.dtype), views)
        geometry = Geometry(layout)
        spoken = speak(peers, geometry, views, context.backend, context.map_)
        check_replicas(peers, geometry, spoken, context.backend)
        homes = self._patches.homes(spoken.slices)
        version = self._newest(layout)
        shadow = self._caught_up(geometry, spoken, views, version)
        with self._lock:
            self._prepared = _Prepared(id_, geometry, spoken, homes, shadow, version)

    def _newest(self, layout: Layout) -> int:
        """Begin the job's term, and return the newest version, on all ranks.

        Raises:
            InvalidModel, LayoutMismatch: the layout is new, and another one is expected, or none: on all ranks, and
                nothing was written.
        """

        def check(state: RunState) -> None:
            check_expected(self._options.expect, layout, state.latest)
            if state.latest is not None and state.latest.layout != layout.id:
                self._check_change(layout, state.latest)

        return self._log.begin(check)

    def _check_change(self, layout: Layout, before: VersionEntry) -> None:
        context, run, allowed = self._context, self._writer.reader.run, self._options.allow_new_layout

        def old() -> Layout:
            return context.geometry(before.layout).layout

        check_layout(run, layout, before.version, old, context.events, allowed=allowed)

    def _caught_up(self, geometry: Geometry, spoken: Spoken, views: Mapping[str, View], version: int) -> Shadow | None:
        """Bring a shadow to the newest version, if that has this layout: each rank by its own route."""
        context, peers, attempt = self._context, self._peers, Attempt(self._peers)
        state = self._writer.reader.state
        entry = state.version(version) if version >= 0 else None
        if entry is None or entry.layout != geometry.id:
            return None
        nothing: list[tuple[Shadow, SlicedDestination, SliceDigests]] = []

        def copied() -> list[tuple[Shadow, SlicedDestination, SliceDigests]]:
            live = spoken.live(views)
            shadow = first_shadow(context, self._placement, spoken.slices.local, live, version, self._options.shadow)
            cells = SlicedDestination(shadow.destination(), spoken.slices, context.backend, context.pool)
            return [(shadow, cells, cells.digests(context.map_))]

        made = attempt.run(copied, nothing)
        attempt.agree("shadow")
        [(shadow, cells, digests)] = made
        whole = Digest(*sum_lanes(peers, (digests.share.lane_0, digests.share.lane_1), "live"))
        base = version_of(state, geometry.id, whole.hex())
        if base is not None and base.version == version:
            shadow.resume(version, digests.local)
            return shadow

        def follow() -> SliceDigests:
            cells.known = None if base is None else digests
            staged = stage_version(context, PullRequest(state, entry, cells, Timeline(), base))
            staged.store()
            found = staged.slices
            staged.close()
            if found is None:
                raise InvalidArgument("slices without digests")
            return found

        found = attempt.run(follow, digests)
        try:
            attempt.agree("newest cells")
        except NotFound as error:
            if isinstance(error, Gone) or error.key is not None:
                raise
            # Only patches of coder ``class`` lead there, whose groups no rank holds whole: all begin with a keyframe.
            _logger.warning(
                "the next push is a keyframe, since the ranks can't go on with version %d: %s", version, error
            )
            return None
        whole = Digest(*sum_lanes(peers, (found.share.lane_0, found.share.lane_1), "newest cells"))
        if whole.hex() != entry.digest:
            raise Conflict(
                f"the ranks' cells of version {version} have the state digest {whole.hex()}, and {entry.digest} was "
                "committed"
            )
        shadow.resume(version, found.local)
        return shadow

    def _publish_next(self, turn: Turn[_Push]) -> None:
        """Publish the push whose turn it is."""
        push = self._queue.begin(turn)
        if push is None:
            return
        try:
            try:
                result = self._publish(push)
            except BaseException as error:
                self._failed(push.number, error, push)
                self._tell_failed(push.step, error)
                raise
            if self._peers.rank == COORDINATOR:
                for tell in self._committed:
                    tell(result)
            if push.shadow is not None:
                self._keyframes.attach_if_due(push.shadow, push.prepared.spoken.slices)
        except BaseException as error:
            self._queue.failed(turn, push, error)
            raise
        self._queue.done(turn, push, result)

    def _publish(self, push: _Push) -> PushResult:
        """Exchange -> code -> upload -> vote -> commit."""
        prepared, shadow = push.prepared, push.shadow
        if push.number <= (self._lapsed or 0):
            raise self._gone(push.step)
        self._begin(push.kind, push.number, push.step, push.version, push.failure)
        if shadow is None:
            raise InvalidArgument("a push without a shadow went on")
        write_id, timeline = self._write_id(), push.timeline
        geometry, slices, version = prepared.geometry, prepared.spoken.slices, push.version
        stored: PatchRef | KeyframeRef | None
        if push.kind == _PATCH:
            stored, delta = self._patches.store(shadow, version, slices, prepared.homes, write_id, timeline)
            digest = Digest.parse(self._writer.reader.state.version(version - 1).digest) + delta
        else:
            with timeline.during("upload", geometry.nbytes):
                stored, digest = self._keyframes.store(shadow, slices, version, write_id)
        push.in_doubt = True
        with timeline.during("commit"):
            record = self._commit(push, geometry, stored, digest, write_id)
            shadow.settle(version)
        return _result(push, geometry, record)

    def _write_id(self) -> str:
        here = self._peers.rank == COORDINATOR
        return self._peers.broadcast(self._new_id().encode() if here else None, "write id").decode()

    def _commit(
        self, push: _Push, geometry: Geometry, stored: PatchRef | KeyframeRef | None, digest: Digest, write_id: str
    ) -> CommitRecord:
        """Write the record at the coordinator, and return it on all ranks."""
        patch = stored if isinstance(stored, PatchRef) else None
        draft = CommitDraft(
            version=push.version,
            step=push.step,
            layout=geometry.id,
            digest=digest.hex(),
            changed=geometry.cells if patch is None else patch.changed,
            cells=geometry.cells,
            write_id=write_id,
            patch=patch,
            keyframe=stored if isinstance(stored, KeyframeRef) else None,
            metadata=dict(push.metadata),
        )
        record = self._log.append(Attempt(self._peers), lambda: self._writer.commit(draft), write_id)
        if not isinstance(record, CommitRecord):
            raise InvalidArgument(f"record {record.seq} commits nothing")
        return record

    def _failed(self, number: int, error: BaseException, push: _Push | None) -> None:
        """Go back to the version before a push that failed, for the next one to carry its changes.

        What was diffed after it, on any rank, fails with it, on all ranks: each tells how far it has come. So a push
        that was diffed after the failure on one rank was so on all.
        """
        with self._lock:
            if number <= (self._lapsed or 0):
                return  # what failed before it has taken it back already
            taken = self._take_back(push)
            came, self._why, self._lapsed = self._count, error, None
        try:
            every = self._peers.all_gather(_COUNT.pack(came) + taken, "failure")
            came = max(_COUNT.unpack(said[: _COUNT.size])[0] for said in every)
            anew = any(said[_COUNT.size :] == _ANEW for said in every)
        except PulseError:
            anew = True  # nobody to go on with
        with self._lock:
            if anew:
                self._prepared = None
            self._lapsed = came
            self._failing.notify_all()

    def _take_back(self, push: _Push | None) -> bytes:
        """Take back a push and all that were diffed after it, where that is enough; tells what is not."""
        if push is None or push.shadow is None or push.kind == _KEYFRAME or push.in_doubt or self._prepared is None:
            return _ANEW
        push.shadow.revert(push.version)
        return _REVERTED

    def _gone(self, step: int) -> PulseError:
        """Return the error of a push that one before it took along."""
        why = self._why if isinstance(self._why, PulseError) else Conflict(repr(self._why))
        message = f"step {step} was not pushed, since a push before it failed: {why}. The next push carries its changes"
        return PeerLost(message, why.ranks) if isinstance(why, PeerLost) else type(why)(message)

    def _tell_failed(self, step: int, error: BaseException) -> None:
        message = str(error) if isinstance(error, PulseError) else repr(error)
        if not message.startswith(f"step {step} was not pushed"):
            carried = "" if isinstance(error, Fenced | PeerLost) else ". The next push carries its changes"
            message = f"step {step} was not pushed: {message}{carried}"
        self._context.events.tell(Event(EventKind.PUSH_FAILED, self._writer.reader.run, message))


def _result(push: _Push, geometry: Geometry, record: CommitRecord) -> PushResult:
    phases = push.timeline.phases()
    stored = record.patch or record.keyframe
    return PushResult(
        version=record.version,
        step=record.step,
        kind="patch" if record.patch is not None else "keyframe",
        changed=record.changed,
        cells=record.cells,
        nbytes=0 if stored is None else stored.size,
        full_nbytes=geometry.nbytes,
        digest=record.digest,
        phases=extents(phases),
        timeline=phases,
    )


def _labels(step: SupportsIndex, metadata: Mapping[str, Any] | None) -> tuple[int, Mapping[str, Any], Exception | None]:
    """Return a push's step and metadata; what is wrong with them is for all ranks to raise."""
    try:
        return integer(step, "step"), checked_metadata(metadata), None
    except PulseError as error:
        return 0, {}, error
