"""The trainer's side of a run whose model is sharded: each rank pushes what it holds, and nothing is gathered.

A push: diff -> exchange -> code -> upload -> vote -> commit. Each rank diffs the cells that it speaks for while the
trainer waits; all else is done by one background thread of each rank, in the same order on all, in a fixed sequence of
collectives. What is stored is, byte for byte, what one process with the whole model would have stored. The coordinator,
rank 0, writes the log; a rank that fails goes on taking part until the vote, and then all ranks raise the same error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsIndex

from pulse_registry.context import Context
from pulse_registry.errors import InvalidArgument, PulseError
from pulse_registry.log import LogWriter, NewId
from pulse_registry.log.integers import integer
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.push.carried_files import CarriedFiles
from pulse_registry.push.commit import draft_of, result_of
from pulse_registry.push.files import FilesArgument, read_files
from pulse_registry.push.founding import Base, Founding
from pulse_registry.push.future import PushFuture
from pulse_registry.push.holdings import fingerprint
from pulse_registry.push.labels import checked_metadata
from pulse_registry.push.lapse import Lapse
from pulse_registry.push.options import PushOptions
from pulse_registry.push.publishing import Publishing
from pulse_registry.push.replicas import ReplicaWatch
from pulse_registry.push.same_push import Announced, check_same_push
from pulse_registry.push.sharded_baseline import Prepared, ShardedBaseline
from pulse_registry.push.sharded_keyframe import ShardedKeyframes
from pulse_registry.push.sharded_patch import ShardedPatch
from pulse_registry.push.sharded_push import Kind, ShardedPush
from pulse_registry.push.shared_log import SharedLog
from pulse_registry.results import PushResult
from pulse_registry.timeline import Timeline
from pulse_registry.weights.device import Placement, on_host
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import Model, View, layout_of
from pulse_registry.weights.reading import ModelReader, once
from pulse_schemas import CommitRecord, KeyframeRef, PatchRef, Record

_logger = logging.getLogger(__name__)


class ShardedPublisher(Publishing[ShardedPush]):
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
        base: Base | None = None,
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
            base: what the run begins with, if it has no version yet; None: with the first push.

        Raises:
            InvalidArgument: pushes are to be coalesced, which ranks can't decide alike.
        """
        if options.when_full != "wait":
            raise InvalidArgument("when_full is 'coalesce', and pushes of a sharded model wait for each other: 'wait'")
        super().__init__(context, writer, options, thread, committed if peers.rank == COORDINATOR else ())
        self._new_id, self._peers = new_id, peers
        self._log = SharedLog(writer, peers)
        self._replicas = ReplicaWatch(peers, context.backend)
        founding = None if base is None else Founding(base, context.store, writer, new_id)
        self._baseline = ShardedBaseline(context, peers, self._log, self._replicas, options, placement, founding)
        self._keyframes = ShardedKeyframes(context, peers, self._log, new_id, options)
        self._lapse = Lapse(peers, self._lock)
        self._prepared: Prepared | None = None
        self._models = ModelReader()

    def push(
        self,
        step: SupportsIndex,
        model: Model,
        metadata: Mapping[str, Any] | None,
        files: FilesArgument | None = None,
    ) -> PushFuture:
        """Diff what this rank speaks for, and queue the rest. See ``Registry.push``.

        Only the first push, and one after a failure or with another layout, talks to the other ranks while the trainer
        waits. Each call is one push on all ranks, even if what is wrong shows on one of them alone.
        """
        timeline = Timeline()
        here = self._peers.rank == COORDINATOR
        label, kept, given, wrong = _labels(step, metadata, files if here else None)
        views, id_, failure = self._described(model)
        failure = wrong or failure
        with self._lock:
            self._check_open()
            number = self._lapse.begin()
            carried = self._files.take(given, model, id_) if here else None
        future = self._queued(number, label, views, id_, _Labels(kept, carried), timeline, failure)
        if (unseen := self._queue.unseen(last=number - self._options.max_pending)) is not None:
            raise unseen
        return future

    def _queued(
        self,
        number: int,
        step: int,
        views: Mapping[str, View],
        id_: bytes,
        labels: _Labels,
        timeline: Timeline,
        failure: Exception | None,
    ) -> PushFuture:
        """Queue a push once there is room for it, and the ranks have agreed on the layout."""
        while True:
            with self._lock:
                self._lapse.wait()
                if self._lapse.took(number):
                    future, error = PushFuture(step, number), self._lapse.error(step)
                    self._tell_failed(step, error)
                    self._queue.fail(future, error)
                    return future
                prepared = self._prepared
                known = prepared is not None and (failure is not None or prepared.id == id_)
                if known and not self._queue.full:
                    push = self._diffed(number, step, views, labels, timeline, failure)
                    self._queue.put(push, self._publish_next)
                    self._queue.then("a keyframe", partial(self._follow, push))  # in the same order on all ranks
                    return push.future
            with timeline.during("wait"):
                if known:
                    self._queue.wait()
                else:
                    self._thread.submit(self._prepare, number, step, views, id_, failure).result()

    def take_over(self, model: Model) -> None:
        """Begin this job's term, and bring the shadows of all ranks to the newest version."""
        views, id_, failure = self._described(model)
        self._thread.submit(self._prepare, self._lapse.count, 0, views, id_, failure).result()

    def _described(self, model: Model) -> tuple[Mapping[str, View], bytes, Exception | None]:
        """Read this rank's part of the model; what is wrong with it is for all ranks to raise."""
        try:
            views = self._models.read(model)
            id_, prepared = once(views, fingerprint, lambda: fingerprint(views)), self._prepared
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
        labels: _Labels,
        timeline: Timeline,
        failure: Exception | None,
    ) -> ShardedPush:
        """Move the shadow to the live cells; the lock is held."""
        prepared = self._prepared
        if prepared is None:
            raise InvalidArgument("a push of a sharded model was not prepared")
        shadow, replicas = prepared.shadow, None
        kind = Kind.KEYFRAME if shadow is None else Kind.PATCH
        version = prepared.version + 1 if shadow is None else shadow.version + 1
        if failure is None:
            replicas, failure = self._baseline.diff(prepared, step, views, timeline)
        future = PushFuture(step, number)
        return ShardedPush(
            kind=kind,
            version=version,
            step=step,
            prepared=prepared,
            shadow=prepared.shadow,  # a diff may have made it
            metadata=labels.metadata,
            files=labels.files,
            number=number,
            timeline=timeline,
            future=future,
            replicas=replicas,
            failure=failure,
        )

    # -- in the background thread: a fixed sequence of collectives ---------------------------------------------------

    def _prepare(
        self, number: int, step: int, views: Mapping[str, View], id_: bytes, failure: Exception | None
    ) -> None:
        """Make what pushes are diffed against."""
        try:
            with self._lock:
                self._prepared = None
            check_same_push(self._peers, Announced(Kind.PREPARE, number, step), failure)
            prepared = self._baseline.prepared(id_, views)
            with self._lock:
                self._prepared = prepared
        except BaseException as error:
            self._lapsed(number, error, None)
            raise

    def _publish(self, push: ShardedPush) -> PushResult:
        """Of what was diffed: exchange -> code -> upload -> vote -> commit. A first version is uploaded whole."""
        if self._lapse.took(push.number):
            raise self._lapse.error(push.step)
        mine = Announced(push.kind, push.number, push.step, push.version, push.replicas is not None)
        compared = check_same_push(self._peers, mine, push.failure)
        if compared and push.replicas is not None:
            self._replicas.compare(push.prepared.spoken, push.replicas, push.version)
        prepared, shadow, timeline = push.prepared, push.shadow, push.timeline
        if shadow is None:
            raise InvalidArgument("a push without a shadow went on")
        write_id = self._write_id()
        stored: PatchRef | KeyframeRef | None
        if push.kind == Kind.PATCH:
            patch = ShardedPatch(self._context, self._peers, self._options.coder, push, shadow, write_id)
            changes = patch.diffed()
            at_home = patch.exchange(changes)
            coded = patch.code(at_home)
            patch.upload(coded)
            stored, added = patch.vote(coded)
        else:
            with timeline.during("upload", prepared.geometry.nbytes):
                stored, added = self._keyframes.store(shadow, prepared.spoken.slices, push.version, write_id)
        push.in_doubt = True
        with timeline.during("commit"):
            record = self._commit(push, stored, added, write_id)
            shadow.settle(push.version)
        push.committed = True
        return result_of(push, prepared.geometry, record)

    def _write_id(self) -> str:
        here = self._peers.rank == COORDINATOR
        return self._peers.broadcast(self._new_id().encode() if here else None, "write id").decode()

    def _commit(
        self, push: ShardedPush, stored: PatchRef | KeyframeRef | None, added: Digest, write_id: str
    ) -> CommitRecord:
        """Write the record at the coordinator, and return it on all ranks; ``added`` is to the digest of the base."""

        def commit() -> Record:
            digest, log, geometry = added, self._log, push.prepared.geometry
            parent = log.reader.state.find(push.version - 1)
            if parent is None and push.version:  # deleted, so that there is a newer one, by a newer writer
                log.writer.begin()  # which tells of it
            if push.kind == Kind.PATCH:
                digest += Digest.parse(log.reader.state.version(push.version - 1).digest)
            files = None if push.files is None else push.files.store(self._context.store, parent, geometry.id)
            return log.writer.commit(draft_of(push, geometry, digest, write_id, stored, files))

        record = self._log.append(Attempt(self._peers), commit, write_id)
        if not isinstance(record, CommitRecord):
            raise InvalidArgument(f"record {record.seq} commits nothing")
        if push.files is not None:
            with self._lock:
                self._files.committed(push.files)
        return record

    def _follow(self, push: ShardedPush) -> None:
        """Let a keyframe follow a push that was committed, if it is due; nobody waits for it.

        A failure costs no version and is tried after the next push.
        """
        if not push.committed or push.shadow is None:
            return
        version, slices = push.version, push.prepared.spoken.slices
        try:
            write_id, soon = self._keyframes.due(push.prepared.geometry, version)
            self._replicas.follow(version, due=write_id is not None, soon=soon)
            if write_id is not None:
                self._keyframes.attach(push.shadow, slices, version, write_id)
        except PulseError as error:
            _logger.warning("no keyframe of version %d, to be tried after the next push: %s", version, error)
        except Exception:
            # A thread's outermost edge: nobody looks at what this ended with, and no push waits for it.
            _logger.exception("no keyframe of version %d, to be tried after the next push", version)

    def _take_back(self, push: ShardedPush, error: BaseException) -> None:
        self._lapsed(push.number, error, push)

    def _lapsed(self, number: int, error: BaseException, push: ShardedPush | None) -> None:
        """Go back to the version before a push that failed, for the next one to carry its changes; see ``Lapse``."""
        with self._lock:
            if self._lapse.took(number):
                return  # what failed before it has taken it back already
            anew = not self._taken_back(push)
            count = self._lapse.open(error)
        last, anew = self._lapse.agree(count, anew=anew)
        with self._lock:
            if anew:
                self._prepared = None
            self._lapse.close(last)

    def _taken_back(self, push: ShardedPush | None) -> bool:
        """Take back a push and all that were diffed after it; tell whether that is enough to go on from."""
        if push is None or push.shadow is None or push.kind == Kind.KEYFRAME or push.in_doubt or self._prepared is None:
            return False
        push.shadow.revert(push.version)
        return True


@dataclass(frozen=True, slots=True)
class _Labels:
    """What goes along with a version's cells."""

    metadata: Mapping[str, Any]
    files: CarriedFiles | None


def _labels(
    step: SupportsIndex, metadata: Mapping[str, Any] | None, files: FilesArgument | None
) -> tuple[int, Mapping[str, Any], Mapping[str, bytes] | None, Exception | None]:
    """Return a push's step, metadata and files; what is wrong with them is for all ranks to raise."""
    try:
        given = None if files is None else read_files(files)
        return integer(step, "step"), checked_metadata(metadata), given, None
    except PulseError as error:
        return 0, {}, None, error
