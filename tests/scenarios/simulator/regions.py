"""Two regions, a bucket each: one run that is mirrored, and that moves from one to the other and back.

One log is true, whose records are created at the run's home alone; each region's is a beginning of it. A region may
lack an object that a record names only if the true log has retired it.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, TypeVar
from unittest.mock import patch

from pulse_registry.errors import Conflict, CorruptObject, Forked, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, sealed_hash
from pulse_registry.mirror import Lanes, Mirror, Promotion, Site, followed_log
from pulse_registry.outer.log import OuterLog
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import RunStore
from pulse_schemas import TagRecord
from tests.scenarios.simulator.bucket import Bucket, Link
from tests.scenarios.simulator.collecting import GRACE_S, Collecting
from tests.scenarios.simulator.compacting import Compacting
from tests.scenarios.simulator.policy import Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.regions_truth import REGIONS, Canon, Loss, RegionTruth
from tests.scenarios.simulator.simulation import Outcome, outcome
from tests.scenarios.simulator.trainer import Trainer
from tests.scenarios.simulator.truth import RUN, Json
from tests.scenarios.simulator.weather import Weather
from tests.scenarios.simulator.worker import Worker
from tests.scenarios.simulator.world import Crash, World
from tests.support.inline import Inline

T = TypeVar("T")
_ORPHAN_S = 4 * 3600.0
"""A mirror deletes what nothing names without a record: no process may sleep so long within a step."""
_CARRIED_S = 600.0
"""For so long a lease that a mirror has carried holds at the source, at least."""


class InlineLanes(Lanes):
    """Lanes without threads."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = self.readers = self.askers = Inline()  # type: ignore[assignment]


class Regions:
    """One seed's actors, in two regions."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        """Cast the actors."""
        self.seed = seed
        self.world = world = World(seed)
        self.canon = Canon(world)
        self.buckets: dict[str, Bucket] = {}
        self._lost: set[str | None] = set()
        drawn = Weather.drawn(world.rng)
        self.weather = weather or drawn
        for region in REGIONS:
            truth = RegionTruth(world, region, self.canon)
            bucket = self.buckets[region] = Bucket(world, truth, f"sim://{region}")
            truth.get = lambda key, bucket=bucket: None if key not in bucket.objects else bucket.objects[key].data
            truth.leases = lambda region=region: self._leases(region)
            self._cast(region, "trainer", lambda process, truth=truth: self._train(process, truth))
            self._cast(region, "compactor", lambda process: Compacting(process).live())
            self._cast(region, "collector", lambda process, truth=truth: Collecting(process, truth).live())
            self._cast(region, "worker", lambda process, truth=truth: Worker(process, truth).live())
            self._cast(region, "holder", lambda process, truth=truth: self._hold(process, truth))
        for number in range(world.rng.choice((1, 1, 2))):
            self._cast("us", f"mirror-{number}", self._mirror)
        self._cast("us", "operator", self._operate)
        if seed % 3 == 2:
            world.spawn(self._intrude)

    def run(self, operations: int) -> Outcome:
        """Run so many store operations, and look at what is left."""
        return outcome(self.seed, self.world, operations, self._aftermath, self._counts)

    def _counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for truth in self.canon.truths.values():
            found.update(truth.counts)
        return found

    def _cast(self, region: str, who: str, live: Callable[[Process], None]) -> None:
        """Add an actor, who comes back after each crash, and where the run does not live, a while later."""

        def lives() -> None:
            while not self.world.over:
                if self.buckets[region].away and who != "operator":
                    with suppress(Crash):  # the end of the world
                        self.world.pause(10.0)
                    continue
                process = Process(self.buckets[region], f"{who}-{region}", self.weather)
                self.canon.truths[region].links.append(process.link)
                try:
                    with suppress(Conflict):  # of a copy, or of what has moved away
                        live(process)
                except Crash:
                    self.canon.truths[region].count("crashes")
                process.link.dead = True
                with suppress(Crash):  # the end of the world
                    self.world.pause(self.world.rng.uniform(10.0, 100.0))

        self.world.spawn(lives)

    # -- who is there ------------------------------------------------------------------------------------------------

    def _train(self, process: Process, truth: RegionTruth) -> None:
        """Train where the run lives; now and then where it does not, and nobody begins a run there."""
        if self.canon.home == truth.region or (truth.records and self.world.rng.random() < 0.1):
            Trainer(process, truth, eager=True).live()

    def _hold(self, process: Process, truth: RegionTruth) -> None:
        """Hold an old version for a while, and read it no more."""
        rng, lease = self.world.rng, process.lease(60.0)
        while True:
            self.world.pause(rng.uniform(5.0, 60.0))
            if live := sorted(truth.live())[:-1]:
                lease.hold(rng.choice(live[-12:]))
                for _ in range(rng.randrange(5, 40)):
                    self.world.pause(10.0)
                    lease.renew()

    def _mirror(self, process: Process) -> None:
        """Copy from wherever the run lives to the other region, until it moves, or a crash."""
        world, rng = self.world, self.world.rng
        world.pause(rng.uniform(0.0, 30.0))
        home = self.canon.home
        copied = self._other(home)
        links = self._links(process, home, copied)
        policy = RetentionPolicy(keep_last=1, keep_seconds=0.0, grace_seconds=GRACE_S, orphan_seconds=_ORPHAN_S)
        mirror = self._made(process, *links, policy=policy)
        world.spawn(lambda: self._tend(mirror, links, home, copied))
        try:
            while not mirror_left(mirror):
                with suppress(StoreUnavailable, NotFound, CorruptObject):
                    mirror.look()
                world.pause(rng.uniform(0.5, 20.0))
        finally:
            for link in links:
                link.dead = True  # nor does its other thread go on

    def _tend(self, mirror: Mirror, links: list[Link], home: str, copied: str) -> None:
        """Do beside a mirror's looks, in its other thread, what these do not wait for."""
        world, rng = self.world, self.world.rng
        try:
            while True:
                begun, tidy = world.now, rng.random() < 0.5
                if mirror.begun:
                    with suppress(StoreUnavailable, NotFound, CorruptObject):
                        mirror.tend(tidy=tidy)
                        if tidy:
                            self._note_carried(home, copied, begun)
                world.pause(rng.uniform(0.5, 20.0))
                if any(link.dead for link in links):
                    return
        except Crash:
            for link in links:
                link.dead = True

    def _operate(self, process: Process) -> None:
        """Move the run to the other region, now and then, or go on there without the one that is lost."""
        world, canon = self.world, self.canon
        if canon.loss is None:
            world.pause(world.rng.uniform(40.0, 300.0))
            home = canon.home
            target = self._other(home)
            if not canon.truths[home].versions or canon.truths[target].counts.get("intruded"):
                return
            if canon.truths[target].versions and world.rng.random() < 0.4:
                canon.loss = Loss(home)
            else:
                self._insist(lambda: self._promotion(process, target, home).planned())
                canon.truths[target].count("promoted")
        if canon.loss is not None:
            self._lose(process, canon.loss)

    def _lose(self, process: Process, loss: Loss) -> None:
        """Go on at the copy, and take the lost region back, from wherever an operator who died left it."""
        world, canon, bucket, truth = self.world, self.canon, self.buckets[loss.region], self.canon.truths[loss.region]
        other = self._other(loss.region)
        if loss.move is None and not bucket.away:
            bucket.close()
            self.buckets[other].life += 1  # what a mirror had under way is lost, too
            if canon.truths[other].torn():  # the copy is as far behind as that: it is no home
                canon.loss, bucket.away = None, False
                return
        if not loss.fenced:
            home = self._insist(lambda: self._promotion(process, other, loss.region).lost()).home
            world.pause(world.rng.uniform(5.0, 200.0))
            fork = canon.fork(loss.region)
            given_up = self._insist(lambda: self._promotion(process, other, loss.region, cares=True).fence(home))
            self._see_given_up(truth, fork, {entry.version for entry in given_up})
            loss.fenced, bucket.away = True, False
            canon.truths[other].count("lost")
            world.pause(world.rng.uniform(20.0, 200.0))  # whoever worked there comes back, and finds that it has moved
        if canon.fork(loss.region) < truth.records:
            canon.truths[other].count("forks")
            bucket.close()
            world.pause(200.0)  # for those who were in the midst of something to notice
            bucket.wipe()
            truth.wiped()
            bucket.away = False
        self._lost.add(loss.move)
        canon.loss = None

    def _see_given_up(self, truth: RegionTruth, fork: int, told: set[int]) -> None:
        """See that those versions, and no others, are named that the lost region has beyond the fork."""
        beyond = {version.number: version for version in truth.versions if version.record["seq"] >= fork}
        kept = {number for number, version in beyond.items() if version.retired_at is None}
        if not kept <= told <= beyond.keys():
            self.world.fail(f"versions {sorted(told)} are said to be given up, and those beyond the fork are {kept}")

    def _insist(self, call: Callable[[], T]) -> T:
        """Call until the stores let it be done."""
        while True:
            with suppress(StoreUnavailable, NotFound, CorruptObject):
                return call()
            self.world.pause(self.world.rng.uniform(1.0, 30.0))

    def _intrude(self) -> None:
        """Write a record into the copy's log, as somebody does whom no mark keeps from it."""
        with suppress(Crash):
            self.world.pause(self.world.rng.uniform(100.0, 500.0))
            if self.canon.loss is not None:
                return
            region = self._other(self.canon.home)
            bucket, truth = self.buckets[region], self.canon.truths[region]
            if not truth.versions or not bucket.objects.get(f"{RUN}/{keys.MIRROR}"):
                return
            last = bucket.objects[f"{RUN}/{keys.record_key(truth.records - 1)}"].data
            record = TagRecord(
                run=RUN, seq=truth.records, epoch=truth.epoch, write_id="f" * 32, previous=sealed_hash(last),
                created_at="2026-01-02T00:00:00.000Z", name="mine", version=truth.versions[-1].number,
            )  # fmt: skip
            bucket.plant(f"{RUN}/{keys.record_key(record.seq)}", record.seal())
            truth.count("intruded")

    # -- what they work with -----------------------------------------------------------------------------------------

    def _other(self, region: str) -> str:
        return REGIONS[1 - REGIONS.index(region)]

    def _promotion(self, process: Process, target: str, home: str, *, cares: bool = False) -> Promotion:
        links = self._links(process, home, target, cares=cares)
        source, destination = (self._site(process, link) for link in links)
        return Promotion(destination, source, lambda: self._made(process, *links), process.surroundings.new_id)

    def _links(self, process: Process, *regions: str, cares: bool = False) -> list[Link]:
        made = [
            Link(self.buckets[region], process.link.who, process.weather, self.buckets[region].url, cares=cares)
            for region in regions
        ]
        for region, link in zip(regions, made, strict=True):
            self.canon.truths[region].links.append(link)
        return made

    def _made(self, process: Process, source: Link, copied: Link, **options: Any) -> Mirror:
        around = process.surroundings
        return Mirror(
            source, copied, RUN, lanes=InlineLanes(), retrying=around.retrying, monotonic=around.monotonic, **options
        )

    def _site(self, process: Process, link: Link) -> Site:
        around = process.surroundings
        store = RunStore(around.retrying(link), RUN)
        reader = LogReader(store, RUN)
        writer = LogWriter(store, RUN, reader, around.clock, around.new_id, link.who)
        return Site(link.url, store, reader, writer, OuterLog(store, RUN, clock=around.clock, new_id=around.new_id))

    # -- leases ------------------------------------------------------------------------------------------------------

    def _own_leases(self, region: str) -> Iterator[tuple[str, Json, float]]:
        for key, stored in self.buckets[region].objects.items():
            if key.startswith(f"{RUN}/leases/"):
                yield key, json.loads(stored.data)["body"], stored.modified

    def _note_carried(self, home: str, copied: str, begun: float) -> None:
        """Take note of what a mirror must have carried; what the store did not take from it is lost without a word."""
        weather = self.weather
        calm = not (weather.fail or weather.lose or weather.straggle)
        there = {(lease["reader"], lease["version"]) for _, lease, _ in self._own_leases(home)}
        for key, lease, written in self._own_leases(copied):
            if written >= begun - 1.0 or "mirror." in key or begun >= written + lease["seconds"] - 5.0:
                continue
            if calm or any(name.endswith(lease["reader"]) and of == lease["version"] for name, of in there):
                self.canon.truths[home].carried[key] = lease, self.world.now

    def _leases(self, region: str) -> Iterator[tuple[Json, float]]:
        """Yield what a collector must keep: readers' leases here, and those there that a mirror has carried."""
        for key, lease, written in self._own_leases(region):
            if "mirror." not in key:
                yield lease, written
        there = {key: (lease, written) for key, lease, written in self._own_leases(self._other(region))}
        for key, (lease, since) in self.canon.truths[region].carried.items():
            now = there.get(key)
            alive = now is not None and now[0]["version"] == lease["version"]
            if now is not None and alive and self.world.now < min(now[1] + lease["seconds"], since + _CARRIED_S):
                yield {**lease, "seconds": 1e9}, since

    # -- what is left ------------------------------------------------------------------------------------------------

    def _aftermath(self) -> None:
        """See that both regions have the same, once all that was on its way has arrived; and every version, whole."""
        self.world.pause(2 * 3600.0)
        fine = Weather()
        if (loss := self.canon.loss) is not None:  # an operator finishes what was begun
            self._lose(Process(self.buckets[self._other(loss.region)], "afterwards", fine), loss)
        home = self.canon.home
        process = Process(self.buckets[home], "afterwards", fine)
        copied = self._other(home)
        source, copy = (
            Link(self.buckets[region], "afterwards", fine, self.buckets[region].url) for region in (home, copied)
        )
        regions = [home]
        if not self.canon.truths[copied].counts.get("intruded"):
            moves = [json.loads(data)["body"] for data in self.canon.log if b'"kind":"move"' in data]
            if moves and moves[-1]["write_id"] not in self._lost:  # one may have been left half done
                self._promotion(process, home, copied).planned()
            with self._made(process, source, copy) as mirror:
                mirror.catch_up()
            regions.append(copied)
        else:
            with suppress(Forked, Conflict):
                self._made(process, source, copy).catch_up()
        for region in regions:
            self._restore(region)

    def _restore(self, region: str) -> None:
        truth = self.canon.truths[region]
        registry = Process(self.buckets[region], "afterwards", Weather()).registry()
        live = {version.version for version in registry.versions()}
        if live != self.canon.truths[self.canon.home].live():
            self.world.fail(f"{region} says that versions {sorted(live)} are live")
        for number in sorted(live):
            pushed = truth.state(number)
            weights = Policy(pushed.kind)
            registry.pull(number, into=weights.tensors, replace=True)
            if weights.bits != pushed.bits:
                self.world.fail(f"version {number} can't be restored in {region}")


def mirror_left(mirror: Mirror) -> bool:
    """Tell whether the run has left a mirror's source; not, where the source can't tell."""
    try:
        return mirror.left is not None
    except (StoreUnavailable, CorruptObject):
        return False


def run_regions(seed: int, operations: int, weather: Weather | None = None) -> Outcome:
    """Run one seed, in the weather that it draws or in another one, without the library's warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with ExitStack() as stack:
            regions = Regions(seed, weather)
            stack.enter_context(patch.object(followed_log, "ThreadPoolExecutor", lambda *_: Inline()))
            stack.enter_context(patch.object(secrets, "token_hex", lambda n: regions.world.rng.randbytes(n).hex()))
            return regions.run(operations)
    finally:
        logging.disable(before)
