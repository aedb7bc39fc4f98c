"""Engines' HTTP APIs, as stubs that hold a version as the real ones do, note each call, and fail where a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.scripted_http import Asked, Reply, Server, serving


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status, {"Content-Type": "application/json"}, json.dumps(value).encode())


class VllmStub:
    """What vLLM 0.32 answers with the backend ``pulse`` and its worker extension, of two ranks.

    Attributes:
        calls: paths of the calls that change something, those of the extension by their method.
        fails: names in ``calls`` that fail once, before they do anything.
        breaks: those that act, and whose answer is lost.
        held: the version that the live weights hold; None: no run is open.
        told: the version that responses carry.
        cached: the versions of which there is KV in the caches.
        lasting: is called in a pause that has begun, before the caches are reset.
    """

    held: int | None
    told: str

    def __init__(self, loaded: int = 0) -> None:
        self.calls: list[str] = []
        self.bodies: dict[str, Any] = {}
        self.cached: set[int | None] = set()
        self.fails: list[str] = []
        self.breaks: list[str] = []
        self.loaded, self.held, self.told = loaded, None, "default"
        self.paused = False
        self.staged: int | None = None
        self.before: int | None = None
        self.until_ready = 2
        self.when_paused: Callable[[], object] = lambda: None
        self.lasting: Callable[[], object] = lambda: None
        self.when_asked_ready: Callable[[], int] = lambda: self.until_ready - 1

    def __call__(self, asked: Asked) -> Reply:
        body = asked.json() if asked.body else {}
        call = body.get("method", "") if asked.path == "/collective_rpc" else asked.path
        if asked.method == "POST" and call not in ("pulse_version", "pulse_ready"):
            self.calls.append(call)
            self.bodies[call] = body | {"query": asked.query}
        if call in self.fails:
            self.fails.remove(call)
            return _json({"error": {"message": f"Call to {call} failed: it is so", "type": "x", "code": 500}}, 500)
        reply = self._answer(asked.query, call, body)
        if call in self.breaks:
            self.breaks.remove(call)
            return Reply(lost=True)
        return reply

    def _answer(self, query: dict[str, list[str]], call: str, body: dict[str, Any]) -> Reply:
        if call.startswith("pulse_") and self.held is None:
            return _json({"error": {"message": "no run is open"}}, 500)
        match call:
            case "/is_paused":
                return _json({"is_paused": self.paused})
            case "/weight_info":
                return _json({"weight_version": self.told})
            case "/init_weight_transfer_engine":
                if body["init_info"]["version"] != self.loaded:
                    return _json({"error": {"message": "the live cells are not that version's"}}, 500)
                self.held = self.loaded
            case "pulse_version":
                return _json({"results": [str(self.held)] * 2})
            case "pulse_stage":
                (self.staged,), self.until_ready = body["args"], 2
                return _json({"results": [None, None]})
            case "pulse_ready":
                self.until_ready = self.when_asked_ready()
                return _json({"results": ["True", str(self.until_ready <= 0)]})
            case "/pause":
                self.cached |= {self.held}
                self.paused = True
                self.when_paused()
                self.lasting()
                if query.get("mode") == ["keep"] and query.get("clear_cache", ["true"]) == ["true"]:
                    self.cached.clear()
            case "pulse_apply":
                assert self.paused
                assert self.until_ready <= 0, "it was paused for what was not ready"
                assert body["args"] == [self.staged]
                self.before, self.held = self.held, self.staged
                return _json({"results": [{"version": self.held, "changed": 1, "nbytes": 1}] * 2})
            case "pulse_undo":
                assert self.paused
                self.held = self.before
                return _json({"results": [str(self.held)] * 2})
            case "/update_weight_version":
                self.told = body["new_version"]
            case "/resume":
                self.paused = False
                self.cached |= {self.held}
            case _:
                return _json({"detail": "Not Found"}, 404)
        return _json({"message": "done"})


class SglangStub:
    """What SGLang 0.5 answers: it loads folders, and goes back by itself to nothing.

    Attributes:
        calls, fails: as `VllmStub`'s.
        path, told: what it was loaded from, and the version that responses carry.
        shards: what the index of that folder named when it was loaded.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails: list[str] = []
        self.path, self.told, self.paused = "/models/base", "default", True
        self.loaded: list[str] = []

    def __call__(self, asked: Asked) -> Reply:
        body = asked.json() if asked.body else {}
        if asked.method == "POST":
            self.calls.append((asked.path, body))
        if asked.path in self.fails:
            self.fails.remove(asked.path)
            return _json({"success": False, "message": "it is so"}, 400)
        match asked.path:
            case "/model_info":
                return _json({"model_path": self.path, "weight_version": self.told})
            case "/pause_generation":
                self.paused = True
            case "/continue_generation":
                self.paused = False
            case "/update_weights_from_disk":
                assert self.paused
                self.path, self.told = body["model_path"], body["weight_version"]
                self.loaded.append(self.path)
                return _json(
                    {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
                )
            case _:
                return _json({"detail": "Not Found"}, 404)
        return _json({"status": "ok"})

    @property
    def names(self) -> list[str]:
        return [path for path, _ in self.calls]


class AdapterStub:
    """What vLLM 0.32 (prefix ``/v1``) and SGLang 0.5 (none) answer about adapters that come and go.

    Attributes:
        calls: what was loaded, by path, and unloaded, in order.
        loaded: paths by name.
        fails: names of the calls that fail, each once; of a load, before the adapter is there.
        serves: is told of the path of each adapter that is loaded.
    """

    def __init__(self, prefix: str, loaded: dict[str, str] | None = None) -> None:
        self.calls: list[str] = []
        self.loaded = dict(loaded or {})
        self.fails: list[str] = []
        self.serves: Callable[[str], object] = lambda path: None
        self._prefix = prefix

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            base = {"id": "base", "object": "model", "root": "/models/base", "parent": None}
            cards = [{"id": name, "root": path, "parent": "base"} for name, path in self.loaded.items()]
            return _json({"object": "list", "data": [base, *cards]})
        body = asked.json()
        call, name = asked.path.removeprefix(self._prefix), body["lora_name"]
        assert asked.path.startswith(self._prefix)
        if call in self.fails:
            self.fails.remove(call)
            self.calls.append(f"{call} failed")
            return self._refused("it is so")
        if (call == "/load_lora_adapter") == (name in self.loaded):
            return self._refused(f"the adapter {name!r} is loaded: {name in self.loaded}")
        match call:
            case "/load_lora_adapter":
                self.serves(body["lora_path"])
                self.loaded[name] = body["lora_path"]
                self.calls.append(body["lora_path"])
            case "/unload_lora_adapter":
                del self.loaded[name]
                self.calls.append("unloaded")
            case _:
                return _json({"detail": "Not Found"}, 404)
        if self._prefix:
            return Reply(200, {"Content-Type": "text/plain"}, b"Success: it is done")
        return _json({"success": True, "error_message": "", "loaded_adapters": self.loaded})

    def _refused(self, why: str) -> Reply:
        if self._prefix:
            return _json({"error": {"message": why, "type": "InvalidUserInput", "param": None, "code": 400}}, 400)
        return _json({"success": False, "error_message": why, "loaded_adapters": self.loaded}, 400)


@contextmanager
def engine_at(stub: VllmStub | SglangStub | AdapterStub) -> Iterator[Server]:
    """Serve a stub on a port of this machine."""
    with serving(stub) as server:
        yield server
