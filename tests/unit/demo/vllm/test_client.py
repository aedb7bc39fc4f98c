"""A client tells of each completion, and of one that was broken off; it stops after the one that is under way."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.vllm.client import Client
from pulse_registry.demo.vllm.engine import Engine
from pulse_registry.demo.vllm.events import Completed, Span

WHOLE = [{"token_ids": [5]}, {"token_ids": [6, 7], "weight_versions": [{"version": "3", "start": 0, "end": 3}]}]


class Scripted:
    """An engine that sends these pieces for each prompt."""

    name = "engine"

    def __init__(self, pieces: Sequence[dict[str, Any]]) -> None:
        self.asked: list[tuple[list[int], int, int]] = []
        self._pieces = pieces

    def stream(self, prompt: list[int], tokens: int, seed: int) -> Iterator[dict[str, Any]]:
        self.asked.append((prompt, tokens, seed))
        yield from self._pieces


def start(engine: Scripted) -> tuple[Client, queue.SimpleQueue[Completed | Exception]]:
    told: queue.SimpleQueue[Completed | Exception] = queue.SimpleQueue()
    return Client(cast("Engine", engine), [[1, 2], [3]], 3, 4, told.put), told


def test_it_asks_one_prompt_after_the_other_until_it_is_stopped() -> None:
    engine = Scripted(WHOLE)
    client, told = start(engine)
    found = [told.get(timeout=60) for _ in range(3)]
    client.stop()
    client.join()
    assert engine.asked[:3] == [([1, 2], 3, 4000), ([3], 3, 4001), ([1, 2], 3, 4002)]
    assert all(isinstance(one, Completed) and (len(one.tokens_at), one.spans) == (3, [Span(3, 0, 3)]) for one in found)


@pytest.mark.parametrize("pieces", [WHOLE[:1], [*WHOLE, {"token_ids": [8]}], [{"token_ids": [5, 6, 7]}], []])
def test_a_completion_that_is_broken_off_ends_it(pieces: list[dict[str, Any]]) -> None:
    client, told = start(Scripted(pieces))
    error = told.get(timeout=60)
    client.join()
    assert isinstance(error, DemoFailed)
    assert "engine broke a completion off" in str(error)
