"""SGLang over HTTP: a version is written to a folder beside serving, which the server then loads while it is paused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.follow.engine import EngineFailed
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.registry import Registry

_LOAD_S: Final = 1800.0
"""To load a large model from disk."""


class SglangEngine:
    """An SGLang server, and two folders that it can read: one it was loaded from last, one for the next version.

    So the folder of the version before is there to go back to.
    """

    pauses = True

    def __init__(self, api: EngineApi, registry: Registry, folder: Path) -> None:
        """Prepare; no I/O yet.

        Args:
            api: of the server.
            registry: the run, which is pulled here.
            folder: in which the two lie; the server sees it by the same path.
        """
        self.name = f"sglang {api.url}"
        self._api, self._registry = api, registry
        self._folders = tuple(folder.absolute() / name for name in ("a", "b"))
        self._loaded: str | None = None  # the path that the server says it was loaded from
        self._next: Path | None = None
        self._begun = self._greeted = False

    def version(self) -> int | None:
        """Return the version that its answers carry, if it was loaded from one of the folders.

        At the first look it is told to go on: a follower that died may have left it paused, which it does not tell.
        """
        info = self._api.ask("GET", "/model_info")
        self._loaded, version = str(info.get("model_path", "")), str(info.get("weight_version", ""))
        if not self._greeted:
            self.resume()
            self._greeted = True
        ours = self._loaded in map(str, self._folders)
        return int(version) if ours and version.isascii() and version.isdecimal() else None

    def stage(self, version: int) -> None:
        """Write the version to the folder that the server was not loaded from."""
        first, second = self._folders
        self._next = second if self._loaded == str(first) else first
        pull_checkpoint(self._registry, version, into=self._next)

    def pause(self) -> None:
        """Take requests under way back into the queue, so that their KV is computed anew."""
        self._api.ask("POST", "/pause_generation", body={"mode": "retract"})

    def apply(self, version: int) -> None:
        """Load the folder, flush the KV cache, and let responses carry the version."""
        if self._next is None:
            raise EngineFailed(f"{self.name}: nothing is staged")
        self._begun = True
        self._load(str(self._next), str(version))
        self._begun = False

    def reset_caches(self) -> None:
        """Do nothing: the load has flushed them."""

    def undo(self, version: int | None) -> None:
        """Load again what the server was loaded from before, if it has begun to load something else."""
        if self._begun and self._loaded:
            self._load(self._loaded, "default" if version is None else str(version))
        self._begun = False

    def resume(self) -> None:
        """Go on."""
        self._api.ask("POST", "/continue_generation", body={"torch_empty_cache": False})

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _load(self, path: str, version: str) -> None:
        body = {"model_path": path, "weight_version": version, "flush_cache": True, "abort_all_requests": False}
        answer = self._api.ask("POST", "/update_weights_from_disk", body=body, wait_s=_LOAD_S)
        if answer.get("success") is not True:
            raise EngineFailed(f"{self.name}: it did not load {path}: {answer.get('message', 'it says nothing')}")
