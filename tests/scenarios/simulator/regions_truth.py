"""What is true of two regions: the one log of a run, how far each region has come in it, and a home that was lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pulse_registry.format import keys
from tests.scenarios.simulator.bucket import Link
from tests.scenarios.simulator.collecting import GRACE_S
from tests.scenarios.simulator.truth import RUN, Json, Named, Pushed, Truth
from tests.scenarios.simulator.world import World

REGIONS = ("us", "eu")


@dataclass(slots=True)
class Loss:
    """A region that was lost while it was the run's home.

    Attributes:
        region: its name.
        move: write id of the record by which the run goes on at the other one, once that is there.
        fenced: whether its own log has ended since.
    """

    region: str
    move: str | None = None
    fenced: bool = False


@dataclass
class Canon:
    """What is true of both regions: the one log, and where it goes on."""

    world: World
    log: list[bytes] = field(default_factory=list)
    home: str = REGIONS[0]
    truths: dict[str, RegionTruth] = field(default_factory=dict)
    pushed: list[tuple[Pushed, str]] = field(default_factory=list)
    loss: Loss | None = None

    def landed(self, who: str, region: str, seq: int, data: bytes, body: Json) -> None:
        """See that a record is the true one, or a new one at the run's home, or leaves a lost home."""
        loss = self.loss
        if loss is not None and body["kind"] == "move" and (seq >= len(self.log) or data != self.log[seq]):
            if region != loss.region and loss.move is None:
                del self.log[seq:]
                self.home, loss.move = region, body["write_id"]
            elif region == loss.region and loss.move == body["write_id"]:
                return
        if seq < len(self.log):
            if data != self.log[seq]:
                self.world.fail(f"{who} writes another record {seq} in {region}")
            return
        if region != self.home:
            self.world.fail(f"{who} writes record {seq} in {region}, and the run lives in {self.home}")
        self.log.append(data)
        if body["kind"] == "move":
            self.home = body["to"].removeprefix("sim://")

    def named(self, key: str) -> Named | None:
        """Return what the true log says of an object."""
        gone = None if self.loss is None or self.loss.move is None else self.loss.region
        truths = (truth for region, truth in self.truths.items() if region != gone)
        return max(truths, key=lambda truth: truth.records).named(key)

    def fork(self, region: str) -> int:
        """Return the first number at which a region's log differs from the true one, or one of them ends."""
        get = self.truths[region].get
        for seq, data in enumerate(self.log):
            if get(f"{RUN}/{keys.record_key(seq)}") != data:
                return seq
        return len(self.log)


class RegionTruth(Truth):
    """The truth of one region.

    Attributes:
        region: its name.
        links: ways to its bucket; what they may miss is told to them as damage on the way.
        carried: leases of the other region's readers that a mirror has carried here: since when.
    """

    def __init__(self, world: World, region: str, canon: Canon) -> None:
        super().__init__(world, GRACE_S)
        self.region, self._canon = region, canon
        self.links: list[Link] = []
        self.carried: dict[str, tuple[Json, float]] = {}
        canon.truths[region] = self
        self._pushed = canon.pushed  # trainers of both push states of one policy

    def wiped(self) -> None:
        """Begin anew: the bucket is empty."""
        get, leases, counts = self.get, self.leases, self.counts
        super().__init__(self.world, self.grace)
        self.get, self.leases, self.counts, self._pushed = get, leases, counts, self._canon.pushed

    def torn(self) -> bool:
        """Tell whether an object is absent that the true log has retired, and this region's not yet."""
        return any(named.live and self.get(key) is None for key, named in self._named.items())

    def named(self, key: str) -> Named | None:
        """Return what this region's log says of an object."""
        return self._named.get(key)

    def missed(self, key: str) -> None:
        """Excuse who asks for what the true log has retired, or is about to be copied."""
        found = self._canon.named(key)
        if self.region != self._canon.home and (found is None or not found.live):
            for link in self.links:
                link.damaged += 1
            return
        super().missed(key)

    def put(self, who: str, key: str, data: bytes) -> None:
        """Look at a write: snapshots of other writers say the same in other words."""
        if "/log/snapshots/" not in key:
            super().put(who, key, data)

    def _landed(self, who: str, seq: int, data: bytes) -> None:
        self._canon.landed(who, self.region, seq, data, json.loads(data)["body"])
        super()._landed(who, seq, data)

    def _object(self, who: str, body: Json, ref: Json, owner: str) -> None:
        key = f"{RUN}/{ref['key']}"
        found = self._canon.named(key)
        if self.get(key) is None and found is not None and not found.live:
            self._named[key] = Named(ref, owner)
            self.count("absent")
            return
        super()._object(who, body, ref, owner)
