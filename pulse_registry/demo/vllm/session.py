"""One run of the demo with engines: its processes started, watched, compared, and never left behind."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pulse_registry
from pulse_registry.demo.bucket import Bucket
from pulse_registry.demo.fingerprint import fingerprint
from pulse_registry.demo.policy import ChatCodec, quiet_transformers
from pulse_registry.demo.programs import Programs
from pulse_registry.demo.sums import sums
from pulse_registry.demo.vllm.board import Board
from pulse_registry.demo.vllm.client import Client
from pulse_registry.demo.vllm.engine import Answer, Engine
from pulse_registry.demo.vllm.events import Committed, Event, Stepped, Trained
from pulse_registry.demo.vllm.proof import Proof, prove
from pulse_registry.demo.vllm.settings import ENGINES, Settings

_ASKED, _ASKED_TOKENS = 6, 16
"""Prompts of the proof, and the tokens of each answer."""


class Session:
    """The processes of one run. A context manager: at its end none is left.

    Attributes:
        board: what has happened.
        proof: what was found at the end; None: it is not there yet.
    """

    def __init__(self, settings: Settings) -> None:
        self.board = Board()
        self.proof: Proof | None = None
        self._settings = settings
        self._programs = Programs[Event](settings.out, settings.patience)
        self._base = settings.out / "models" / "base"
        self._engines: dict[str, Engine] = {}
        self._clients: dict[str, list[Client]] = {}
        self._control: list[Answer] = []
        self._prompts: list[list[int]] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()

    def watch(self) -> Iterator[Event]:
        """Run all of it, and yield what happens.

        Raises:
            DemoFailed: it can't go on.
        """
        settings = self._settings
        bucket = self._programs.bucket()
        model = self._programs.start(
            "model", [sys.executable, "-m", f"{__package__}.model", settings.model, self._base], {}
        )
        self._programs.until(lambda: model.status == 0)
        self._prompts = self._asked()
        self._programs.until(bucket.ready)
        self._start_trainer(bucket)
        threading.Thread(target=self._follow_run, args=(bucket.url,), name="run", daemon=True).start()
        heard = time.monotonic()
        while not self._done():
            for event in itertools.chain(self._programs.told(), self._advance(bucket)):
                heard = time.monotonic()
                self.board.add(event)
                yield event
            self._programs.check(heard)
        for client in itertools.chain.from_iterable(self._clients.values()):
            client.stop()
        for client in itertools.chain.from_iterable(self._clients.values()):
            client.join()
        for event in self._programs.told():
            self.board.add(event)
            yield event
        self.board.ended = time.time()
        self.proof = self._prove(bucket)

    def _advance(self, bucket: Bucket) -> Iterator[Event]:
        """Do what is due of the engines."""
        settings, board = self._settings, self.board
        for name, due in zip(ENGINES, (0, settings.late_after), strict=True):
            if name not in self._engines and board.newest >= due:
                # Not the newest: a fast trainer may be past what is due of both when the first engine begins.
                self._engines[name] = self._new_engine(name, bucket, due)
        for name, engine in self._engines.items():
            if name not in board.serving:
                if (serving := engine.advance()) is not None:
                    if not self._control:
                        self._control = engine.answers(self._prompts, _ASKED_TOKENS)
                    yield serving
                    engine.follow(self._programs.events.put)
            elif name not in self._clients and engine.labelled():
                seeds = range(settings.seed + 100 * len(self._clients), 10**9)
                self._clients[name] = [
                    Client(engine, self._prompts, settings.stream_tokens, seed, self._programs.events.put)
                    for seed in seeds[: settings.streams]
                ]

    def _new_engine(self, name: str, bucket: Bucket, version: int, *, follows: bool = True) -> Engine:
        engine = Engine(name, self._settings, bucket, version, self._programs.start, follows=follows)
        self._programs.at_end.callback(engine.close)
        return engine

    def _done(self) -> bool:
        board = self.board
        trained = board.trained is not None and board.newest == self._settings.steps
        streamed = {completion.engine for completion in board.completions} == set(ENGINES)
        return trained and streamed and all(board.holds(name) == board.newest for name in ENGINES)

    def _asked(self) -> list[list[int]]:
        tokenizer = quiet_transformers().AutoTokenizer.from_pretrained(self._base)
        codec = ChatCodec(tokenizer)
        return [codec.encode(task) for task in itertools.islice(sums(self._settings.seed + 1), _ASKED)]

    def _start_trainer(self, bucket: Bucket) -> None:
        settings = self._settings
        command = [settings.trainer_python, "-m", f"{__package__}.trainer", self._base, bucket.url]
        command += [settings.run, settings.out]
        numbers = (settings.steps, settings.prompts, settings.group_size, settings.new_tokens)
        texts = [*map(str, numbers), str(settings.learning_rate), str(settings.seed)]

        def told(line: dict[str, Any]) -> None:
            match line:
                case {"event": "step", "step": step, "reward": reward, "at": at}:
                    self._programs.events.put(Stepped(step, reward, at))
                case {"event": "trained", "sha256": sha256, "at": at}:
                    self._programs.events.put(Trained(sha256, at))

        environment = {**bucket.environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self._programs.start("trainer", [*command, *texts], environment, told)

    def _follow_run(self, url: str) -> None:
        """Tell of each version. In a thread."""
        try:
            with pulse_registry.open(url, run=self._settings.run) as registry:
                for version in registry.watch(-1, timeout=self._settings.patience):
                    at = datetime.fromisoformat(version.created_at).timestamp()
                    what = (version.version, version.step, version.kind, version.changed, version.cells, version.nbytes)
                    self._programs.events.put(Committed(*what, at))
                    if version.version == self._settings.steps:
                        return
        except Exception as error:  # noqa: BLE001 - the thread's edge
            self._programs.events.put(error)

    def _prove(self, bucket: Bucket) -> Proof:
        newest = self.board.newest
        held = {name: engine.held() for name, engine in self._engines.items()}
        answers = {name: engine.answers(self._prompts, _ASKED_TOKENS) for name, engine in self._engines.items()}
        fresh = self._new_engine("fresh", bucket, newest, follows=False)
        self._programs.until(lambda: fresh.advance() is not None)
        with pulse_registry.open(bucket.url, run=self._settings.run, create=False) as registry:
            registry.verify(newest)
            cells = registry.load(newest, framework="torch")
            stored = fingerprint({tensor.name: cells[tensor.name] for tensor in registry.layout(newest).tensors})
        assert self.board.trained is not None
        weights = stored == self.board.trained.sha256
        said = fresh.answers(self._prompts, _ASKED_TOKENS)
        return prove(newest, said, answers, held, self._control, weights=weights)
