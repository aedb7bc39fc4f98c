"""A run's feed: one look for many, memory that grows old honestly, waiters that are woken, none lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulse_registry.errors import AlreadyExists, CorruptObject, NotFound, StoreUnavailable
from pulse_registry.log import AppendGuard, LogReader, RunState, Snapshotter
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, PrefixStore, Store
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.testing import CountingStore
from pulse_server.runs import log_feed as feed_module
from pulse_server.runs.feed import RunFeed
from pulse_server.runs.feeds import Feeds
from pulse_server.runs.log_feed import Pace
from pulse_server.scheduling.looks import Looks
from pulse_server.scheduling.turns import Turns
from tests.support.apps import fill, run_of, store_objects, store_record
from tests.support.clock import Clock
from tests.support.records import RUN, DictStore, Script
from tests.support.waiting import HANG_S, NEVER_S

PACE = Pace(0.01, 60.0)


class SwitchStore(WrapperStore):
    """A store that can be made to fail, or to keep its callers waiting: before it looks, or with what it has seen."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.down = False
        self.gate = threading.Event()
        self.answered = threading.Event()
        for event in (self.gate, self.answered):
            event.set()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self.gate.wait(HANG_S)
        if self.down:
            raise StoreUnavailable("s3://secret: no route to host")
        try:
            return super().get(key, byte_range, max_bytes=max_bytes)
        finally:
            self.answered.wait(HANG_S)


class World:
    """One run in a store, and what follows it."""

    def __init__(self, versions: int = 2) -> None:
        self.base = DictStore()
        self.script = fill(self.base, run_of(versions))
        self.counting = CountingStore(self.base)
        self.store = SwitchStore(self.counting)
        self.clock = Clock(1000.0)
        self.pool, self.looks = ThreadPoolExecutor(4), Looks(4)
        self.made: list[str] = []

    def feed(self, run: str = RUN, pace: Pace = PACE, looks: Looks | None = None) -> RunFeed:
        self.made.append(run)
        store = PrefixStore(self.store, run)
        reader = LogReader(store, run)
        append_guard = AppendGuard(store, run, reader, Snapshotter(store, reader))
        return RunFeed(reader, append_guard, self.pool, pace, looks=looks or self.looks, clock=self.clock)

    def feeds(self, **options: Any) -> Feeds[RunFeed]:
        return Feeds(self.feed, **{"max_feeds": 10, "missing_s": 5.0, "clock": self.clock, **options})

    def push(self) -> None:
        store_record(self.base, self.script.commit(layout=self.script.state.versions[0].layout).records[-1])


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.store.gate.set()
    world.store.answered.set()
    world.looks.close()
    world.pool.shutdown()


def has_version(number: int) -> Callable[[RunState], bool]:
    return lambda state: len(state.versions) > number


async def never() -> Any:
    """What a connection says that stays open."""
    return await asyncio.Event().wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.001)


def test_those_who_wait_are_all_woken_by_one_push(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        feed.follow()
        waits = [asyncio.create_task(feed.wait(has_version(2), HANG_S, never)) for _ in range(500)]
        await until(lambda: feed.waiting == 500)
        world.push()
        assert await asyncio.gather(*waits) == [True] * 500
        assert feed.waiting == 0
        await feed.stop()

    asyncio.run(go())


def test_waiters_that_come_while_versions_are_pushed_lose_none(world: World) -> None:
    async def follow(feed: RunFeed, until_version: int) -> list[int]:
        seen = [1]
        while seen[-1] < until_version:
            assert await feed.wait(has_version(seen[-1] + 1), HANG_S, never)
            seen.append(len(feed.state.versions) - 1)
        return seen

    async def go() -> None:
        feed = world.feed(pace=Pace(0.001, 60))
        await feed.refresh()
        feed.follow()
        followers = [asyncio.create_task(follow(feed, 21)) for _ in range(50)]
        for _ in range(20):
            await asyncio.to_thread(world.push)
        for seen in await asyncio.gather(*followers):
            assert seen == sorted(set(seen))
            assert seen[-1] == 21
        await feed.stop()

    asyncio.run(go())


def test_a_wait_ends_when_its_time_is_over(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        assert not await feed.wait(has_version(2), 0.02, never)
        assert not await feed.wait(has_version(2), 0.0)
        assert await feed.wait(has_version(1), 0.0)
        assert feed.waiting == 0
        await feed.stop()

    asyncio.run(go())


def test_a_client_that_goes_is_no_waiter_any_more(world: World) -> None:
    async def go() -> None:
        feed, gone = world.feed(), asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        await feed.refresh()
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, receive))
        await until(lambda: feed.waiting == 1)
        gone.set()
        assert not await wait
        assert feed.waiting == 0
        await feed.stop()

    asyncio.run(go())


def test_a_cancelled_wait_leaves_nothing_behind(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, never))
        await until(lambda: feed.waiting == 1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert feed.waiting == 0
        await feed.stop()
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()

    asyncio.run(go())


def test_a_release_sends_all_away_at_once_and_those_who_come_later(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        waits = [asyncio.create_task(feed.wait(has_version(2), HANG_S, never)) for _ in range(100)]
        await until(lambda: feed.waiting == 100)
        feed.release()
        assert await asyncio.gather(*waits) == [False] * 100
        assert not await feed.wait(has_version(2), HANG_S)
        await feed.stop()

    asyncio.run(go())


def test_looks_that_are_asked_for_at_the_same_time_are_one(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        world.counting.reset()
        world.store.gate.clear()
        looks = [asyncio.create_task(feed.refresh()) for _ in range(100)]
        await asyncio.sleep(0)
        world.push()
        late = [asyncio.create_task(feed.refresh()) for _ in range(100)]
        await asyncio.sleep(0)
        world.store.gate.set()
        await asyncio.gather(*looks, *late)
        assert len(feed.state.versions) == 3
        # One look finds the new record and that there is none after it; one more may follow for those who came late.
        assert world.counting.calls["get"] <= 3
        await feed.stop()

    asyncio.run(go())


def test_a_look_sees_what_was_written_before_it_was_asked_for(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        calls = world.counting.calls["get"]
        world.store.answered.clear()
        early = asyncio.create_task(feed.refresh())
        await until(lambda: world.counting.calls["get"] > calls)
        world.push()
        late = asyncio.create_task(feed.refresh())
        await asyncio.sleep(0)
        world.store.answered.set()
        await late
        assert len(feed.state.versions) == 3
        await early
        await feed.stop()

    asyncio.run(go())


def test_memory_is_kept_and_grows_old_while_the_store_is_down(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        assert feed.age_s == 0.0
        world.store.down = True
        world.clock.now += 7.5
        with pytest.raises(StoreUnavailable):
            await feed.refresh()
        assert feed.age_s == 7.5
        assert len(feed.state.versions) == 2
        world.store.down = False
        world.push()
        await feed.refresh()
        assert (feed.age_s, len(feed.state.versions)) == (0.0, 3)
        await feed.stop()

    asyncio.run(go())


def test_a_feed_goes_on_by_itself_once_the_store_is_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        feed.follow()
        world.store.down = True
        await until(lambda: "grow stale" in caplog.text)
        world.push()
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, never))
        world.store.down = False
        assert await wait
        await feed.stop()

    asyncio.run(go())
    assert caplog.text.count("grow stale") == 1


def test_a_store_that_hangs_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        world.store.gate.clear()
        monkeypatch.setattr(feed_module, "LOOK_TIMEOUT_S", 0.02)  # from here on: a real read may take longer
        with pytest.raises(StoreUnavailable, match="has not answered"):
            await feed.refresh()
        world.store.gate.set()
        await feed.stop()

    asyncio.run(go())


def test_a_damaged_record_leaves_the_state_before_it(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        world.push()
        world.base.put(f"{RUN}/log/000000000004.json", b"junk")
        with pytest.raises(CorruptObject, match="000000000004"):
            await feed.refresh()
        assert len(feed.state.versions) == 3
        await feed.stop()

    asyncio.run(go())


def test_a_feed_stops_looking_when_nobody_has_asked_for_a_while(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        idle: list[RunFeed] = []
        feed.on_idle = idle.append
        await feed.refresh()
        feed.follow()
        await until(lambda: world.counting.calls["get"] > 10)
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, never))
        await until(lambda: feed.waiting == 1)
        world.clock.now += 61
        calls = world.counting.calls["get"]
        await until(lambda: world.counting.calls["get"] > calls + 5)
        assert feed.followed, "somebody waits"
        world.push()
        assert await wait
        await until(lambda: not feed.followed)
        assert idle == [feed]
        calls = world.counting.calls["get"]
        await feed.stop()
        assert world.counting.calls["get"] == calls

    asyncio.run(go())


class Rests(Looks):
    """Keeps the pauses of feeds that rest, and makes none of them, or none that ends by itself."""

    def __init__(self, seconds: float) -> None:
        super().__init__(4)
        self.pauses: list[float] = []
        self._seconds = seconds

    def after(self, seconds: float, one: Any) -> None:
        if one.resting:
            self.pauses.append(seconds)
            seconds = self._seconds
        super().after(seconds, one)


def test_a_feed_that_nobody_asks_for_is_looked_at_less_and_less(world: World) -> None:
    async def go() -> None:
        rests = world.looks = Rests(0)
        feed = world.feed(pace=Pace(0.01, NEVER_S))
        await feed.refresh()
        feed.follow()
        await until(lambda: len(rests.pauses) >= 14)
        assert rests.pauses[:14] == [min(20.0, 0.01 * 2**number) for number in range(1, 15)]
        rests.pauses.clear()
        feed.follow()
        await until(lambda: 0.02 in rests.pauses)  # it begins anew
        rests.pauses.clear()
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, never))
        await until(lambda: feed.waiting == 1)
        rests.pauses.clear()
        calls = world.counting.calls["get"]
        await until(lambda: world.counting.calls["get"] > calls + 5)
        assert len(rests.pauses) <= 1
        wait.cancel()
        await feed.stop()

    asyncio.run(go())


def test_a_feed_that_rests_is_looked_at_when_somebody_asks_and_again_and_again_when_somebody_waits(
    world: World,
) -> None:
    async def go() -> None:
        world.looks = Rests(NEVER_S)
        feeds = world.feeds()
        feed = await feeds.open(RUN)
        await until(lambda: feed.resting)
        world.push()
        assert feeds.live(RUN) is None
        assert await feeds.open(RUN) is feed
        assert len(feed.state.versions) == 3
        assert feeds.live(RUN) is feed
        await until(lambda: feed.resting)
        wait = asyncio.create_task(feed.wait(has_version(3), HANG_S, never))
        await until(lambda: feed.waiting == 1)
        world.push()
        assert await wait
        await until(lambda: feed.resting)
        stream = asyncio.create_task(feed.wait_for_edition(0, 3, HANG_S))
        await asyncio.sleep(0)
        world.push()
        await stream
        assert len(feed.state.versions) == 5
        await feeds.stop()

    asyncio.run(go())


def test_looks_at_many_runs_leave_threads_for_those_who_ask() -> None:
    held = threading.Event()

    class Holding(DictStore):
        """Answers nothing of the runs that are followed, once it is told to."""

        holds, asked = False, 0

        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if self.holds and key.startswith("followed-"):
                self.asked += 1
                held.wait(HANG_S)
            return super().get(key, byte_range, max_bytes=max_bytes)

    async def go(pool: ThreadPoolExecutor) -> None:
        base, turns, looks = Holding(), Turns(4, 2), Looks(2)

        def make(run: str) -> RunFeed:
            store = PrefixStore(base, run)
            reader = LogReader(store, run)
            append_guard = AppendGuard(store, run, reader, Snapshotter(store, reader))
            return RunFeed(reader, append_guard, pool, PACE, looks=looks, turns=turns)

        script = fill(base, run_of(2, "asked"))
        feeds = Feeds(make, max_feeds=100, missing_s=5.0)
        waits = []
        for number in range(10):
            fill(base, run_of(1, f"followed-{number}"))
            feed = await feeds.open(f"followed-{number}")
            waits.append(asyncio.create_task(feed.wait(has_version(9), HANG_S, never)))
        base.holds = True
        await until(lambda: base.asked == 2)
        feed = await feeds.open("asked")
        record = script.make_commit(layout=script.state.versions[0].layout)
        store_objects(base, record)
        assert await feed.append(record.seal()) == record
        held.set()
        feeds.release()
        await asyncio.gather(*waits)
        await feeds.stop()

    with ThreadPoolExecutor(4) as pool:
        asyncio.run(go(pool))


def test_what_is_announced_in_a_short_time_is_one_edition_and_wakes_nobody_else(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        woken: list[bool] = []
        version = asyncio.create_task(feed.wait(lambda state: bool(woken.append(True)), HANG_S, never))
        streams = [asyncio.create_task(feed.wait_for_edition(0, 1, HANG_S)) for _ in range(3)]
        await until(lambda: feed.waiting == 1)
        for _ in range(100):
            feed.announce(0.01)
        await asyncio.gather(*streams)
        assert (feed.edition, len(woken), version.done()) == (1, 1, False)
        await feed.wait_for_edition(0, 1, HANG_S)  # it has passed: nothing to wait for
        feed.announce(0.01)
        await feed.wait_for_edition(1, 1, HANG_S)
        assert feed.edition == 2
        await feed.stop()
        assert not await version

    asyncio.run(go())


class Noted(Looks):
    """Keeps when looks were asked for, and makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def after(self, seconds: float, one: Any) -> None:
        self.pauses.append(seconds)


def test_a_look_that_finds_nothing_new_for_those_who_wait_costs_the_event_loop_nothing(world: World) -> None:
    async def go() -> None:
        feed = world.feed(looks=(noted := Noted()))
        await feed.refresh()
        feed.follow()
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, never))
        await until(lambda: feed.waiting == 1)
        assert [await asyncio.to_thread(feed.look) for _ in range(3)] == [PACE.poll_s] * 3
        assert noted.pauses == [PACE.poll_s]
        world.push()
        assert await asyncio.to_thread(feed.look) is None
        assert await wait
        assert noted.pauses == [PACE.poll_s] * 2
        await feed.stop()
        assert await asyncio.to_thread(feed.look) is None

    asyncio.run(go())


def test_a_run_of_which_no_news_comes_is_looked_at_less_often_until_some_come(world: World) -> None:
    async def go() -> None:
        feed = world.feed(pace=Pace(0.25, NEVER_S), looks=Noted())
        await feed.refresh()
        feed.follow()
        wait = asyncio.create_task(feed.wait(has_version(3), HANG_S, never))
        await until(lambda: feed.waiting == 1)
        pauses = []
        for seconds in (0.0, 8.0, 4.0, 3.0, 17.0):
            world.clock.now += seconds
            pauses.append(await asyncio.to_thread(feed.look))
        assert pauses == [0.25, 0.25, 12 / 32, 15 / 32, 0.5]
        world.push()
        assert await asyncio.to_thread(feed.look) is None
        await until(lambda: len(feed.state.versions) == 3 and feed.waiting == 1)
        assert await asyncio.to_thread(feed.look) == 0.25
        wait.cancel()
        await feed.stop()

    asyncio.run(go())


@pytest.mark.parametrize(("poll_s", "longest_s"), [(0.01, 0.03), (0.25, 0.5), (0.5, 0.5), (1.0, 1.0), (5.0, 5.0)])
def test_no_pause_makes_what_is_known_older_than_was_promised(poll_s: float, longest_s: float) -> None:
    pace = Pace(poll_s, NEVER_S)
    assert (pace.pause_s(0.0), pace.pause_s(1e9)) == (poll_s, pytest.approx(longest_s))


def test_an_answer_from_memory_is_at_most_a_second_old_however_late_looks_are(world: World) -> None:
    async def go() -> None:
        world.looks.close()
        world.looks = Noted()
        feeds = world.feeds()
        feed = await feeds.open(RUN)
        world.push()
        world.clock.now += 0.9
        assert feeds.live(RUN) is feed
        assert len((await feeds.open(RUN)).state.versions) == 2
        world.clock.now += 0.2
        assert feeds.live(RUN) is None
        assert len((await feeds.open(RUN)).state.versions) == 3
        assert (feeds.live(RUN), feed.age_s) == (feed, 0.0)
        await feeds.stop()

    asyncio.run(go())


def test_while_the_store_fails_or_does_not_answer_memory_is_answered_from_at_once(world: World) -> None:
    async def go() -> None:
        world.looks.close()
        world.looks = Noted()
        feeds = world.feeds()
        feed = await feeds.open(RUN)
        world.clock.now += 5.0
        world.store.gate.clear()
        calls = world.counting.calls["get"]
        look = asyncio.create_task(asyncio.to_thread(feed.look))
        assert feeds.live(RUN) is None  # it may answer yet

        def slow() -> bool:
            world.clock.now += 0.5
            return feeds.live(RUN) is feed

        await until(slow)
        world.store.down = True
        world.store.gate.set()
        assert await look is None
        await until(lambda: feeds.live(RUN) is feed)
        assert (feed.age_s > 5.0, world.counting.calls["get"]) == (True, calls)
        world.store.down = False
        assert await asyncio.to_thread(feed.look) is None
        await until(lambda: feed.age_s == 0.0)
        await feeds.stop()

    asyncio.run(go())


def test_a_look_that_somebody_asked_for_and_an_append_put_off_the_next_one(world: World) -> None:
    async def go() -> None:
        feed = world.feed(looks=(noted := Noted()))
        await feed.refresh()
        assert noted.pauses == []
        feed.follow()
        await feed.refresh()
        assert noted.pauses == [PACE.poll_s] * 2
        record = world.script.make_commit(layout=world.script.state.versions[0].layout)
        store_objects(world.base, record)
        await feed.append(record.seal())
        assert noted.pauses == [PACE.poll_s] * 3
        await feed.stop()

    asyncio.run(go())


def test_an_append_wakes_those_who_wait_without_another_look(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        wait = asyncio.create_task(feed.wait(has_version(2), HANG_S, never))
        record = world.script.make_commit(layout=world.script.state.versions[0].layout)
        store_objects(world.base, record)
        assert await feed.append(record.seal()) == record
        assert await wait
        with pytest.raises(AlreadyExists):
            await feed.append(record.model_copy(update={"step": 77}).seal())
        await feed.stop()

    asyncio.run(go())


def test_an_append_goes_on_to_its_end_when_its_caller_is_cancelled(world: World) -> None:
    async def go() -> None:
        feed = world.feed()
        await feed.refresh()
        record = world.script.make_commit(layout=world.script.state.versions[0].layout)
        store_objects(world.base, record)
        world.store.gate.clear()
        append = asyncio.create_task(feed.append(record.seal()))
        await asyncio.sleep(0)
        append.cancel()
        with pytest.raises(asyncio.CancelledError):
            await append
        assert feed.in_use
        stop = asyncio.create_task(feed.stop())
        world.store.gate.set()
        await stop
        assert world.base.get(f"{RUN}/log/000000000003.json") == record.seal()

    asyncio.run(go())


def test_a_run_that_is_not_there_is_looked_for_once_in_a_while_and_not_kept(world: World) -> None:
    async def go() -> None:
        feeds = world.feeds()

        async def miss() -> None:
            with pytest.raises(NotFound, match="no run 'ghost'"):
                await feeds.open("ghost")

        await asyncio.gather(*(miss() for _ in range(50)))
        calls = world.counting.calls["get"]
        for _ in range(50):
            await miss()
        assert (world.counting.calls["get"], len(feeds), world.made) == (calls, 0, ["ghost"])
        fill(world.base, Script("ghost").epoch())
        world.clock.now += 6
        assert (await feeds.open("ghost")).exists
        await feeds.stop()

    asyncio.run(go())


def test_who_does_not_rely_on_memory_finds_a_run_that_began_elsewhere_a_moment_ago(world: World) -> None:
    async def go() -> None:
        feeds = world.feeds()

        async def miss() -> None:
            with pytest.raises(NotFound, match="no run 'ghost'"):
                await feeds.open("ghost", remember=False)

        await asyncio.gather(*(miss() for _ in range(50)))
        assert world.made == ["ghost"]  # one feed, and so few looks
        few = world.counting.calls["get"]
        await miss()
        assert few <= 2 * (world.counting.calls["get"] - few)
        fill(world.base, Script("ghost").epoch())
        with pytest.raises(NotFound):
            await feeds.open("ghost")
        assert (await feeds.open("ghost", remember=False)).exists
        assert (await feeds.open("ghost")).exists
        await feeds.stop()

    asyncio.run(go())


def test_a_run_whose_first_record_comes_through_here_is_there_at_once(world: World) -> None:
    async def go() -> None:
        feeds = world.feeds()
        with pytest.raises(NotFound):
            await feeds.open("fresh")
        with feeds.hold("fresh") as feed:
            await feed.append(Script("fresh").epoch().records[0].seal())
        assert (await feeds.open("fresh")).state.epoch == 1
        await feeds.stop()

    asyncio.run(go())


def test_all_who_append_to_a_new_run_share_one_feed(world: World) -> None:
    async def go() -> None:
        feeds = world.feeds()
        with feeds.hold("fresh") as feed:
            with feeds.hold("fresh") as other:
                assert other is feed
            with pytest.raises(NotFound):
                await feeds.open("fresh")
            with feeds.hold("fresh") as other:
                assert other is feed
        assert len(feeds) == 0
        await feeds.stop()

    asyncio.run(go())


def test_feeds_are_bounded_but_those_in_use_are_kept(world: World) -> None:
    names = [f"run-{number}" for number in range(12)]
    for name in names:
        fill(world.base, run_of(1, name))

    async def go() -> None:
        feeds = world.feeds(max_feeds=4)
        first = await feeds.open(names[0])
        wait = asyncio.create_task(first.wait(has_version(1), HANG_S, never))
        await until(lambda: first.waiting == 1)
        opened = [await feeds.open(name) for name in names[1:]]
        assert len(feeds) == 4
        assert feeds.live(names[0]) is first
        await until(lambda: not any(feed.followed for feed in opened[:-3]))
        with feeds.hold(names[1]) as held:
            await asyncio.gather(*(feeds.open(name) for name in names))
            assert (await feeds.open(names[1])) is held
        wait.cancel()
        await feeds.stop()

    asyncio.run(go())


def test_runs_that_are_not_there_take_the_place_of_none_that_is(world: World) -> None:
    names = [f"run-{number}" for number in range(4)]
    for name in names:
        fill(world.base, run_of(1, name))

    async def go() -> None:
        feeds = world.feeds(max_feeds=4)
        opened = [await feeds.open(name) for name in names]
        missing = [asyncio.create_task(feeds.open(f"none-{number}")) for number in range(50)]
        for error in await asyncio.gather(*missing, return_exceptions=True):
            assert isinstance(error, NotFound)
        assert {*feeds} == {*opened}
        await feeds.stop()

    asyncio.run(go())


def test_a_run_in_memory_is_answered_from_while_the_store_is_down_and_another_is_not(world: World) -> None:
    async def go() -> None:
        feeds = world.feeds()
        feed = await feeds.open(RUN)
        world.store.down = True
        feed.drop()
        await until(lambda: not feed.followed)
        world.clock.now += 30
        again = await feeds.open(RUN)
        assert again is feed
        assert again.age_s >= 30
        with pytest.raises(StoreUnavailable):
            await feeds.open("other")
        assert len(feeds) == 1
        await feeds.stop()

    asyncio.run(go())


def test_a_run_that_is_only_listed_is_not_followed(world: World) -> None:
    async def go() -> None:
        feeds = world.feeds()
        feed = await feeds.open(RUN, follow=False)
        assert not feed.followed
        calls = world.counting.calls["get"]
        await feeds.open(RUN, follow=False)
        assert world.counting.calls["get"] == calls
        world.push()
        world.clock.now += 6
        assert len((await feeds.open(RUN, follow=False)).state.versions) == 3
        await feeds.stop()

    asyncio.run(go())
