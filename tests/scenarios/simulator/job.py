"""Jobs: ranks that push a sharded policy together, until one of them dies or a newer trainer takes over.

What they push is decided once for all, by the rank that comes first. How a push ended must be the same on all ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pulse_registry import Slice
from pulse_registry.errors import (
    Conflict,
    CorruptObject,
    Fenced,
    InvalidArgument,
    InvalidModel,
    NotFound,
    PeerLost,
    PulseError,
    StoreUnavailable,
)
from pulse_registry.peers.local_peers import LocalGroup
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult
from tests.scenarios.simulator.bucket import Bucket
from tests.scenarios.simulator.job_peers import JobPeers, Wire
from tests.scenarios.simulator.policy import MANY_CELLS, Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.truth import Pushed, Truth
from tests.scenarios.simulator.weather import Weather
from tests.scenarios.simulator.world import Crash
from tests.support.slices import Rank, cut, put

_STEP_S = 10.0
_KEPT_TURNS = 4
_MANY = 64
"""So many ranks hold a larger policy."""
_SUMS = re.compile("by their sums|have the state digest|are not those that the ranks hold")
Mistake = Literal["missing", "whole", "drifted", "step"]


@dataclass(slots=True)
class JobPush:
    """A push of a job, the same on all ranks, but for a mistake on one of them.

    Attributes:
        number: under which the truth knows it.
        policy: what is pushed.
        mistake: what is wrong on one rank, which one, and with which tensor; None: nothing.
        ends: how it ended, by rank.
    """

    number: int
    policy: Policy
    mistake: tuple[Mistake, int, str] | None = None
    ends: dict[int, tuple[Any, ...]] = field(default_factory=dict)


class Job:
    """One life of a job; ``eager`` ones never stop, the others come, take over, push a while and go.

    Attributes:
        living: how many ranks have not ended.
        right: how many pushes were begun without a mistake.
    """

    def __init__(
        self,
        bucket: Bucket,
        truth: Truth,
        who: str,
        weather: Weather,
        size: int,
        *,
        eager: bool = False,
        wire: Wire | None = None,
    ) -> None:
        self.truth, self.world, self.size = truth, bucket.world, size
        rng = self._rng = self.world.rng
        drawn = Wire.drawn(rng, size)
        self.wire = wire or drawn
        self.timeout_s = rng.choice((90.0, 600.0, 1800.0))
        self._who, self._group = who, LocalGroup(size, timeout_s=self.timeout_s, wait=self._wait)
        self._processes = [Process(bucket, f"{who}.{rank}", weather) for rank in range(size)]
        self._left = 10**9 if eager else rng.randrange(1, 20)
        self._begun, self.living, self.right = 0, size, 0
        self._turns: dict[int, list[JobPush]] = {}
        self._dealt: dict[int, list[Rank]] = {}
        self._policy = Policy(0)
        self.options = {
            "coder": rng.choice(("gap", "gap", "class", "auto")),
            "keyframe_every": rng.randrange(2, 24),
            "keyframe_share": 1e9,
            "keyframe_coding": rng.choice(("raw", "raw", "raw", "exponents")),
            "max_pending": rng.randrange(1, 4),
        }

    def live(self) -> None:
        """Let all ranks live until the first of them ends, and, in half of the cases, the others, too."""
        self._policy = self._begin()
        for rank, process in enumerate(self._processes):
            peers = JobPeers(self._group.peers(rank), process.link, self.wire, self.timeout_s)
            self.world.spawn(lambda rank=rank, process=process, peers=peers: self._life(rank, process, peers))  # type: ignore[misc]
        self.world.wait(lambda: self.living < self.size)
        if self._rng.random() < 0.5:
            self.world.wait(lambda: not self.living)

    def turn(self, number: int) -> list[JobPush]:
        """Return the pushes of a turn of all ranks, in a burst; none: the job is over."""
        if number == self._begun:
            self._begun += 1
            self._turns[number] = self._next(first=not number)
            self._turns.pop(number - _KEPT_TURNS, None)
        return self._turns[number]

    def held(self, rank: int, push: JobPush) -> Rank:
        """Return what a rank pushes, with the mistake that it makes."""
        held = self._of(push.policy)[rank]
        put(held, push.policy.tensors)
        if push.mistake is None or push.mistake[1] != rank:
            return held
        kind, _, name = push.mistake
        if kind == "missing":
            return {other: value for other, value in held.items() if other != name}
        if kind == "whole":
            return held | {name: push.policy.tensors[name].copy()}
        if kind == "drifted":
            other = held[name].copy()
            other.reshape(-1).view(np.uint8)[0] ^= 1
            return held | {name: other}
        return held

    def ended(self, rank: int, push: JobPush, end: PushResult | PulseError, *, own: bool = True) -> bool:
        """See that a push ended as it may, and alike on all ranks; return whether the job is over.

        ``own`` is false if the error may be that of an older push, which nobody had looked at: if a rank dies while the
        others agree on what that push took along, one may raise this error, and another one that the rank is lost.
        """
        said: tuple[Any, ...] = type(end).__name__, str(end)
        if isinstance(end, PushResult):
            said = end.version, end.digest, end.changed, end.nbytes
        elif isinstance(end, PeerLost):
            said = "PeerLost", end.ranks
        push.ends[rank] = said
        for other, it in push.ends.items():
            if it != said and (own or "PeerLost" not in (it[0], said[0])):
                self.world.fail(f"push {push.number} of {self._who} ended on rank {rank}: {said}, and on {other}: {it}")
        if isinstance(end, PushResult):
            if push.mistake is not None:
                self.world.fail(f"{self._who}: push {push.number} was not refused: {push.mistake}")
            self.truth.acknowledged(push.number, end.version)
            return False
        if own:
            self._refused(push, end)
        return isinstance(end, Fenced | PeerLost)

    def _refused(self, push: JobPush, error: PulseError) -> None:
        if push.mistake is not None:
            kind = InvalidArgument if push.mistake[0] == "step" else InvalidModel
            if not isinstance(error, kind | PeerLost):
                self.world.fail(f"{self._who}: push {push.number} with {push.mistake} was refused as {error!r}")
            self.truth.count("mistakes")
            if isinstance(error, kind):
                self.truth.refused(push.number, repr(error))
            return
        late = isinstance(error, InvalidArgument) and self.truth.counts.get("orphans")
        damaged = any(process.link.damaged for process in self._processes) or self.wire.damaged
        wrong = isinstance(error, CorruptObject | NotFound) and damaged
        # What the ranks hold, and what they send, adds up to what it must, unless it was damaged.
        odd = isinstance(error, Conflict) and _SUMS.search(str(error)) and not self.wire.damaged
        if odd or not (late or wrong or isinstance(error, StoreUnavailable | Fenced | Conflict | PeerLost)):
            self.world.fail(f"{self._who}: a push failed for no reason: {error!r}")
        if isinstance(error, Fenced | Conflict):
            self.truth.refused(push.number, repr(error))

    def _life(self, rank: int, process: Process, peers: JobPeers) -> None:
        try:
            JobRank(self, rank, process, peers).live()
        except Crash:
            self.truth.count("crashes")
        finally:
            process.link.dead = True
            peers.close()
            self.living -= 1
            self.world.stir()

    def _wait(self, until: Any, seconds: float) -> bool:
        """Wait for the other ranks; the last one lets them go on."""
        if until():
            self.world.stir()
        return self.world.wait(until, seconds)

    def _begin(self) -> Policy:
        """Go on from the newest version, as from a checkpoint, or from somewhere else."""
        kind = MANY_CELLS if self.size >= _MANY else 0
        if self.truth.versions and self._rng.random() < 0.8:
            newest = self.truth.versions[-1].state
            if kind in (0, newest.kind):
                return Policy(newest.kind, newest.bits)
        policy = Policy(kind)
        policy.train(self._rng)
        return policy

    def _next(self, *, first: bool) -> list[JobPush]:
        """Decide what all ranks do next."""
        rng = self._rng
        if self._left <= 0:
            return []
        if rng.random() < 0.003 and self._policy.kind != MANY_CELLS:
            self._policy = Policy(1 - self._policy.kind)
        mistake = self._mistake(first) if rng.random() < (0.3 if first else 0.02) else None
        burst = 1 if mistake is not None else rng.choice((1, 1, 1, 2, 3))
        self._left -= burst
        self.right += burst if mistake is None else 0
        pushes = []
        for _ in range(burst):
            self._policy.train(rng)
            self.truth.count("pushes of ranks")
            number = self.truth.pushed(Pushed(self._policy.kind, self._policy.bits), self._policy.digest)
            pushes.append(JobPush(number, Policy(self._policy.kind, self._policy.bits), mistake))
        return pushes

    def _of(self, policy: Policy) -> list[Rank]:
        """Return what the ranks hold of a policy of this kind; each holds something."""
        while policy.kind not in self._dealt or not all(self._dealt[policy.kind]):
            self._dealt[policy.kind] = cut(policy.tensors, self.size, self._rng.randrange(2**32))
        return self._dealt[policy.kind]

    def _mistake(self, first: bool) -> tuple[Mistake, int, str] | None:
        """Return something wrong on one rank; what it holds is wrong only where ranks agree on that: at first."""
        dealt, rng = self._of(self._policy), self._rng
        found: list[tuple[Mistake, int, str]] = [("step", rank, "") for rank in range(self.size) if self.size > 1]
        if first:
            found = []
            for name, whole in self._policy.tensors.items():
                sliced = [rank for rank in range(self.size) if isinstance(dealt[rank].get(name), Slice)]
                some = [rank for rank in sliced if 0 < dealt[rank][name].tensor.size < whole.size]
                for rank in some if len(some) > 1 else ():
                    found += [("missing", rank, name), ("whole", rank, name)]
                copies = [rank for rank in range(self.size) if isinstance(dealt[rank].get(name), np.ndarray)]
                found += [("drifted", rank, name) for rank in copies if len(copies) > 1]
        return rng.choice(found) if found else None


class JobRank:
    """One rank of a job."""

    def __init__(self, job: Job, rank: int, process: Process, peers: JobPeers) -> None:
        self._job, self._rank, self._process, self._peers = job, rank, process, peers
        self._rng = process.world.rng
        self._unread = False

    def live(self) -> None:
        """Push with the others, until the job is over."""
        registry = self._process.registry(self._peers, **self._job.options)
        number = 0
        while pushes := self._job.turn(number):
            self._process.world.pause(self._rng.uniform(0.2, 2.0) * _STEP_S)
            self._peers.calls.clear()
            if self._push(registry, pushes):
                return
            number += 1

    def _push(self, registry: Registry, pushes: list[JobPush]) -> bool:
        """Push in a burst, without waiting for one another; return whether the job is over."""
        over, futures = False, []
        for push in pushes:
            held = self._job.held(self._rank, push)
            step = push.number + (push.mistake is not None and push.mistake[:2] == ("step", self._rank))
            try:
                future = registry.push(step, held, metadata={"push": push.number}, wait=False)
            except PulseError as error:
                over |= self._job.ended(self._rank, push, error, own=not futures and not self._unread)
                self._unread |= bool(futures)
            else:
                futures.append((push, future))
            if self._rng.random() < 0.3:
                self._process.work()
        self._process.work()
        for push, future in futures:
            error = future.exception()
            assert error is None or isinstance(error, PulseError)
            over |= self._job.ended(self._rank, push, future.result() if error is None else error)
        return over
