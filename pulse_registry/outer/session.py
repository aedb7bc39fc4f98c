"""A session: a trainer's model in outer rounds, from join to leave.

with registry.outer(model, member="eu-1", inner_steps=8) as outer:
    for batch in data:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()  # every 8th: contribute, wait for the round, step
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pulse_kernels import Backend
from pulse_kernels.select import outer_loops
from pulse_registry.errors import InvalidArgument
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.log.clock import Clock, NewId, random_id, utc_now
from pulse_registry.log.guard import Guard
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.masters import Masters, WholeMasters
from pulse_registry.outer.member import Contributed, Member
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.state import ClosedRound
from pulse_registry.outer.versions import RoundVersions, RunVersions
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.store import Store
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.model import Model, read_model
from pulse_schemas import Signer
from pulse_schemas.outer import StartRecord

_LONGEST_WAIT_S = 60.0
_TELL_S = 60.0
"""After so long, and each time twice as long, it is said what a round waits for."""
_FIRST_EXPONENT = -20
"""About which the first round's levels lie, 12 either way: of learning rates from 1e-9 to 1e-2, in 8 steps."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round came to.

    Attributes:
        round, version: its number, and that of the version that it made.
        members: that contributed; ``late``: that it was of, too, and whose part comes with a later one.
        entries, nbytes: that this member sent to it; ``counts``: whether in time.
        cells: of the model.
    """

    round: int
    version: int
    members: tuple[str, ...]
    late: tuple[str, ...]
    counts: bool
    entries: int
    nbytes: int
    cells: int

    @property
    def density(self) -> float:
        """Return the share of the cells that this member sent."""
        return self.entries / max(1, self.cells)


@dataclass(frozen=True, slots=True)
class Run:
    """What a session needs of the run.

    Attributes:
        name: of the run.
        store: scoped to it.
        backend: computes.
        versions: its versions.
        newest: returns the number of the newest version; makes the first one of a model if there is none.
        load: returns the cells of a version.
        signer: signs what this trainer says.
        guard: judges what the others say; None believes the store.
        threads: makes an executor, of so many threads and their name's beginning.
        events: hear of rounds that wait for long.
        clock: the time of day, which records carry; nothing is decided by it.
        new_id: gives write ids.
    """

    name: str
    store: Store
    backend: Backend
    versions: RunVersions
    newest: Callable[[Model], int]
    load: Callable[[int], Weights]
    signer: Signer | None = None
    guard: Guard | None = None
    threads: Callable[[int, str], Executor] = ThreadPoolExecutor
    events: Events = field(default_factory=Events)
    clock: Clock = utc_now
    new_id: NewId = random_id


class OuterSession:
    """Takes part in rounds with a model, whose float32 weights are replaced by each outer step. Not thread-safe."""

    def __init__(
        self,
        run: Run,
        model: Model,
        options: OuterOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; no I/O yet."""
        self._run, self._model, self._options, self._rates = run, model, options, options.rates()
        self._clock, self._sleep = clock, sleep
        self._steps = 0
        self._member: Member | None = None
        self._sent: Contributed | None = None
        self._newest: ClosedRound | None = None

    def __enter__(self) -> Self:
        """Join: see ``join``."""
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave, unless by an error: then this member is late, until it comes back or is not waited for any more."""
        if error is None:
            self.leave()

    @property
    def round(self) -> int:
        """Number of the newest round whose step the model has made."""
        return self._joined().round

    def join(self) -> None:
        """Join the rounds; the model then holds the weights of the newest one. The first one starts them.

        Raises:
            InvalidArgument: the rounds were started with other settings, or an option is not valid.
            InvalidModel: a tensor of the model is not float32, or other than the run's.
            StoreUnavailable, CorruptObject, NotFound: the run, or a contribution, can't be read.
        """
        run, options = self._run, self._options
        log = OuterLog(run.store, run.name, run.signer, run.guard, run.threads, clock=run.clock, new_id=run.new_id)
        started = log.refresh().start
        first = run.newest(self._model) if started is None else started.version
        version = run.load(first)
        weights = OuterWeights(version.geometry, run.backend, outer_loops(run.backend.name))
        weights.begin(version.copy_of)
        contributions = Contributions(run.store, version.geometry, run.backend, run.new_id)
        self._weights = weights
        self._masters()  # they fit, or nobody hears of this one
        self._versions = RoundVersions(
            run.versions, first, options.member, takeover_s=options.takeover_s, clock=self._clock
        )
        member = Member(options.member, log, contributions, weights, grace_s=options.grace_s, clock=self._clock)
        digest, layout = weights.digest().hex(), version.geometry.id

        def start(common: dict[str, Any]) -> StartRecord:
            try:
                return StartRecord(
                    **common,
                    version=first,
                    layout=layout,
                    digest=digest,
                    rates=self._rates,
                    gain=float(options.gain),
                    values="levels",
                    exponent=_FIRST_EXPONENT,
                    quorum=options.quorum,
                    patience=options.patience,
                    weighting=options.weighting,
                )
            except ValueError as error:
                raise InvalidArgument(f"the options of outer rounds are not valid: {error}") from error

        log.append(lambda state, common: None if state.start else start(common))
        if (begun := log.state.start) is not None and begun.version != first:
            return self.join()  # others have begun meanwhile, with another version
        member.join(start)
        self._first, self._member, self._log = first, member, log
        self._newest, self._steps, self._sent = member.closed, 0, None
        self._store()

    def step(self) -> RoundResult | None:
        """Call after each step of the inner optimizer; every ``inner_steps``-th makes a round, and returns it.

        What comes too late for its round goes out with the one that is open then, at once, and this member waits for
        the end of that: so it is with the others again, who else would always be ahead of it.

        Raises:
            Fenced: another process has joined under this name.
            Diverged: the run's version is not what this trainer holds.
            InvalidModel: the weights have become NaN or infinite.
            StoreUnavailable: nothing is lost; call ``contribute``, ``await_round`` and ``apply`` again.
        """
        self._steps += 1
        if self._steps < self._rates.inner_steps:
            return None
        while True:
            counts, steps = self.contribute().counts, self._steps
            self.await_round()
            result = self.apply()
            if counts:
                return result
            self._steps = steps

    def attach(self, optimizer: Any) -> None:
        """Call ``step`` after each step of a torch optimizer."""
        optimizer.register_step_post_hook(lambda *_: self.step())

    def contribute(self) -> Contributed:
        """Send what this trainer has learnt since the newest round; fewer steps than the others' are told as such."""
        self._settle()
        self._sent = self._joined().contribute(self._masters(), max(1, self._steps))
        return self._sent

    def await_round(self) -> None:
        """Wait until the round has ended; this member ends it, at its quorum and after its grace."""
        began, tell_s = self._clock(), _TELL_S
        while not (member := self._joined()).poll():
            if self._clock() - began >= tell_s:
                tell_s *= 2
                said = f"{member.waits_for()}. This member goes on as soon as they have contributed"
                self._run.events.tell(Event(EventKind.ROUND_WAITS, self._run.name, said))
            self._log.wait(self._options.poll_s, min(member.grace_left(), _LONGEST_WAIT_S), self._sleep)

    def apply(self) -> RoundResult:
        """Make the outer step of what has ended, in the model; its own inner steps are replaced."""
        member, sent = self._joined(), self._sent
        before = member.round
        try:
            member.catch_up()
        finally:  # of several rounds, some may have been made when the store failed
            if member.round > before:
                self._newest, self._steps, self._sent = member.closed, 0, None
                self._store()
        if (last := member.closed) is None or last.number == before:
            raise InvalidArgument("no round has ended: call await_round first")
        self._settle(wait=False)
        return RoundResult(
            round=last.number,
            version=self._first + last.number,
            members=tuple(last.contributions),
            late=tuple(sorted(last.members - last.contributions.keys())),
            counts=sent is not None and sent.counts,
            entries=0 if sent is None else sent.entries,
            nbytes=0 if sent is None else sent.nbytes,
            cells=self._weights.geometry.cells,
        )

    def leave(self) -> None:
        """Leave the rounds; what was not sent is lost."""
        if self._member is not None:
            self._settle()
            self._member.leave()
            self._member = None
            self._run.versions.close()

    def _settle(self, *, wait: bool = True) -> None:
        """See that the newest round's version is there, and is what this member holds."""
        if self._newest is None:
            return
        closed = self._newest
        while not self._versions.settle(closed.number, self._weights, closed.contributions):
            if not wait:
                return
            self._sleep(self._options.poll_s)
        self._newest = None

    def _store(self) -> None:
        self._weights.store(self._masters())

    def _masters(self) -> Masters:
        return WholeMasters.of(self._weights.geometry, read_model(self._model))

    def _joined(self) -> Member:
        if self._member is None:
            raise InvalidArgument("this trainer has not joined, or has left: call join")
        return self._member
