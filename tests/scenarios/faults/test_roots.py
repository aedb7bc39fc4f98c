"""Workers of two regions: a mirror that lags, loses objects, dies and comes back, and what the far root is asked."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

import pulse_registry
from pulse_registry.cache import CacheFolder
from pulse_registry.errors import Behind, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.format.pieces import PIECE_BYTES
from pulse_registry.log.mirror_mark import read_mark
from pulse_registry.options import Options
from pulse_registry.process.parallel import parallel_map
from pulse_registry.pull.download import MemoryShard
from pulse_registry.pull.fetch import land_whole
from pulse_registry.roots import NearestStore
from pulse_registry.store.wrappers.run import RunStore
from pulse_schemas import ObjectRef
from tests.support.clock import Clock
from tests.support.mirrors import copy, retrying
from tests.support.registries import RUN, change, quick, registry_with, small_model, without_pauses
from tests.support.roots import Region


class World:
    """A trainer at home, a mirror near the worker, and the worker, who has both on its list."""

    def __init__(self, versions: int = 3) -> None:
        self.near, self.home, self.clock = Region("near"), Region("home"), Clock()
        self.roots = NearestStore([self.near, self.home], clock=self.clock, sleep=self.clock.sleep)
        self.model, self.states = small_model(), list[dict[str, bytes]]()
        self.trainer = quick(self.home, keyframe_every=100)
        self.push(versions)
        self.worker = self.registry(self.roots)

    def registry(self, store, **options):
        return registry_with(store, Options(**options), retrying=retrying, sleep=self.clock.sleep, monotonic=self.clock)

    def push(self, versions: int = 1) -> None:
        for _ in range(versions):
            step = len(self.states)
            change(self.model, step)
            self.trainer.push(step, self.model)
            self.states.append({name: array.tobytes() for name, array in self.model.items()})

    def mirror(self) -> None:
        copy(self.home.held, self.near.held)

    def pull(self, into, version="latest"):
        result = self.worker.pull(version, into=into)
        assert {name: array.tobytes() for name, array in into.items()} == self.states[result.version]
        return result

    def asked(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        return self.near.asked(), self.home.asked()


@pytest.fixture
def world():
    with without_pauses():
        made = World()
        made.mirror()
        made.asked()
        yield made
        made.trainer.close(), made.worker.close()


def test_a_worker_of_the_near_root_fetches_nothing_from_the_far_one(world):
    into = small_model()
    assert world.pull(into).version == 2
    for _ in range(3):
        world.push()
        world.mirror()
        world.asked()
        world.pull(into)
        near, far = world.asked()
        assert (len(near) > 0, far) == (True, [])
    for _ in range(3):
        world.pull(into)
    near, far = world.asked()
    assert ([verb for verb, _ in near], far) == (["get"] * 3, [])


def test_a_version_that_the_mirror_does_not_have_yet_is_read_at_home_by_who_was_told_of_it(world):
    into = small_model()
    assert world.pull(into).version == 2
    world.push()
    assert world.pull(into).version == 2  # as far as the mirror says
    assert world.pull(into, 3).version == 3
    world.mirror()
    world.pull(into)
    world.push()
    world.mirror()
    world.asked()
    assert world.pull(into).version == 4
    assert world.asked()[1] == []
    with pytest.raises(NotFound):
        world.worker.pull(99, into=into)


def test_what_is_damaged_or_missing_at_the_mirror_is_whole_at_home_and_no_other_route_is_taken(world):
    named = sorted(key for key in world.near.held.objects if key.startswith((f"{RUN}/objects/", f"{RUN}/layouts/")))
    for key in named[::2]:
        del world.near.held.objects[key]
    world.near.damaged |= {*named[1::2]}
    into = small_model()
    for version in (0, 1, 2):
        assert world.pull(into, version).avoided == ()
    far = {key for _, key in world.asked()[1]}
    assert len(far) > 3
    assert far <= {*named}


def test_what_is_damaged_at_the_mirror_is_read_at_home_though_a_host_has_a_cache(world, tmp_path):
    world.near.damaged |= {key for key in world.near.held.objects if key.startswith(f"{RUN}/objects/")}
    into = small_model()
    with world.registry(world.roots, cache=CacheFolder(tmp_path)) as worker:
        for version in (0, 1, 2):
            assert worker.pull(version, into=into).avoided == ()
            assert {name: array.tobytes() for name, array in into.items()} == world.states[version]


def test_a_damaged_file_of_which_only_the_whole_hash_is_known_is_read_at_home_by_many_threads(world):
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"the next range"
    for region in (world.near, world.home):
        region.held.put("file", data)
    world.near.damaged.add("file")
    ref = ObjectRef(key="file", size=len(data), blake3=blake3(data).hexdigest())
    landing = MemoryShard(ref)
    with parallel_map(2, "fetch") as each:
        land_whole(world.roots, ref, landing, each)
    assert landing.read(0, len(data)) == data


def test_a_mirror_that_dies_is_left_for_the_home_and_gone_back_to(world):
    into = small_model()
    world.pull(into)
    world.near.dead = True
    for _ in range(2):
        world.push()
        world.pull(into)
    world.near.dead, world.clock.now = False, 1000.0
    world.push()
    assert world.pull(into).version == 5  # the mirror is behind, and is known to be
    world.mirror()
    world.pull(into)
    world.push()
    world.mirror()
    world.asked()
    world.pull(into)
    assert world.asked()[1] == []


def test_a_worker_starts_and_pulls_while_its_home_is_away(world):
    world.home.dead = True
    assert world.pull(small_model()).version == 2
    world.worker.close()


def test_nothing_can_be_read_while_both_are_away_and_weights_stay_as_they_are(world):
    into = small_model()
    world.pull(into)
    world.near.dead = world.home.dead = True
    with pytest.raises(StoreUnavailable):
        world.worker.pull(into=into)
    world.near.dead = False
    world.clock.now = 1000.0
    assert world.pull(into).version == 2


def test_who_pushes_with_a_list_pushes_at_home(world):
    step = len(world.states)
    with world.registry(world.roots) as trainer:
        into = small_model()
        trainer.pull(into=into)
        change(into, 77)
        assert trainer.push(step, into).version == 3
        trainer.tag("best", 3)
        assert trainer.gc().dry_run
    assert read_mark(RunStore(world.near, RUN)) is not None
    assert world.trainer.state().tags == {"best": 3}
    assert not any(key.startswith(f"{RUN}/{keys.LEASES}") for key in world.home.held.objects)


def test_the_lease_of_a_worker_lies_at_the_root_that_it_reads(world):
    with world.registry(world.roots, name="rollout-0") as worker:
        worker.pull(into=small_model())
    leases = [key for verb, key in world.near.asked() if verb == "put"]
    assert all(key.startswith(f"{RUN}/{keys.LEASES}rollout-0-") for key in leases)
    assert leases


def test_a_copy_alone_is_waited_for_and_said_to_be_behind(world):
    world.push()
    alone = world.registry(world.near)
    into = small_model()
    with pytest.raises(Behind, match=r"holds a copy of dict://home.*gave up after"):
        alone.pull(3, into=into)
    assert world.clock.now >= 30
    sleep = world.clock.sleep

    def meanwhile(seconds):
        sleep(seconds)
        world.mirror()

    world.clock.sleep = meanwhile
    late = world.registry(world.near)
    assert late.pull(3, into=into).version == 3
    with pytest.raises(NotFound):
        world.trainer.pull(99, into=into)  # of no copy
    alone.close(), late.close()


def test_open_takes_a_list_in_the_order_of_reading(tmp_path):
    home, near = tmp_path / "home", tmp_path / "near"
    model = {"w": np.arange(8, dtype=np.float32).astype(ml_dtypes.bfloat16)}
    with pulse_registry.open(home, run=RUN) as trainer:
        trainer.push(0, model)
    with pulse_registry.open([near, home], run=RUN, create=False) as worker:
        into = worker.load(framework="numpy")
        into["w"][3] = 7
        assert worker.push(1, into).version == 1
    with pulse_registry.open(f"{near},{home}", run=RUN) as worker:
        assert len(worker.versions()) == 2
        assert (str(near) in worker.url, str(home) in worker.url) == (True, True)
    with pytest.raises(NotFound, match=f"there is no run 'none' in {near} or {home}"):
        pulse_registry.open([near, home], run="none", create=False)
    assert not [*near.rglob("*.json")]
