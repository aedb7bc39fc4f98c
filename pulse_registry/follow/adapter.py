"""An adapter (LoRA) of a vLLM or SGLang server: each version is written to a folder of its own, and loaded from there.

The server's endpoints load and unload adapters by name. What replaces one in place is not used: vLLM 0.32 then reads
the folder again in each step, and requests under way would go on with keys and values of the old adapter. So the old
one is unloaded, which requests under way keep, and the new one is loaded under its name.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Literal

from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.checkpoint.small_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from pulse_registry.errors import InvalidArgument
from pulse_registry.follow.engine import EngineFailed, Unpaused
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.registry import Registry

Server = Literal["vllm", "sglang"]
_PREFIX: Final[dict[Server, str]] = {"vllm": "/v1", "sglang": ""}
_LOAD_S: Final = 600.0
"""To load an adapter; SGLang first waits for the requests that use the old one."""


class AdapterEngine(Unpaused):
    """An adapter of a server that was started for adapters that come and go, and the folders that it loads.

    Requests under way end with the version that they began with. New ones are refused between the unloading of one
    version and the loading of the next.
    """

    def __init__(self, api: EngineApi, registry: Registry, folder: Path, adapter: str, server: Server) -> None:
        """Prepare; no I/O yet.

        Args:
            api: of the server.
            registry: the run, of adapters, which is pulled here.
            folder: in which there is one for each of the last two versions; the server sees it by the same path.
            adapter: its name, as requests call it.
            server: whose requests are made.
        """
        self.name = f"{server} {api.url} adapter {adapter}"
        self._api, self._registry, self._adapter, self._prefix = api, registry, adapter, _PREFIX[server]
        self._folder = folder.absolute()
        self._loaded: str | None = None  # the path that the server says it has loaded
        self._staged: Path | None = None

    def version(self) -> int | None:
        """Return the version that the server has loaded, if it is from one of the folders."""
        self._loaded = self._asked()
        return None if self._loaded is None else self._version_in(self._loaded)

    def stage(self, version: int) -> None:
        """Write the version to a folder of its own, in one step.

        Raises:
            InvalidArgument: the run's versions are no adapters.
        """
        carried = self._registry.files(version)
        if ADAPTER_CONFIG not in carried:
            raise InvalidArgument(
                f"version {version} of run {self._registry.run!r} carries no {ADAPTER_CONFIG}: it is no adapter. Push "
                "one with the folder that has it, or follow the run without --adapter"
            )
        source, new, target = self._folder / ".pulled", self._folder / ".new", self._path(version)
        pulled = pull_checkpoint(self._registry, version, into=source)
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            for name in (*pulled.files, ADAPTER_WEIGHTS):
                shutil.copyfile(source / name, new / name)
            shutil.rmtree(target, ignore_errors=True)  # of another time: it is not what is loaded
            new.rename(target)
        except OSError as error:
            raise EngineFailed(f"{self.name}: {target} can't be written: {error.strerror}") from None
        self._staged = target

    def apply(self, version: int) -> None:
        """Unload the version before, if there is one, and load this one."""
        if self._staged is None or self._staged != self._path(version):
            raise EngineFailed(f"{self.name}: version {version} is not staged")
        if self._loaded is not None:
            self._unload()
        self._load(str(self._staged))
        for path in self._folder.iterdir():
            if self._version_in(str(path)) is not None and str(path) not in (str(self._staged), self._loaded):
                shutil.rmtree(path, ignore_errors=True)

    def undo(self, version: int | None) -> None:
        """Load what was loaded before, if that is not what is loaded."""
        now = self._asked()
        if now == self._loaded:
            return
        if now is not None:
            self._unload()
        if self._loaded is not None:
            self._load(self._loaded)

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _path(self, version: int | str) -> Path:
        return self._folder / f"{self._registry.run}-{version}"

    def _version_in(self, path: str) -> int | None:
        """Return the version whose folder a path is, if it is one of ours."""
        start = str(self._path(""))
        number = path.removeprefix(start) if path.startswith(start) else ""
        return int(number) if number.isascii() and number.isdecimal() else None

    def _asked(self) -> str | None:
        """Return the path from which the server has loaded the adapter; None: it has none of this name."""
        models = self._api.ask("GET", "/v1/models").get("data")
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == self._adapter:
                return str(model.get("root"))
        return None

    def _load(self, path: str) -> None:
        self._do("load_lora_adapter", {"lora_name": self._adapter, "lora_path": path})

    def _unload(self) -> None:
        self._do("unload_lora_adapter", {"lora_name": self._adapter})

    def _do(self, call: str, body: dict[str, str]) -> None:
        answer = self._api.ask("POST", f"{self._prefix}/{call}", body=body, wait_s=_LOAD_S)
        if answer.get("success") is False:
            raise EngineFailed(f"{self.name}: {call}: {answer.get('error_message', 'it says nothing')}")
