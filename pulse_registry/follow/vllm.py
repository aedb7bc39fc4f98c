"""vLLM over HTTP: its workers hold the run, by the backend ``pulse`` and our extension, and stage beside serving.

The server runs with VLLM_SERVER_DEV_MODE=1; these calls need no authentication, so that they belong on loopback.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_exponential

from pulse_registry.follow.engine import EngineFailed, EngineRefused
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.results import VersionName

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
"""Between two questions whether a version is staged: each comes between two steps of the engine."""
_OPEN_S: Final = 1800.0
"""To find and compare all live cells of a large model, the first time."""
_APPLY_S: Final = 60.0
_STAGE_S: Final = 3600.0


class VllmEngine:
    """A vLLM server with ``--weight-transfer-config '{"backend": "pulse"}'`` and our worker extension."""

    pauses = True

    def __init__(
        self,
        api: EngineApi,
        url: str,
        run: str,
        *,
        loaded: VersionName = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            api: of the server.
            url: the registry's root, as the engine's workers open it; their environment has the keys, tokens and pins.
            run: the run in it.
            loaded: the version that the server was started with, where it does not tell.
            sleep: pauses between two questions whether a version is staged.
        """
        self.name = f"vllm {api.url}"
        self._api, self._url, self._run, self._loaded = api, url, run, loaded
        self._sleep = sleep
        self._beside = ThreadPoolExecutor(1, "pulse-pause")
        self._pausing: Future[Any] | None = None  # until vLLM has reset its caches

    def version(self) -> int | None:
        """Return the version of all ranks; opens the run in the workers if need be.

        An engine that is found paused is resumed: a follower that died has left it so.
        """
        if self._api.ask("GET", "/is_paused").get("is_paused"):
            self.resume()
        try:
            return self._held()
        except EngineRefused:  # no run is open: the server was started anew
            told = str(self._api.ask("GET", "/weight_info").get("weight_version"))
            holds = int(told) if told.isascii() and told.isdecimal() else self._loaded
            opening = {"url": self._url, "run": self._run, "version": holds, "name": None}
            self._api.ask("POST", "/init_weight_transfer_engine", body={"init_info": opening}, wait_s=_OPEN_S)
        held = self._held()
        self._tell_version(held)
        return held

    def stage(self, version: int) -> None:
        """Let the workers stage a version in a thread, and wait until all have."""
        self._call("pulse_stage", version)
        try:
            Retrying(
                retry=retry_if_result(lambda ready: not ready),
                wait=wait_exponential(_FIRST_PAUSE_S, _LONGEST_PAUSE_S),
                stop=stop_after_delay(_STAGE_S),
                sleep=self._sleep,
            )(self._is_ready)
        except RetryError:
            raise EngineFailed(f"{self.name}: version {version} is not staged after {_STAGE_S:.0f} s") from None

    def pause(self) -> None:
        """Freeze the scheduler, and return once it is; requests under way are kept.

        vLLM answers a pause when it has also reset the caches, and has waited 20 ms for its last outputs. Nothing is
        computed meanwhile, so the weights can be changed: only the end of the pause waits for that answer.
        """
        self._pausing = self._beside.submit(self._api.ask, "POST", "/pause", params={"mode": "keep"})
        while not self._is_paused(self._pausing):
            pass

    def apply(self, version: int) -> None:
        """Change the live weights of all ranks, or of none, and let responses carry the version."""
        self._call("pulse_apply", version, wait_s=_APPLY_S)
        self._tell_version(version)

    def reset_caches(self) -> None:
        """Wait for the pause's reset: of prefixes, multi-modal inputs, encoder outputs and a KV connector's cache.

        Requests under way lose their KV, and recompute it with the new weights.
        """
        if self._pausing is not None:
            self._pausing.result()

    def undo(self, version: int | None) -> None:
        """Take the change back, if the live weights were changed; nothing was computed with them."""
        if version is not None and self._held() != version:
            self._call("pulse_undo", wait_s=_APPLY_S)
            self._tell_version(version)

    def resume(self) -> None:
        """Go on, after a pause that is under way."""
        if self._pausing is not None:
            wait([self._pausing])
        self._api.ask("POST", "/resume")

    def close(self) -> None:
        """Close the connections."""
        self._beside.shutdown()
        self._api.close()

    def _is_paused(self, pausing: Future[Any]) -> bool:
        if pausing.done():
            pausing.result()
            return True
        try:
            return self._api.ask("GET", "/is_paused").get("is_paused") is True
        except EngineRefused:  # of several data parallel engines some are, and others not yet
            return False

    def _held(self) -> int:
        """Return the version that the live weights of all ranks hold."""
        held = {str(version) for version in self._call("pulse_version")}
        if len(held) != 1 or not all(version.isascii() and version.isdecimal() for version in held):
            raise EngineFailed(f"{self.name}: its ranks say that they hold {', '.join(sorted(held)) or 'nothing'}")
        return int(held.pop())

    def _is_ready(self) -> bool:
        ready = self._call("pulse_ready")
        return bool(ready) and all(str(one) == "True" for one in ready)

    def _tell_version(self, version: int) -> None:
        self._api.ask("POST", "/update_weight_version", body={"new_version": str(version)})

    def _call(self, method: str, *args: int, wait_s: float = 0.0) -> list[Any]:
        """Call a method of the worker extension on all ranks, and return what each answered."""
        body: dict[str, Any] = {"method": method, "args": list(args)}
        results = self._api.ask("POST", "/collective_rpc", body=body, wait_s=wait_s).get("results")
        return results if isinstance(results, list) else []
