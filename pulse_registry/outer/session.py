"""A session: a trainer's model in outer rounds, from join to leave.

with registry.outer(model, member="eu-1", inner_steps=8) as outer:
    for batch in data:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()  # every 8th: contribute, wait for the round, step
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from pulse_kernels.select import outer_loops
from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.events import Event, EventKind
from pulse_registry.outer.checkpoint_writer import CheckpointWriter
from pulse_registry.outer.checkpointing import Checkpointing
from pulse_registry.outer.checkpoints import Checkpoints
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.masters import Masters
from pulse_registry.outer.member import Contributed, Member
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.result import RoundResult
from pulse_registry.outer.run import Run
from pulse_registry.outer.saved import SavedState
from pulse_registry.outer.shared_clock import shared_clock
from pulse_registry.outer.shared_log import HeardLog, SharedOuterLog
from pulse_registry.outer.state import ClosedRound
from pulse_registry.outer.versions import RoundVersions
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.peers.vote import Attempt
from pulse_registry.weights.model import Model, read_destination
from pulse_schemas.outer import StartRecord

_logger = logging.getLogger(__name__)
_LONGEST_WAIT_S = 60.0
_TELL_S = 60.0
"""After so long, and each time twice as long, it is said what a round waits for."""


class OuterSession:
    """Takes part in rounds with a model, whose float32 weights are replaced by each outer step. Not thread-safe.

    No error loses anything that was learnt: what has not been sent waits, and goes out once. After StoreUnavailable
    call the same method again, or ``finish``; or train on, and call ``step`` as ever.

    Attributes:
        run: that the rounds are of.
        steps: of the inner optimizer that no contribution tells of.
        applied: the newest round whose weights the model has got.
        weights: what this trainer keeps beside its model, once it has joined; only to be read.
        last: what the newest round came to that this trainer was in; None: there was none yet.
    """

    def __init__(
        self,
        run: Run,
        model: Model,
        options: OuterOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; no I/O yet.

        Raises:
            InvalidArgument: an option is not valid.
        """
        options.check()
        self.run, self._model, self._options = run, model, options
        self._clock, self._sleep = shared_clock(run.peers, clock), sleep
        self.last: RoundResult | None = None
        self.steps = 0
        self.applied = 0
        self._member: Member | None = None
        self._saved: SavedState | None = None
        self._newest: ClosedRound | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        """Join: see ``join``."""
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave, unless by an error: then this member is late, until it comes back or is not waited for any more."""
        self._detach()
        if error is None:
            self.leave()

    @property
    def round(self) -> int:
        """Number of the newest round whose step the model has made."""
        return self.member.round

    def join(self) -> None:
        """Join the rounds; the model then holds the weights of the newest one. The first one starts them.

        Raises:
            InvalidArgument: the rounds were started with other settings, or the state that was loaded is of other
                rounds.
            InvalidModel: a tensor of the model is not float32, or other than the run's.
            LayoutMismatch: the state that was loaded is of other tensors.
            StoreUnavailable, CorruptObject, NotFound: the run, or a contribution, can't be read.
        """
        run, options, saved = self.run, self._options, self._saved
        if self._member is not None:
            raise InvalidArgument(f"this trainer has joined as {options.member!r} before: call leave first")
        self._check_same()
        log = self._opened()
        started = log.refresh().start
        first, layout = run.newest(self._model) if started is None else (started.version, started.layout)
        geometry = run.geometry(layout)
        take = run.masters(geometry)
        masters = take(read_destination(self._model))  # it fits, or nobody hears of this one
        weights = OuterWeights(
            geometry, run.backend, outer_loops(run.backend.name), run.peers, masters.numbers, run.each
        )
        checkpointing = Checkpointing(
            options.member,
            Checkpoints(run.store, geometry, run.backend),
            CheckpointWriter(run.store, run.backend, run.threads, log.new_id, run.spool),
            lambda version: run.load(version, geometry, masters.numbers),
            run.peers,
        )
        begun_at, beginning = 0, ""
        if started is None:
            weights.begin(run.load(first, geometry, masters.numbers))
        else:
            begun_at = checkpointing.begin(log, weights)
            beginning = log.state.beginning.write_id
        contributions = Contributions(run.store, geometry, run.backend, run.new_id)
        versions = RoundVersions(run.versions, first, options.member, takeover_s=options.takeover_s, clock=self._clock)
        member = Member(
            options.member,
            log,
            contributions,
            weights,
            grace_s=options.grace_s,
            silence_s=options.silence_s,
            clock=self._clock,
            checkpointing=checkpointing,
        )
        digest = weights.digest().hex() if started is None else started.digest
        member.round, member.beginning = begun_at, beginning
        if saved is not None:
            attempt = Attempt(run.peers)
            attempt.run(partial(saved.check, layout, weights.held, len(weights.residual), log.state), None)
            attempt.agree("saved state")

        def start(common: dict[str, Any]) -> StartRecord:
            return options.start({**common, "version": first, "layout": layout, "digest": digest})

        log.append(lambda state, common: None if state.start else start(common))
        if (begun := log.state.start) is not None and begun.version != first:
            return self.join()  # others have begun meanwhile, with another version
        member.join(start)
        self._first, self._member, self._log = first, member, log
        self.weights, self._versions, self._take = weights, versions, take
        self._newest, self.applied, self.steps, self._saved = member.closed, member.round, 0, None
        if saved is not None:
            self._restore(saved, member)
        weights.store(self._masters())

    def step(self, *, wait: bool = True) -> RoundResult | None:
        """Call after each step of the inner optimizer; every ``inner_steps``-th contributes to a round.

        What comes too late for its round goes out with the one that is open then, at once, and this member waits for
        the end of that: so it is with the others again, who else would always be ahead of it.

        Args:
            wait: for the round to end, and return it. Else train on meanwhile: a later call returns it when it has
                ended, at the latest the one that contributes to the next round, which waits. What the model has moved
                since it contributed, it keeps.

        Raises:
            Fenced: another process has joined under this name.
            Diverged: the run's version is not what this trainer holds.
            InvalidModel: the weights have become NaN or infinite; see ``reset``.
            QuorumLost: others have left, and those that are there are fewer than the quorum; or nobody has said
                anything for so long as was to be waited (``silence``). Nothing is lost.
            StoreUnavailable: nothing is lost; call ``finish``, or train on: the next call goes on with the round.
        """
        member = self.member
        self.steps += 1
        if member.contributed is None and not self._half_applied():
            if member.attempt is None and self.steps < member.inner_steps:
                return None
            self.contribute()
        if wait or self._half_applied():
            return self.finish()
        if self.steps < member.inner_steps:
            return self.apply() if member.poll() else None
        result = self.finish()
        self.contribute()
        return result

    def finish(self) -> RoundResult:
        """Contribute, unless that was done, wait until the round has ended, and apply it; what failed is called again.

        Raises:
            Fenced, Diverged, InvalidModel, QuorumLost, StoreUnavailable: as ``step``.
        """
        while not self._half_applied():
            counts = self.contribute().counts
            self.await_round()
            if counts:
                break
            self.apply()
        return self.apply()

    def contribute(self, steps: int | None = None) -> Contributed:
        """Send what this trainer has learnt since the newest round, once a round; ``await_round`` and ``apply`` follow.

        Args:
            steps: of the inner optimizer, of who does not call ``step``; None: those that it has counted, or 1. There
                may be fewer than the others make.

        Raises:
            Fenced, Diverged, InvalidModel, StoreUnavailable: as ``step``.
        """
        member = self.member
        if self._half_applied():
            self.apply()
        if member.contributed is not None:
            return member.contributed
        if member.attempt is None:
            self.steps = max(1, self.steps if steps is None else steps)
        self._settle()
        attempted = member.attempt is not None
        try:
            return member.contribute(self._masters(), self.steps)
        finally:
            if not attempted and (member.attempt is not None or member.contributed is not None):
                self.steps = 0

    def await_round(self) -> None:
        """Wait until the round has ended; this member ends it, at its quorum and after its grace.

        Raises:
            QuorumLost: as ``step``.
        """
        began, tell_s = self._clock(), _TELL_S
        while not (member := self.member).poll():
            member.check_quorum()
            if self._clock() - began >= tell_s:
                tell_s *= 2
                said = f"{member.waits_for()}. This member goes on as soon as they have contributed"
                self.run.events.tell(Event(EventKind.ROUND_WAITS, self.run.name, said))
            self._log.wait(self._options.poll_s, min(member.grace_left(), _LONGEST_WAIT_S), self._sleep)

    def apply(self) -> RoundResult:
        """Make the outer step of what has ended, in the model.

        What the model has moved since ``contribute``, it keeps, for the next round. What was not contributed, or came
        too late, goes out with the next contribution, whole, and with its steps.

        Raises:
            InvalidArgument: no round has ended: call ``await_round``.
            InvalidModel: the weights have become NaN or infinite; see ``reset``.
            Fenced: rounds began anew.
            StoreUnavailable: call again.
        """
        member, weights = self.member, self.weights
        if not (member.has_ended or self._half_applied()):
            raise InvalidArgument("no round has ended: call await_round first")
        masters = self._masters()
        if weights.origin is None:
            weights.collect(masters)
        sent: Contributed | None = None
        try:
            member.catch_up()
        finally:  # of several rounds, some may have been made when the store failed
            if self._half_applied() and not member.lost:
                weights.store(masters)
                sent = member.newest if member.newest is not None and member.newest.round > self.applied else None
                self.steps += 0 if sent is None or sent.counts else sent.steps
                self.applied, self._newest = member.round, member.closed
        with suppress(StoreUnavailable):  # the step is made; the next contribution asks for its version again
            self._settle(wait=False)
        self.last = self._result(member, sent)
        return self.last

    def reset(self) -> None:
        """Give the model the weights of the newest round again, and drop its inner steps since; nothing is sent."""
        _ = self.member  # who has not joined is told so
        self.weights.drop(self._masters())
        self.steps = 0

    def attach(self, *optimizers: Any, wait: bool = True) -> None:
        """Call ``step`` after each step of a torch optimizer; of several, when each has made one. Ends with ``leave``.

        What a round came to is in ``last``.

        Raises:
            InvalidArgument: there is none, or some are attached: give all in one call.
        """
        if self._hooks or not optimizers:
            raise InvalidArgument("give all optimizers of the model in one call of attach")
        every, stepped = {id(one) for one in optimizers}, set[int]()

        def hook(optimizer: Any, *_: Any) -> None:
            stepped.add(id(optimizer))
            if stepped == every:
                stepped.clear()
                self.step(wait=wait)

        self._hooks = [one.register_step_post_hook(hook) for one in optimizers]

    def change(
        self,
        *,
        from_round: int,
        inner_steps: int | None = None,
        lr: float | None = None,
        momentum: float | None = None,
    ) -> None:
        """Let rounds from one on be of other rates, for all members. One says so, or all say the same.

        Args:
            from_round: the first of them, which must not have begun.
            inner_steps, lr, momentum: see ``OuterOptions``; None: as they are at that round by what was said until now.

        Raises:
            InvalidArgument: that round has begun with other rates, or one is out of range.
            StoreUnavailable: call again.
        """
        self.member.change(from_round, inner_steps, lr, momentum)

    def state_dict(self) -> dict[str, Any]:
        """Return what this trainer has not sent, for its checkpoint: texts, whole numbers, and one float32 tensor.

        That is 4 bytes a cell: its residual, with what the model has moved since the newest round. There are two such
        tensors, if it is not known whether a contribution has reached the log. The weights and the momentum are
        the rounds'.

        Raises:
            InvalidModel: the weights have become NaN or infinite.
        """
        member, weights, masters, attempt = self.member, self.weights, self._masters(), self.member.attempt
        saved = SavedState(
            run=self.run.name,
            member=member.name,
            layout=weights.geometry.id,
            groups=weights.held,
            start=member.beginning,
            round=member.round,
            steps=self.steps + (0 if attempt is None else attempt.steps),
            newest=member.sent,
            attempt="" if attempt is None else attempt.record.write_id,
            residual=weights.unsent(masters),
            rest=None if attempt is None else weights.unsent(masters, attempt.sent),
        )
        return saved.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, at ``join``, with what ``state_dict`` has returned; call it before.

        If this member has contributed after that, a part of it was sent: all of it is dropped, and a warning says so.
        So nothing is ever sent twice.

        Raises:
            InvalidArgument: this trainer has joined, or it is another one's state.
        """
        if self._member is not None:
            raise InvalidArgument("this trainer has joined: call load_state_dict before join, or before the with block")
        saved = SavedState.parse(state)
        saved.check_owner(self.run.name, self._options.member)
        self._saved = saved

    def leave(self) -> None:
        """Leave the rounds; what was not sent is lost, unless ``state_dict`` has it."""
        self._detach()
        if self._member is not None:
            self._settle()
            self._member.leave()
            self._member = None
            self.run.versions.close()

    def _restore(self, saved: SavedState, member: Member) -> None:
        found = saved.unsent(member.state)
        if found is None:
            restart = member.state.restart
            anew = restart is not None and restart.write_id != saved.start
            _logger.warning(
                "run %r: the state of member %r was saved at round %d, and since then %s: what it had not sent is "
                "dropped",
                self.run.name,
                member.name,
                saved.round,
                "the rounds have begun anew" if anew else "it has contributed: a part of it was sent",
            )
            return
        self.weights.residual[:] = found
        if member.round == saved.round and found is saved.residual:
            self.steps = saved.steps

    def _result(self, member: Member, sent: Contributed | None) -> RoundResult:
        last = member.closed
        if last is None:
            raise InvalidArgument(f"round {member.round} has not ended")
        return RoundResult(
            round=last.number,
            version=self._first + last.number,
            members=tuple(last.contributions),
            late=tuple(sorted(last.members - last.contributions.keys())),
            counts=sent is not None and sent.counts,
            entries=0 if sent is None else sent.entries,
            nbytes=0 if sent is None else sent.nbytes,
            cells=self.weights.geometry.cells,
        )

    def _settle(self, *, wait: bool = True) -> None:
        """See that the newest round's version is there, and is what this member holds."""
        if self._newest is None:
            return
        closed = self._newest
        while not self._versions.settle(closed.number, self.member.digest, closed.contributions, self._push):
            if not wait:
                return
            left = self._versions.turn_left(closed.contributions)
            self.run.wait(self._options.poll_s, min(left, _LONGEST_WAIT_S), self._sleep)
        self._newest = None

    def _half_applied(self) -> bool:
        """Tell whether an outer step was made, or begun, that the model has not got."""
        return self.member.lost or self.member.round > self.applied

    def _push(self, version: int) -> None:
        self.member.check_unchanged()
        self.run.versions.push(version, self.weights)

    def _masters(self) -> Masters:
        return self._take(read_destination(self._model))

    def _opened(self) -> OuterLog | SharedOuterLog:
        """Return the outer log, not read yet."""
        run, peers = self.run, self.run.peers
        kind = OuterLog if peers.size == 1 else HeardLog
        log = kind(run.store, run.name, run.signer, run.guard, run.threads, clock=run.clock, new_id=run.new_id)
        return SharedOuterLog(log, peers) if isinstance(log, HeardLog) else log

    def _check_same(self) -> None:
        """Check that all ranks of this member were given the same.

        Raises:
            InvalidArgument: on all ranks: they were not.
        """
        every = self.run.peers.all_gather(repr((self._options, self._saved is None)).encode(), "options")
        for rank, said in enumerate(every):
            if said != every[0]:
                raise InvalidArgument(f"rank {rank} was given {said.decode()}, and rank 0 {every[0].decode()}")

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def member(self) -> Member:
        """What follows the log for this trainer.

        Raises:
            InvalidArgument: it has not joined, or has left.
        """
        if self._member is None:
            raise InvalidArgument("this trainer has not joined, or has left: call join")
        return self._member
