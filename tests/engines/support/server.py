"""vLLM's HTTP server in a process of its own, on the loopback, and what a client asks of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.engines.support.engine import ENVIRONMENT, ROOT, START_S, Answer
from tests.engines.support.fixtures import PULSE
from tests.support.servers import launched


class Server:
    """A server that follows a run, for tests. Close it at the end.

    Attributes:
        url: of its requests.
    """

    def __init__(
        self, model: Path, log: Path, environment: Mapping[str, str], *more: str, follows: bool = True
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._model, self._log = str(model), log
        options = ["--model", self._model, "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
        options += ["--max-model-len", "256", "--enforce-eager", *more]
        if follows:
            options += ["--weight-transfer-config", json.dumps(PULSE["weight_transfer_config"])]
            options += ["--worker-extension-cls", str(PULSE["worker_extension_cls"])]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options]
        with log.open("w") as out:
            self._process = subprocess.Popen(
                launched(command, how=signal.SIGTERM),  # killed, it leaves its engine and workers behind
                env=os.environ | ENVIRONMENT | {"VLLM_SERVER_DEV_MODE": "1"} | dict(environment),
                stdout=out,
                stderr=out,
                cwd=ROOT,
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{port}"
        # After an answer of 500 the server closes the connection: none is used twice.
        once = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=self.url, timeout=START_S, trust_env=False, limits=once)

    def start(self) -> None:
        """Wait until it serves."""
        for _ in range(4 * START_S):
            try:
                if self._client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            try:
                self._process.wait(0.25)
                break
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"the server does not serve:\n{self._log.read_text(errors='replace')[-6000:]}")

    def ask(self, path: str, body: object = None) -> httpx.Response:
        """Post a request, and return the answer, whatever it is."""
        return self._client.post(path, json=body)

    def done(self, path: str, body: object = None) -> Any:
        """Post a request that succeeds, and return the answer's JSON."""
        answer = self.ask(path, body)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json() if answer.content else None

    def rpc(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of each worker."""
        return self.done("/collective_rpc", {"method": method, "args": arguments})["results"]  # type: ignore[no-any-return]

    def version(self) -> str:
        """Return what vLLM says that the weights are."""
        return str(self._client.get("/weight_info").json()["weight_version"])

    def complete(self, prompt: Sequence[int], tokens: int = 8, model: str | None = None) -> Answer:
        """Return the greedy answer to a prompt, of the model, or of an adapter by its name."""
        body = {
            "model": model or self._model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": 1,
        }
        [choice] = self.done("/v1/completions", body | {"ignore_eos": True, "return_token_ids": True})["choices"]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def close(self) -> None:
        """End it and its workers."""
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
