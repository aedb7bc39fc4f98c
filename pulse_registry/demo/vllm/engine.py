"""An engine: a real vLLM server that was loaded from a version's folder, and its sidecar, `pulse follow`.

It starts from the run alone: `pulse pull --out` leaves a folder that the server loads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from pulse_registry.demo.bucket import Bucket, free_ports
from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.program import Program, Start
from pulse_registry.demo.vllm.environment import ON_CPU
from pulse_registry.demo.vllm.events import Event, Followed, NotFollowed, Serving
from pulse_registry.demo.vllm.settings import Settings

_SETTINGS: Final = ("--dtype", "bfloat16", "--max-model-len", "512", "--enforce-eager", "--enable-scale-out")
"""The last one: its requests of tokens in and out, whose answers carry the versions."""
_FOLLOWS: Final = (
    "--weight-transfer-config",
    json.dumps({"backend": "pulse"}),
    "--worker-extension-cls",
    "pulse_registry.integrations.vllm.WorkerExtension",
)
_ENVIRONMENT: Final = ON_CPU | {
    "PULSE_VLLM_CPU": "unpacked",  # linear layers read their live weights, and no packed copy
    "VLLM_SERVER_DEV_MODE": "1",  # for the requests that change weights; it listens on the loopback alone
}
Answer = tuple[list[int], list[float]]
"""Tokens, and the log-probability of each."""


class Engine:
    """A server on its way: pulling -> starting -> serving -> following."""

    def __init__(
        self, name: str, settings: Settings, bucket: Bucket, version: int, start: Start, *, follows: bool = True
    ) -> None:
        """Start to pull a version into a folder.

        Args:
            name: of the engine.
            settings: of the run.
            bucket: where the registry is.
            version: that the server is loaded from.
            start: starts a program, and ends it with the demo.
            follows: whether it is made to follow the run; else it is a plain server, that knows of none.
        """
        self.name, self.version = name, version
        self._settings, self._bucket, self._start, self._follows = settings, bucket, start, follows
        self._began = time.time()
        self._model = settings.out / "models" / name
        pulse = Path(sys.executable).with_name("pulse")
        run = ["--root", bucket.url, "--run", settings.run]
        self._pull = [pulse, "pull", *run, "--version", str(version), "--out", self._model]
        self._follow = [pulse, "follow", *run, "--loaded", str(version), "--json"]
        self._model.parent.mkdir(exist_ok=True)
        self._url = f"http://127.0.0.1:{free_ports(1)[0]}"
        # After an answer of 500 the server closes the connection: none is used twice.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=self._url, timeout=settings.patience, trust_env=False, limits=limits)
        self._puller = start(f"{name}-pull", self._pull, bucket.environment)
        self._server: Program | None = None

    def advance(self) -> Serving | None:
        """Go on with what is due; return the event that it serves now."""
        if self._server is None:
            if self._puller.status != 0:
                return None
            self._server = self._start_server()
        if self._serves():
            return Serving(self.name, self.version, time.time() - self._began, time.time())
        return None

    def follow(self, tell: Callable[[Event], None]) -> None:
        """Start the sidecar; ``tell`` is called from a thread."""

        def told(line: Mapping[str, Any]) -> None:
            at = datetime.fromisoformat(line["at"]).timestamp()
            if line["changed"]:
                changed = (line["version"], line["before"], line["stage_s"], line["pause_s"])
                tell(Followed(self.name, *changed, at))
            else:
                tell(NotFollowed(self.name, line["message"], at))

        command = [*self._follow, "--engine", f"vllm={self._url}"]
        self._start(f"{self.name}-follow", command, self._bucket.environment, told)

    def labelled(self) -> bool:
        """Tell whether the sidecar has told the server which version it holds, so that completions carry it."""
        return str(self._ask("GET", "/weight_info").get("weight_version")).isdecimal()

    def held(self) -> str:
        """Compare all live cells with the version that they are to hold, bit by bit, and return its number."""
        [version] = self._ask("POST", "/collective_rpc", {"method": "pulse_verify"})["results"]
        return str(version)

    def answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Answer]:
        """Return the greedy answer to each prompt, one after the other, from nothing in the caches."""
        self._ask("POST", "/reset_prefix_cache")
        return [self._answer(prompt, tokens) for prompt in prompts]

    def stream(self, prompt: Sequence[int], tokens: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield what vLLM sends of a completion, piece by piece; each has tokens, and the last one their versions."""
        sampling = {"temperature": 1.0, "seed": seed}
        body = _body(prompt, tokens, sampling) | {"stream": True}
        with self._answers(_GENERATE), self._http.stream("POST", _GENERATE, json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise DemoFailed(f"{self.name} answers {answer.status_code}: {answer.text[:500]}")
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if line.startswith("data: ") and data != "[DONE]":
                    [choice] = json.loads(data)["choices"]
                    yield choice

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _start_server(self) -> Program:
        where = ["--model", str(self._model), "--host", "127.0.0.1", "--port", self._url.rpartition(":")[2]]
        command = [self._settings.engine_python, "-m", "vllm.entrypoints.openai.api_server", *where, *_SETTINGS]
        environment = _ENVIRONMENT | (dict(self._bucket.environment) if self._follows else {})
        return self._start(self.name, [*command, *(_FOLLOWS if self._follows else ())], environment)

    def _serves(self) -> bool:
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    def _answer(self, prompt: Sequence[int], tokens: int) -> Answer:
        [choice] = self._ask("POST", _GENERATE, _body(prompt, tokens, {"temperature": 0.0, "logprobs": 0}))["choices"]
        return choice["token_ids"], [token["logprob"] for token in choice["logprobs"]["content"]]

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        with self._answers(path):
            answer = self._http.request(method, path, json=body)
        if answer.status_code != 200:
            raise DemoFailed(f"{self.name} answers {path} with {answer.status_code}: {answer.text[:500]}")
        return answer.json() if answer.content else None

    @contextmanager
    def _answers(self, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise DemoFailed(f"{self.name} does not answer {path}: {type(error).__name__}: {error}") from error


_GENERATE: Final = "/inference/v1/generate"


def _body(prompt: Sequence[int], tokens: int, sampling: Mapping[str, object]) -> dict[str, Any]:
    fixed = {"max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    return {"token_ids": list(prompt), "sampling_params": {**fixed, **sampling}}
