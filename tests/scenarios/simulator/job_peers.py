"""A rank's end of a job's group: its process may die at any collective, fall silent, and damage what it sends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pulse_registry.peers.local_peers import LocalPeers
from pulse_registry.peers.peers import Bytes
from tests.scenarios.simulator.bucket import Link
from tests.scenarios.simulator.world import Crash
from tests.support.ranks import MortalPeers

_MOST_CALLS = 5_000
"""Of a rank in one turn of its job: some hundred times as many as it needs. Beyond, ranks go round in circles."""


@dataclass(slots=True)
class Wire:
    """What goes wrong between the ranks of a job, and how often.

    Attributes:
        death: chance that a rank dies at a call, before it or after it.
        silence: chance that it makes the call minutes or hours late.
        damage: chance that one bit of the changes which it sends is wrong.
        damaged: how often one was.
    """

    death: float = 0.0
    silence: float = 0.0
    damage: float = 0.0
    damaged: int = 0

    @classmethod
    def drawn(cls, rng: random.Random, ranks: int) -> Wire:
        """Draw chances: of many ranks each is as safe as that the job gets somewhere."""
        often = rng.choice((0.0, 0.0, 0.0003, 0.002)) * min(1.0, 5 / ranks)
        return cls(often, rng.choice((0.0, 0.1, 1.0)) * often, rng.choice((0.0, 0.0, 0.02)))


class JobPeers(MortalPeers):
    """A rank's end of a group in the simulation."""

    def __init__(self, peers: LocalPeers, link: Link, wire: Wire, timeout_s: float) -> None:
        super().__init__(peers)
        self._link, self._wire, self._timeout_s = link, wire, timeout_s
        self._world = link.bucket.world

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        rng = self._world.rng
        if what != "changes" or rng.random() >= self._wire.damage:
            return super().exchange(parts, what)
        sent = [bytes(part) for part in parts]
        some = [rank for rank, part in enumerate(sent) if part]
        if some:
            to = rng.choice(some)
            at, data = rng.randrange(8 * len(sent[to])), bytearray(sent[to])
            data[at // 8] ^= 1 << at % 8
            sent[to] = bytes(data)
            self._wire.damaged += 1
            self._world.note(f"{self._link.who} sends changes with bit {at} wrong")
        return super().exchange(sent, what)

    def _living(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call, unless the process dies before it."""
        world, wire = self._world, self._wire
        if self._link.dead or world.over:
            raise Crash
        self.calls.append(what)
        if len(self.calls) > _MOST_CALLS:
            world.fail(f"{self._link.who} goes round in circles: {self.calls[-20:]}")
        drawn = world.rng.random()
        dies = drawn < wire.death
        if dies and world.rng.random() < 0.5:
            self._die(f"before {what}")
        if wire.death <= drawn < wire.death + wire.silence:
            world.note(f"{self._link.who} is silent before {what}")
            world.pause(world.rng.choice((1.0, 60.0, 600.0, 7200.0)) * (0.5 + world.rng.random()))
        began = world.now
        try:
            result = call()
        finally:
            if world.now > began + self._timeout_s + 1e-3:
                world.fail(f"{self._link.who} waits {world.now - began} s for {what}, and not {self._timeout_s}")
        if dies:
            self._die(f"after {what}")
        return result

    def _die(self, when: str) -> None:
        self._world.note(f"{self._link.who} dies {when}")
        self._link.dead = True
        raise Crash
