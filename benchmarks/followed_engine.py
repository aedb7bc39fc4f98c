"""A vLLM server that ``pulse follow``'s own classes bring to versions, beside the engine of ``engine_pause``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pulse_registry
from pulse_registry.follow import Changed, Failed, Follower, Pace, VllmEngine
from pulse_registry.follow.engine_api import EngineApi
from tests.engines.support.server import Server

_RUN: Final = "policy"


class Followed:
    """A server that was loaded from a run's newest version, and follows the run over HTTP. Close it at the end."""

    def __init__(self, folder: Path, version: int, environment: Mapping[str, str]) -> None:
        """Start it, and open the run in its worker.

        Args:
            folder: with the registry and the model, and for the server's log.
            version: of the run, which the model is.
            environment: of the server.
        """
        url, threads = str(folder / "registry"), {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
        self._told: list[Changed | Failed] = []
        self._server = Server(folder / "model", folder / "server.log", threads | dict(environment))
        try:
            self._server.start()
            self._registry = pulse_registry.open(url, run=_RUN, create=False)
            self._engine = VllmEngine(EngineApi(self._server.url), url, _RUN, loaded=version)
            self._follower = Follower(
                self._registry, self._engine, Pace(), self._told.append, wait=lambda after, seconds: None
            )
            self._follower.look()
        except BaseException:
            self._server.close()
            raise

    def follow(self) -> float:
        """Bring it to the newest version; return the seconds from the request for the pause until it goes on."""
        self._told.clear()
        self._follower.look()
        [changed] = self._told
        if not isinstance(changed, Changed) or changed.pause_s is None:
            raise RuntimeError(changed.line())
        return changed.pause_s

    def generate(self) -> None:
        """Generate a token."""
        self._server.complete([1, 5, 9], tokens=1)

    def verify(self) -> int:
        """Compare all live cells with the version that they are, and return its number."""
        [version] = self._server.rpc("pulse_verify")
        return int(version)

    def close(self) -> None:
        """End it."""
        self._engine.close()
        self._registry.close()
        self._server.close()
