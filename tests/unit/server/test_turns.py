"""Places are shared by turns: nobody has them all, none is lost, and a long line is in nobody's way but its own."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_server.scheduling.turns import Turns
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import LAYOUT, app_over, fill, run_of, store_objects
from tests.support.records import RUN, DictStore
from tests.support.waiting import HANG_S
from tests.unit.server.edges import NOW, bearer, client_of


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Callers:
    """Calls that each hold a place until they are told to end."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []
        self.holding: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _call(self, whose: str) -> None:
        async with self.turns.turn(whose):
            end = asyncio.Event()
            self.order.append(whose)
            self.holding.append((whose, end))
            try:
                await end.wait()
            finally:
                self.holding.remove((whose, end))

    def call(self, whose: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(self._call(whose)))
        return self.tasks[-1]

    async def end_one(self) -> None:
        self.holding[0][1].set()
        await settled()

    async def end_all(self) -> None:
        while self.holding:
            await self.end_one()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def test_a_caller_leaves_places_to_others_however_many_calls_it_makes() -> None:
    async def main() -> None:
        callers = Callers(Turns(4, 3))
        for _ in range(100):
            callers.call("greedy")
        await settled()
        assert callers.order == ["greedy"] * 3
        callers.call("other")
        await settled()
        assert callers.order[3:] == ["other"]
        await callers.end_all()
        assert len(callers.turns) == 0

    asyncio.run(main())


def test_those_who_wait_take_turns_by_caller_and_each_caller_in_order() -> None:
    async def main() -> None:
        callers = Callers(Turns(1, 1))
        for whose in ("a", "a", "a", "a", "b", "c", "b"):
            callers.call(whose)
        await settled()
        await callers.end_all()
        assert callers.order == ["a", "a", "b", "c", "a", "b", "a"]

    asyncio.run(main())


def test_who_goes_away_leaves_its_place_in_the_line_or_the_one_that_it_has_just_got() -> None:
    async def main() -> None:
        turns = Turns(1, 1)
        await turns.take("a")
        waiting = [asyncio.create_task(turns.take("b")) for _ in range(3)]
        await settled()
        waiting[0].cancel()
        turns.release("a")  # the first in the line is cancelled, and has not noticed yet
        waiting[1].cancel()  # this one has just been given the place
        await settled()
        assert waiting[2].done()
        turns.release("b")
        assert len(turns) == 0

    asyncio.run(main())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["call", "end", "cancel"])), max_size=60))
def test_no_place_is_lost_or_given_twice(steps: list[tuple[str, str]]) -> None:
    async def main() -> None:
        callers = Callers(Turns(3, 2))
        for number, (whose, what) in enumerate(steps):
            if what == "call":
                callers.call(whose)
            elif what == "end" and callers.holding:
                callers.holding[number % len(callers.holding)][1].set()
            elif what == "cancel" and callers.tasks:
                callers.tasks[number % len(callers.tasks)].cancel()
            if number % 3:
                await settled()
            held = [one for one, _ in callers.holding]
            assert len(held) <= 3
            assert all(held.count(one) <= 2 for one in "abc")
        await settled()
        await callers.end_all()
        assert all(task.done() for task in callers.tasks)
        assert len(callers.turns) == 0

    asyncio.run(main())


@pytest.mark.slow
def test_a_token_that_asks_for_much_that_takes_long_keeps_no_thread_from_another_token() -> None:
    held = threading.Event()

    class Holding(DictStore):
        """Answers nothing of runs that are not there, nor of hints."""

        asked = 0

        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if key.startswith("none-") or key == "other/head":
                self.asked += 1
                held.wait(HANG_S)
            return super().get(key, byte_range, max_bytes=max_bytes)

    store = Holding()
    script = fill(store, run_of(2))
    made = [new_token(name, "publish", ("*",), now=NOW) for name in ("greedy", "trainer")]
    (greedy, _), (trainer, _) = made
    tokens = TokenSet(tokens=tuple(entry for _, entry in made))
    app = app_over(store, tokens=tokens, insecure_open=False)

    async def main() -> None:
        async with client_of(app, timeout=HANG_S) as client:
            paths = [f"/v1/runs/none-{number}" for number in range(200)] + 200 * ["/v1/runs/other/head"]
            attack = [asyncio.create_task(client.get(path, headers=bearer(greedy))) for path in paths]
            async with asyncio.timeout(HANG_S):
                while store.asked < 30:
                    await asyncio.sleep(0)
                for path in ("versions/latest", "log/0", "layouts/" + LAYOUT.id, "snapshots", "route"):
                    answer = await client.get(f"/v1/runs/{RUN}/{path}", headers=bearer(trainer))
                    assert answer.status_code == 200, (path, answer.text)
                record = script.commit(layout=LAYOUT.id).records[-1]
                store_objects(store, record)
                posted = await client.post(f"/v1/runs/{RUN}/log", content=record.seal(), headers=bearer(trainer))
                assert posted.status_code == 201
            held.set()
            await asyncio.gather(*attack)
            await app.state.service.stop()

    try:
        asyncio.run(main())
    finally:
        held.set()
