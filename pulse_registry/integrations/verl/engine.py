"""The checkpoint engine ``pulse``: the actor's first rank pushes, and each rollout worker pulls the same version.

verl imports this in the processes of both, and finds it by its name in its registry of checkpoint engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import torch
from verl.checkpoint_engine.base import (  # type: ignore[import-not-found]
    CheckpointEngine,
    CheckpointEngineRegistry,
)

from pulse_registry.errors import InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.integrations.gathered import Gathered
from pulse_registry.opening import open as open_run
from pulse_registry.registry import Registry
from pulse_schemas import Layout


@CheckpointEngineRegistry.register("pulse")
class PulseCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Sends weights by way of a run: changed cells travel, once a version, and any number of workers read them.

    All workers of the actor and of the rollout have one. Those of a rollout keep their version in host memory, fetch
    what changed since, and hand full tensors to verl's own loader.
    """

    wire_format = "named_tensors"

    def __init__(
        self, bucket_size: int, url: str, run: str, is_master: bool = False, wait_seconds: float = 1800.0
    ) -> None:
        """Open the run.

        Args:
            bucket_size: of verl's own engines; nothing here is sent in buckets.
            url, run: the registry's root, and the run in it. Keys, tokens and pins come from the environment.
            is_master: the actor's first rank, which pushes; verl says it.
            wait_seconds: how long a rollout worker waits for the actor's push.
        """
        self.bucket_size, self.is_master = bucket_size, is_master
        self._wait_seconds = wait_seconds
        self._registry: Registry = open_run(url, run=run)
        self._gathered = Gathered()
        self._held: dict[str, torch.Tensor] = {}
        self._layout: Layout | None = None
        self._after: int | None = None

    def prepare(self) -> dict[str, Any]:
        """Return the newest version before this sync, on the actor's first rank."""
        if not self.is_master:
            return {}
        try:
            return {"after": self._registry.version("latest").version}
        except NotFound:
            return {"after": -1}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell all workers after which version this sync's comes."""
        after = next((said["after"] for said in metadata if "after" in said), None)
        return {"after": [after] * actor_wg_world_size}, {"after": [after] * rollout_world_size}

    def init_process_group(self, after: int | None) -> None:
        """Take what the topology says; there is no group of processes."""
        if after is None:
            raise InvalidArgument("no worker of the actor is the master: verl's actor builds it with is_master=True")
        self._after = after

    def finalize(self) -> None:
        """End this sync; the run stays open, and what is held stays for the next one."""
        self._after = None

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Push the weights as the next version, on the actor's first rank; others only take part in gathering them.

        Returns:
            What verl logs: the version, how many cells changed, bytes stored, seconds.
        """
        if not self.is_master:
            for _ in weights:
                pass
            return {}
        taken = self._gathered.take(weights)
        step = 0 if self._after is None else self._after + 1
        result = await asyncio.to_thread(self._registry.push, step if global_steps is None else global_steps, taken)
        seconds = max((phase.end for phase in result.timeline), default=0.0)
        return {
            "pulse/version": float(result.version),
            "pulse/changed_cells": float(result.changed),
            "pulse/stored_bytes": float(result.nbytes),
            "pulse/push_seconds": seconds,
        }

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Wait for this sync's version, pull it, and yield its tensors, in host memory; of tied ones the first.

        Raises:
            StoreUnavailable: the actor did not push in time.
            PulseError: as ``Registry.pull``; nothing was yielded.
        """
        await asyncio.to_thread(self._pull)
        for name, tensor in self._held.items():
            if self._layout is not None and name not in self._layout.tied:
                yield name, tensor

    def _pull(self) -> None:
        if self._after is None:
            raise InvalidArgument("receive_weights was called before init_process_group")
        wanted = self._after + 1
        found = next(self._registry.watch(self._after, timeout=self._wait_seconds), None)
        if found is None:
            raise StoreUnavailable(
                f"the actor has not pushed version {wanted} within {self._wait_seconds:g} s: look at its log"
            )
        layout = self._registry.layout(found.version)
        if self._layout == layout:
            self._registry.pull(found.version, into=self._held)
        else:
            self._held, self._layout = self._registry.load(found.version, framework="torch"), layout
