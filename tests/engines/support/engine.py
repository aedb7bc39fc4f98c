"""An engine: a real vLLM in a process of its own, which does what a test asks for, one call after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from pulse_registry.demo.vllm.environment import ON_CPU

START_S: Final = 480  # three ranks on two cores that others use, too
CALL_S: Final = 120
ROOT: Final = Path(__file__).parents[3]
ENVIRONMENT: Final = {"PYTHONPATH": str(ROOT)} | ON_CPU
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.engines.support.loaded"])
Answer = tuple[list[int], list[float]]
"""Tokens, and the log-probability of each."""


class EngineError(Exception):
    """What a call raised in the engine's process: its class and message."""


class Engine:
    """The test's end. Close it at the end."""

    def __init__(self, model: Path, log: Path, environment: Mapping[str, str] | None = None, **settings: Any) -> None:
        self._log = log
        log.touch()
        self._pipe, there = _FORKS.Pipe()
        full = os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | dict(environment or {})
        self._process = _FORKS.Process(target=serve, args=(there, log, full))
        self._process.start()
        there.close()
        self._pipe.send({"model": str(model)} | settings)
        self._started = False

    def start(self) -> Engine:
        """Wait until it serves; each call does."""
        if not self._started:
            self._receive(START_S)
            self._started = True
        return self

    def rpc(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of each worker, and return what each answers."""
        return self._call("rpc", method, arguments)  # type: ignore[no-any-return]

    def generate(
        self, prompts: Sequence[Sequence[int]], *, reset: bool = True, adapter: Path | None = None
    ) -> list[Answer]:
        """Return greedy answers to prompts, all in one batch.

        Args:
            prompts: of token ids.
            reset: forget what earlier prompts left in caches.
            adapter: the folder of one, by PEFT's names, which answers in place of the model alone.
        """
        return self._call("generate", prompts, reset, adapter)  # type: ignore[no-any-return]

    def in_flight(
        self, prompts: Sequence[Sequence[int]], steps: int, version: int | None, *, recompute: bool
    ) -> list[Answer]:
        """Return greedy answers of ``steps`` tokens before a pause, and 8 after it.

        Args:
            prompts: all in one batch.
            steps: of the engine; each makes one token of each answer.
            version: applied in the pause; it is staged. None: the weights stay.
            recompute: as `/pause?mode=keep` does; else the requests keep what the old weights have left in caches.
        """
        return self._call("in_flight", prompts, steps, version, recompute)  # type: ignore[no-any-return]

    def open_run(self, url: Path, run: str, version: int | str) -> None:
        """Call vLLM's ``init_weight_transfer_engine``."""
        self._call("open_run", {"url": str(url), "run": run, "version": version})

    def update(self, **update: Any) -> None:
        """Call vLLM's ``start_weight_update``, ``update_weights`` and ``finish_weight_update``."""
        self._call("update", update)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()  # it reads that, and ends
        self._process.join(30)
        self._process.kill()
        self._process.join()

    def _call(self, name: str, *arguments: Any) -> Any:
        self.start()
        self._pipe.send((name, arguments))
        return self._receive(CALL_S)

    def _receive(self, seconds: float) -> Any:
        try:
            if not self._pipe.poll(seconds):
                raise AssertionError(f"the engine has not answered for {seconds} s:\n{self._tail()}")
            failed, value = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise AssertionError(f"the engine's process has ended:\n{self._tail()}") from None
        if failed:
            raise EngineError(value)
        return value

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


class Calls:
    """The engine's end: what each call does."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        fixed = {"skip_tokenizer_init": True, "enforce_eager": True, "dtype": "bfloat16", "max_model_len": 256}
        if settings.get("tensor_parallel_size", 1) > 1:
            from vllm.v1.executor import multiproc_executor

            fixed["distributed_executor_backend"] = "mp"
            # As vLLM does where it is not told otherwise. On CPUs it spawns ranks, and each imports all of it anew.
            multiproc_executor.get_mp_context = partial(multiprocessing.get_context, "fork")
        if "weight_transfer_config" in settings:
            from vllm.config import WeightTransferConfig

            settings["weight_transfer_config"] = WeightTransferConfig(**settings["weight_transfer_config"])
        self.adapters = dict[Path, int]()
        self.llm = LLM(**fixed, async_scheduling=False, **settings)

    def rpc(self, method: str, arguments: Sequence[Any]) -> list[Any]:
        return self.llm.collective_rpc(method, args=tuple(arguments))  # type: ignore[no-any-return]

    def generate(self, prompts: Sequence[Sequence[int]], reset: bool, adapter: Path | None) -> list[Answer]:
        if reset:
            self.llm.reset_prefix_cache()
        asked = [_prompt(tokens) for tokens in prompts]
        made = self.llm.generate(asked, _greedy(8), use_tqdm=False, lora_request=self._adapter(adapter))
        return [_answer(output) for output in made]

    def in_flight(
        self, prompts: Sequence[Sequence[int]], steps: int, version: int | None, recompute: bool
    ) -> list[Answer]:
        self.llm.reset_prefix_cache()
        engine, made = self.llm.llm_engine, dict[str, Answer]()
        core = engine.engine_core.engine_core  # in this process, so that a step is one step of it
        for k, tokens in enumerate(prompts):
            engine.add_request(str(k), _prompt(tokens), _greedy(steps + 8))
        for _ in range(steps):
            made |= {output.request_id: _answer(output) for output in engine.step()}
        assert [len(tokens) for tokens, _ in made.values()] == [steps] * len(prompts)
        core.pause_scheduler("keep", clear_cache=recompute)
        if version is not None:
            self.rpc("pulse_apply", [version])
        core.resume_scheduler()
        while engine.has_unfinished_requests():
            made |= {output.request_id: _answer(output) for output in engine.step()}
        return [made[str(k)] for k in range(len(prompts))]

    def _adapter(self, folder: Path | None) -> Any:
        if folder is None:
            return None
        from vllm.lora.request import LoRARequest

        number = self.adapters.setdefault(folder, len(self.adapters) + 1)
        return LoRARequest(folder.name, number, str(folder))

    def open_run(self, init: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init))

    def update(self, update: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self.llm.start_weight_update()
        try:
            self.llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        except BaseException:
            with contextlib.suppress(Exception):  # of several ranks, it closes the session on the others
                self.llm.finish_weight_update()
            raise
        self.llm.finish_weight_update()


def _prompt(tokens: Sequence[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(tokens)}


def _greedy(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=tokens, temperature=0, logprobs=0, detokenize=False, ignore_eos=True)


def _answer(output: Any) -> Answer:
    [best] = output.outputs
    return list(best.token_ids), [next(iter(at.values())).logprob for at in best.logprobs]


def serve(pipe: Connection, log: Path, environment: Mapping[str, str]) -> None:
    """Be the engine's process: serve calls until the test closes its end."""
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    calls = Calls(pipe.recv())
    pipe.send((False, None))
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                answer = (False, getattr(calls, name)(*arguments))
            except Exception as error:  # noqa: BLE001 - the process' edge: the test hears of it
                answer = (True, f"{type(error).__name__}: {error}")
            pipe.send(answer)
    os._exit(0)  # its workers see that, and end; vLLM's own end takes seconds
