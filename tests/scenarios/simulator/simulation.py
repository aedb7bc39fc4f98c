"""A simulation: actors around one bucket, from one seed; and what must be true when all of them are gone."""

from __future__ import annotations

import functools
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from pulse_kernels import get_backend
from pulse_registry.errors import PulseError
from pulse_registry.pull.destination import HostDestination, Source
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.pull.route import Leg
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from pulse_schemas import KeyframeRef, PatchRef
from tests.scenarios.simulator.aftermath import Aftermath
from tests.scenarios.simulator.bucket import Bucket
from tests.scenarios.simulator.collecting import GRACE_S, Collecting
from tests.scenarios.simulator.compacting import Compacting
from tests.scenarios.simulator.job import Job
from tests.scenarios.simulator.outsider import Outsider
from tests.scenarios.simulator.policy import Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.rounds import Disk, Rounds
from tests.scenarios.simulator.rounds_aftermath import RoundsAftermath
from tests.scenarios.simulator.rounds_truth import RoundsTruth
from tests.scenarios.simulator.trainer import Trainer
from tests.scenarios.simulator.truth import RUN, Json, Truth
from tests.scenarios.simulator.weather import Weather
from tests.scenarios.simulator.worker import Worker
from tests.scenarios.simulator.world import Crash, Violation, World
from tests.support.groups import SMALL_GROUP, small_groups
from tests.support.inline import Inline
from tests.support.parts import small_parts
from tests.support.records import DictStore

_CHECKED_COMMITS = 8
"""The patch of every so manieth commit is decoded as it lands; workers decode nearly all of them anyway."""

MOST_DRAWN = 9
"""Jobs of up to so many ranks are now of more, now of fewer; larger ones always are of as many."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation came to.

    Attributes:
        operations: store operations.
        seconds: of virtual time.
        trace: hash of all that happened.
        counts: records by kind, and other things that happened.
        violation: what was not true; None if all was.
        died: whether it is an error that an actor should not have met.
        tail: what happened last.
    """

    seed: int
    operations: int
    seconds: float
    trace: str
    counts: dict[str, int]
    violation: str | None = None
    died: bool = False
    tail: tuple[str, ...] = ()


def outcome(
    seed: int, world: World, operations: int, aftermath: Callable[[], None], counts: Callable[[], dict[str, int]]
) -> Outcome:
    """Run a world for so many store operations, look at what is left, and return what it came to."""
    violation, died = None, False
    try:
        world.run(operations)
        world.end_all()
        world.spawn(aftermath)
        world.run()
    except Violation as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 the outermost edge: whatever it is, nobody expected it
        world.note(traceback.format_exc())
        violation, died = f"after {world.operations} store operations, somebody died of {error!r}", True
    world.end_all()
    return Outcome(
        seed,
        world.operations,
        world.now,
        world.trace,
        dict(sorted(counts().items())),
        violation,
        died,
        tuple(world.tail),
    )


class Simulation:
    """One seed's actors, and their bucket."""

    def __init__(self, seed: int, weather: Weather | None = None, ranks: int = 0, members: int = 0) -> None:
        """Cast the actors; trainers are jobs of up to so many ranks, or so many members of outer rounds."""
        self.seed, self._ranks, self._members = seed, ranks, members
        self.world = world = World(seed)
        self.truth = RoundsTruth(world, GRACE_S) if members else Truth(world, GRACE_S)
        self.bucket = Bucket(world, self.truth)
        drawn = Weather.drawn(world.rng).for_ranks(ranks)
        self.weather = weather or drawn
        self._geometries: dict[int, Geometry] = {}
        self._raw = _Raw(self.bucket)
        self.truth.get = self._stored
        self.truth.check = self._check_object
        self.truth.leases = self._leases
        if isinstance(self.truth, RoundsTruth):
            self._cast_members(self.truth, members)
            return
        if ranks:
            self._cast_job("job-1", ranks, eager=True)
            self._cast_job("job-2", ranks, eager=False)
        else:
            self._cast("trainer-1", lambda process: Trainer(process, self.truth, eager=True).live())
        if not ranks or world.rng.random() < 0.5:
            self._cast("trainer-2", lambda process: Trainer(process, self.truth, eager=False).live())
        for number in range(world.rng.choice((0, 1, 1, 2))):
            self._cast(f"compactor-{number}", lambda process: Compacting(process).live())
        for number in range(world.rng.choice((0, 1, 1, 1, 1, 2, 2, 2))):
            self._cast(f"collector-{number}", lambda process: Collecting(process, self.truth).live())
        for number in range(1 if ranks else 3):
            self._cast(f"worker-{number}", lambda process: Worker(process, self.truth).live())

    def run(self, operations: int) -> Outcome:
        """Run so many store operations, and look at what is left."""
        return outcome(self.seed, self.world, operations, self._aftermath, lambda: self.truth.counts)

    def _aftermath(self) -> None:
        if isinstance(self.truth, RoundsTruth):
            RoundsAftermath(self.bucket, self.truth, self._settings).live()
        else:
            Aftermath(self.bucket, self.truth, self._ranks).live()

    def _cast_members(self, truth: RoundsTruth, members: int) -> None:
        """Cast members, now and then a twin of one, and two workers."""
        rng = self.world.rng
        self._settings = settings = {
            "inner_steps": rng.randrange(1, 4),
            "quorum": rng.randrange(1, 2 + members // 2),
            "patience": rng.choice((1, 3)),
            "weighting": rng.choice(("equal", "steps")),
            "gain": rng.choice((1.0, 7.0, 7.0, None)),
        }

        def member(process: Process, name: str, disk: Disk | None, waits: float) -> None:
            self.world.pause(rng.random() * waits)
            Rounds(process, truth, name, settings, disk).live()

        for number in range(members):
            name, disk, waits = f"m{number}", rng.choice((None, Disk())), rng.choice((0.0, 10.0, 2000.0))
            self._cast(name, functools.partial(member, name=name, disk=disk, waits=waits))
        if rng.random() < 0.5:
            self._cast("twin", lambda process: member(process, f"m{rng.randrange(members)}", None, 800.0))
        for number in range(2):
            self._cast(f"worker-{number}", lambda process: Worker(process, truth).live())
        if rng.random() < 0.5:
            self._cast("collector", lambda process: Collecting(process, truth).live())
        if rng.random() < 0.5:
            self._cast("outsider", lambda process: Outsider(process, truth).live())

    def _cast(self, who: str, live: Callable[[Process], None]) -> None:
        """Add an actor, who comes back after each crash."""

        def lives() -> None:
            while not self.world.over:
                process = Process(self.bucket, who, self.weather)
                try:
                    live(process)
                except Crash:
                    self.truth.count("crashes")
                process.link.dead = True
                with suppress(Crash):  # the end of the world
                    self.world.pause(self.world.rng.uniform(1.0, 60.0))

        self.world.spawn(lives)

    def _cast_job(self, who: str, ranks: int, *, eager: bool) -> None:
        """Let jobs live, one after another, each of another number of ranks."""
        world = self.world

        def lives() -> None:
            with suppress(Crash):  # the end of the world
                while True:
                    if not eager:
                        world.pause(world.rng.uniform(50.0, 1000.0))
                    size = ranks if ranks > MOST_DRAWN else world.rng.randint(2, ranks)
                    Job(self.bucket, self.truth, who, self.weather, size, eager=eager).live()
                    world.pause(world.rng.uniform(1.0, 60.0))

        world.spawn(lives)

    def _stored(self, key: str) -> bytes | None:
        found = self.bucket.objects.get(key)
        return None if found is None else found.data

    def _leases(self) -> Iterator[tuple[Json, float]]:
        for key, stored in self.bucket.objects.items():
            if key.startswith(f"{RUN}/leases/"):
                yield json.loads(stored.data)["body"], stored.modified

    # -- what was written leads where it says ----------------------------------------------------------------------

    def _check_object(self, ref: Json, attached: bool) -> None:
        """Decode an object that a record is about to name, and compare all cells with what was pushed."""
        try:
            if "target" not in ref:
                self._check_keyframe(ref)
            elif attached or ref["target"] % _CHECKED_COMMITS == 0:
                self._check_patch(ref)
        except PulseError as error:
            self.world.fail(f"{ref} can't be read: {error!r}")

    def _check_keyframe(self, ref: Json) -> None:
        state = self.truth.state(ref["version"])
        policy = Policy(state.kind)
        geometry = self._geometry(policy)
        keyframe = KeyframeCells.fetch(self._raw, geometry, KeyframeRef(**_tuples(ref)), map, None, in_memory=True)
        Weights.into(geometry, read_model(policy.tensors))
        for name, cells in zip((t.name for t in geometry.layout.tensors), keyframe.weights.arrays, strict=True):
            policy.tensors[name].reshape(-1).view(cells.dtype)[:] = cells.reshape(-1)
        keyframe.close()
        if policy.bits != state.bits:
            self.world.fail(f"the keyframe {ref['index']['key']} does not hold version {ref['version']}")

    def _check_patch(self, ref: Json) -> None:
        state = self.truth.state(ref["base"])
        policy = Policy(state.kind, state.bits)
        geometry = self._geometry(policy)
        named = PatchRef(**ref)
        [patch] = begin_patches(self._raw, RUN, geometry, [named], map)
        target = HostDestination(Weights.into(geometry, read_model(policy.tensors)), get_backend("numba"), Inline())
        source = Source(Leg("patch", named.base, named.target, named), patch)
        changes, _ = target.join([source], Inline(), Timeline())
        target.apply(changes)
        if policy.bits != self.truth.state(ref["target"]).bits:
            self.world.fail(f"the patch {ref['object']['key']} does not lead to version {ref['target']}")

    def _geometry(self, policy: Policy) -> Geometry:
        if policy.kind not in self._geometries:
            self._geometries[policy.kind] = Geometry(layout_of(read_model(policy.tensors), "keep"))
        return self._geometries[policy.kind]


class _Raw(DictStore):
    """The bucket as it is now, without turns or trouble, below the run."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self._bucket = bucket

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        return self._bucket.get(f"{RUN}/{key}", byte_range, max_bytes)


def _tuples(ref: Json) -> dict[str, Any]:
    return {**ref, "shards": tuple(ref["shards"])}


def run(seed: int, operations: int, weather: Weather | None = None, ranks: int = 0, members: int = 0) -> Outcome:
    """Run one seed, in the weather that it draws or in another one, without the library's warnings.

    With ``ranks``, trainers are jobs of up to so many, and of most seeds patches are in parts. With ``members``, so
    many trainers work in outer rounds.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR if ranks or members else logging.WARNING)
    try:
        with ExitStack() as stack:
            if ranks and seed % 4:
                stack.enter_context(small_groups(SMALL_GROUP if ranks <= MOST_DRAWN else 32 * SMALL_GROUP))
                stack.enter_context(small_parts(seed % 4))
            return Simulation(seed, weather, ranks, members).run(operations)
    finally:
        logging.disable(before)
