"""A client: streams completions from an engine, one after the other, whatever becomes of its weights meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count

from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.vllm.engine import Engine
from pulse_registry.demo.vllm.events import Completed, Span


class Client:
    """A thread that asks. Stop it before the engine."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        seed: int,
        tell: Callable[[Completed | Exception], None],
    ) -> None:
        """Begin; ``tell`` is called from its thread with each completion, or with what has ended it."""
        self._engine, self._prompts, self._tokens, self._seed, self._tell = engine, prompts, tokens, seed, tell
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"client of {engine.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the completion that is under way."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        for number in count(self._seed * 1000):
            if self._stopping.is_set():
                return
            try:
                self._tell(self._complete(number))
            except Exception as error:  # noqa: BLE001 - the thread's edge
                self._tell(error)
                return

    def _complete(self, number: int) -> Completed:
        began, tokens_at, spans = time.time(), list[float](), list[Span]()
        for piece in self._engine.stream(self._prompts[number % len(self._prompts)], self._tokens, number):
            tokens_at += [time.time()] * len(piece.get("token_ids") or ())
            for span in piece.get("weight_versions") or ():
                spans.append(Span(int(span["version"]), span["start"], span["end"]))
        if len(tokens_at) != self._tokens or not spans or spans[-1].end != self._tokens:
            said = f"{len(tokens_at)} tokens of {self._tokens}, of versions {spans}"
            raise DemoFailed(f"{self._engine.name} broke a completion off: {said}")
        return Completed(self._engine.name, began, tokens_at, spans)
