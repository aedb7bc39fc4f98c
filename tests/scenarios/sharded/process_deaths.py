"""Ranks of real processes of which one is killed, or stopped, at each step of a job in turn: a line of JSON for each.

process_deaths.py FOLDER SIZE EVERY   kills each rank at every so manieth step of a job, on one registry; each job after
a death goes on with the run, and shows so that it can
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from pulse_registry import PushResult, Registry, Slice
from pulse_registry.errors import PeerLost, PulseError
from pulse_registry.peers.torch_peers import TorchPeers
from pulse_registry.store import FileStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from pulse_registry.weights.backend import backend_of
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.registries import quick, settle
from tests.support.waiting import NEVER_S
from tests.unit.peers.ranks import group

Found = dict[str, Any]
GROUP_BYTES: Final = 64
_SILENCE_S: Final = 10.0
_COLLECTIVES: Final = ("all_gather", "gather", "broadcast", "exchange")
State = dict[str, np.ndarray[Any, Any]]


def state_of_step(step: int) -> State:
    """Return what a step's version holds; it changes cells of all groups, so that each job has the same steps."""
    rng = np.random.default_rng(step // 20)
    state = {"w": rng.integers(0, 2**15, (8, 24), dtype=np.uint16), "r": rng.integers(0, 200, 9, dtype=np.uint8)}
    for one in range(step // 20 * 20, step + 1):
        state["w"][:, one % 3 :: 3] += 1
        state["r"][one % 9] ^= 1
    return state


def held(step: int, rank: int, ranks: int) -> dict[str, Any]:
    """Return what a rank holds of it: columns of one tensor, and the other one as a replica."""
    state, (first, last) = state_of_step(step), (24 * rank // ranks, 24 * (rank + 1) // ranks)
    return {"w": Slice(np.ascontiguousarray(state["w"][:, first:last]), of=(8, 24), at=(0, first)), "r": state["r"]}


@dataclass(frozen=True)
class Step:
    """A step of a rank's life.

    Attributes:
        victim: the rank.
        phase: of the job: ``begin``, its first push; ``push``, the next one, and the keyframe that follows it.
        kind: ``call``, a collective, before which it dies; ``store``, a call of its store, after which it does.
        nth: of the calls of this kind, from 1 on.
        what: name of the collective, or the store's verb and key.
    """

    victim: int
    phase: str
    kind: str
    nth: int
    what: str


class Walker:
    """A rank's peers and store, which take note of each step, and do something at one of them."""

    def __init__(self, folder: str, peers: TorchPeers, step: Step | None, act: Callable[[], object]) -> None:
        self._peers, self._step, self._act = peers, step, act
        self._lock, self._overdue = threading.Lock(), False
        self.phase, self.found = "begin", list[Step]()
        fault = Fault("fail_after", matches=lambda verb, key: self._is_due("store", f"{verb} {key}"), error=self._acts)
        self.store = FaultStore(FileStore(folder), [fault])

    def __getattr__(self, name: str) -> Any:
        collective = getattr(self._peers, name)
        if name not in _COLLECTIVES:
            return collective

        def call(data: Any, what: str = "") -> Any:
            if self._is_due("call", what):
                self._act()
            return collective(data, what)

        return call

    def _is_due(self, kind: str, what: str) -> bool:
        if self._overdue:
            self._act()  # what it was to die after was refused
        with self._lock:
            nth = 1 + sum((one.phase, one.kind) == (self.phase, kind) for one in self.found)
            made = Step(self._peers.rank, self.phase, kind, nth, what)
            self.found.append(made)
        due = self._step is not None and dataclasses.replace(made, what=self._step.what) == self._step
        self._overdue = due and kind == "store"
        return due

    def _acts(self, *_: object) -> BaseException:
        self._act()
        return SystemExit()


def die() -> NoReturn:
    """Be killed, as a host is that goes."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit


def stop() -> None:
    """Be stopped, as a host is that hangs, until another process lets this one go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def opened(walker: Walker) -> Registry:
    return quick(walker.store, peers=walker, coder="gap", keyframe_every=1)  # type: ignore[arg-type]


def told(result: PushResult) -> list[Any]:
    return [result.version, result.step, result.kind, result.digest]


def pushes(registry: Registry, walker: Walker, first: int) -> Found:
    """Push, and push again until a rank is lost; returns results, and who was."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found: Found = {"results": []}
    try:
        for step in range(first, first + 3):
            walker.phase = "begin" if step == first else "push" if step == first + 1 else "end"
            found["results"].append(told(registry.push(step, held(step, rank, ranks))))
            settle(registry)
    except PeerLost as lost:
        found |= {"lost": str(lost), "ranks": list(lost.ranks)}
    return found


def dies(folder: str, step: Step | None, first: int) -> Found:
    """Go on with the run of the jobs before, until a rank is killed; without a step, take note of all."""
    walker = Walker(folder, TorchPeers(timeout_s=NEVER_S), step, die)
    registry = opened(walker)
    found = pushes(registry, walker, first)
    if step is None:
        registry.close()
        found["steps"] = [dataclasses.astuple(one) for one in walker.found if one.phase != "end"]
    return found


def sleeps(folder: str, step: Step, first: int) -> Found:
    """Go on with the run, until a rank is stopped; all ranks open again once it is awake, and go on."""
    walker = Walker(folder, TorchPeers(timeout_s=_SILENCE_S), step, stop)
    pids: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    found = pushes(opened(walker), walker, first)
    if dist.get_rank() != step.victim:
        os.kill(pids[step.victim], signal.SIGCONT)
    dist.barrier()
    again = Walker(folder, TorchPeers(timeout_s=NEVER_S), None, stop)
    with opened(again) as registry:
        found["again"] = told(registry.push(first + 5, held(first + 5, dist.get_rank(), dist.get_world_size())))
    again.close()
    return found


def store_fails(folder: str, first: int) -> Found:
    """Let each call of each rank's store fail in turn, before it acts or after it: all ranks raise it, and go on."""
    rank, ranks, step = dist.get_rank(), dist.get_world_size(), first
    due: list[int] = []

    def fits(*_: object) -> bool:
        if due:
            due[0] -= 1
        return bool(due) and not due[0]

    faults = {action: Fault(action, matches=fits) for action in ("fail_before", "fail_after")}  # type: ignore[arg-type]
    errors, odd = 0, []
    for action, fault in faults.items():
        store, peers = FaultStore(FileStore(folder), [fault]), TorchPeers(timeout_s=NEVER_S)
        registry = quick(store, peers=peers, coder="gap", keyframe_share=1e9)
        for victim in range(ranks):
            nth, fired = 1, True
            while fired:
                due[:] = [nth] if rank == victim else []
                raised = ""
                try:
                    registry.push(step, held(step, rank, ranks))
                except PulseError as error:
                    raised = f"{type(error).__name__}: {error}"
                every: list[Any] = [None] * ranks
                dist.all_gather_object(every, (raised, bool(due) and due[0] <= 0))
                due.clear()
                fired = any(ends for _, ends in every)
                if len({said for said, _ in every}) > 1:
                    odd.append([action, victim, nth, [said for said, _ in every]])
                errors += bool(raised)
                nth, step = nth + 1, step + 1
                if raised:
                    registry.push(step, held(step, rank, ranks))
                    step += 1
        registry.close()
    return {"errors": errors, "odd": odd, "pushed": step - first}


def recorded(folder: str, size: int) -> list[Step]:
    """Return all steps of all ranks of a job."""
    reader, writer = os.pipe()
    for first in (0, 20):  # the first job is about a run of nothing
        group(size, [named("steps", lambda first=first: dies(folder, None, first))], writer)  # type: ignore[misc]
    os.close(writer)
    with os.fdopen(reader) as lines:
        said: Mapping[int, Found] = {rank: found for _, rank, found in map(json.loads, lines)}  # of the last job
    return [Step(*one) for found in said.values() for one in found["steps"]]


def named(name: str, work: Callable[[], Found]) -> Callable[[], Found]:
    work.__name__ = name
    return work


def cases(folder: str, steps: Sequence[Step]) -> Iterator[tuple[str, Callable[[], Found]]]:
    """Yield a job for each step, at which a rank of it dies."""
    for number, step in enumerate(steps):
        name = json.dumps(["dies", *dataclasses.astuple(step)])
        yield name, lambda step=step, first=20 * (number + 2): dies(folder, step, first)  # type: ignore[misc]


def main(folder: str, size: int, every: int) -> None:
    """Print what all ranks found."""
    torch.set_num_threads(1)
    backend_of("auto").warm_up(2)
    report = os.dup(1)
    with small_groups(GROUP_BYTES), small_parts(1):
        steps = recorded(folder, size)
        asleep = [one for one in steps if (one.phase, one.kind) == ("push", "call")]
        last = 20 * (len(steps) + 2)
        some = [*asleep[:: len(asleep) // 2 + 1], *asleep[-1:]] if every > 1 else asleep[::6]
        naps = (
            (json.dumps(["sleeps", *dataclasses.astuple(one)]), lambda one=one, n=n: sleeps(folder, one, last + 20 * n))  # type: ignore[misc]
            for n, one in enumerate(some[: 1 if every > 1 else None])
        )
        failing = (json.dumps(["store fails"]), lambda: store_fails(folder, 10**6))
        for name, work in chain(cases(folder, steps[every // 2 :: every]), naps, [failing]):
            group(size, [named(name, work)], report)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
