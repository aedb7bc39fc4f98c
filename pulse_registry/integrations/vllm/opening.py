"""Opening of a run for the ranks of one vLLM engine, and how their errors reach it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pulse_registry
from pulse_registry import PullOptions
from pulse_registry.errors import BaseMismatch, InvalidArgument, LayoutMismatch, PulseError
from pulse_registry.integrations.loader.engine_weights import EngineWeights
from pulse_registry.integrations.vllm.plugin import UNPACKED
from pulse_registry.process import environment
from pulse_registry.results import VersionName

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def open_weights(model: torch.nn.Module, url: str, run: str, version: VersionName, name: str | None) -> EngineWeights:
    """Open a run for this rank's part of a model, together with the ranks that hold the others.

    Args:
        model: this rank's, loaded.
        url, run: the registry's root, and the run in it.
        version: what the model holds: a number, a tag, or ``latest``.
        name: of this engine, for its lease and its reports; None: neither.

    Raises:
        PulseError: the run can't be read; or the model is not its version, or can't be changed in place.
    """
    ranks = _ranks()
    group = ranks.cpu_group if ranks.world_size > 1 else None
    pull = PullOptions(host_copy=True)
    open_run = partial(pulse_registry.open, url, run=run, name=name, create=False, pull=pull, process_group=group)
    peers = None
    if group is not None:
        from pulse_registry.peers.torch_peers import TorchPeers

        peers = TorchPeers(group)
    try:
        return EngineWeights(open_run, model, version, peers)
    except (LayoutMismatch, BaseMismatch) as error:
        on_cpu = any(held.device.type == "cpu" for held in model.parameters())
        if on_cpu and environment.VLLM_CPU.read() != UNPACKED:
            error.args = (f"{error}. vLLM packs weights on CPUs: start it with {environment.VLLM_CPU.name}={UNPACKED}",)
        raise


def answer(call: Callable[[], Result]) -> Result | None:
    """Make a call that all ranks make alike; what they raise is raised on the last one, and the others return None.

    vLLM reads the ranks' answers in their order and stops at the first error: an answer after it would be taken for
    that of the next call.
    """
    ranks = _ranks()
    try:
        return call()
    except PulseError as error:
        if ranks.rank_in_group == ranks.world_size - 1:
            raise
        _logger.warning("the last rank tells vLLM: %s", error)
        return None


def _ranks() -> Any:
    """Return vLLM's group of the ranks that hold one model."""
    from vllm.distributed.parallel_state import (  # type: ignore[import-not-found]
        get_pp_group,
        get_tp_group,
        get_world_group,
    )

    tensor, stages, world = get_tp_group(), get_pp_group(), get_world_group()
    if stages.world_size == 1:
        return tensor
    if world.world_size != tensor.world_size * stages.world_size:
        raise InvalidArgument("pipeline stages with data parallel ranks in one world are not supported")
    return world
