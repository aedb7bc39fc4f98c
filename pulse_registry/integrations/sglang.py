"""SGLang: the function for ``--custom-weight-loader``, which brings a model's live parameters to a version of a run.

SGLang calls it in each worker, by ``/update_weights_from_tensor``, with one small tensor that says what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.loader.engine_weights import EngineWeights
from pulse_registry.opening import open as open_run
from pulse_registry.options import PullOptions
from pulse_registry.results import VersionName
from pulse_schemas import faults

CONTROL: Final = "pulse"
"""The name of the tensor that says what to do: uint8, of JSON."""
_KEPT: Final = "_pulse_weights"
"""Where a model keeps what follows the run for it, so that the two end together."""


class Control(BaseModel):
    """What a call is to do.

    Attributes:
        url, run: the registry's root, and the run in it. Keys, tokens and pins come from the environment.
        version: to go to: a number, a tag, or ``latest``. Where several ranks hold the model, give a number.
        loaded: what the engine was started with; at the first call all live cells are compared with it.
        phase: ``stage`` begins to fetch it, in a thread, while the engine serves; ``apply`` changes the weights to
            what was staged; ``pull`` does both.
        name: of the engine, for its lease and its reports.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    run: str
    version: int | str
    loaded: int | str = 0
    phase: Literal["stage", "apply", "pull"] = "pull"
    name: str | None = None

    def tensor(self) -> torch.Tensor:
        """Return the tensor that carries it to the workers."""
        return torch.frombuffer(bytearray(self.model_dump_json().encode()), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a model follows, and by what."""

    run: tuple[str, str]
    weights: EngineWeights


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Do what the control tensor says: ``--custom-weight-loader pulse_registry.integrations.sglang.load``.

    Addresses do not move. SGLang flushes its cache after it, as it is asked to.

    Raises:
        InvalidArgument: there is no control tensor, or another tensor beside it; or it follows another run.
        LayoutMismatch, BaseMismatch: the model can't be changed in place, or is not ``loaded``; by name of the tensors.
        PulseError: the version can't be had. The weights are what they were, on all ranks.
    """
    control = _read(list(named_tensors))
    weights = _following(model, control)
    version: VersionName = control.version
    if control.phase != "apply":
        weights.stage(version)
    if control.phase != "stage":
        weights.apply(version)


def serves(model: torch.nn.Module) -> int | None:
    """Return the version that a model's parameters hold; None: it was never told to follow a run."""
    kept = model.__dict__.get(_KEPT)
    return None if kept is None else kept.weights.version


def _read(tensors: list[tuple[str, torch.Tensor]]) -> Control:
    if [name for name, _ in tensors] != [CONTROL]:
        found = ", ".join(repr(name) for name, _ in tensors[:3]) or "nothing"
        raise InvalidArgument(f"the tensors are {found}; this loader takes one, {CONTROL!r}, that says what to pull")
    [(_, tensor)] = tensors
    try:
        return Control.model_validate_json(bytes(tensor.cpu().to(torch.uint8).tolist()))
    except ValidationError as error:
        raise InvalidArgument(f"tensor {CONTROL!r} says {faults(error, 'control')}") from error


def _following(model: torch.nn.Module, control: Control) -> EngineWeights:
    asked = control.url, control.run
    kept: _Kept | None = model.__dict__.get(_KEPT)
    if kept is None:
        group = _group()
        peers = None
        if group is not None:
            from pulse_registry.peers.torch_peers import TorchPeers

            peers = TorchPeers(group)
        pull = PullOptions(host_copy=True)
        opening = partial(
            open_run, control.url, run=control.run, name=control.name, create=False, pull=pull, process_group=group
        )
        kept = _Kept(asked, EngineWeights(opening, model, control.loaded, peers))
        model.__dict__[_KEPT] = kept
    if kept.run != asked:
        raise InvalidArgument(
            f"the model follows run {kept.run[1]!r} of {kept.run[0]}: start the engine anew for another"
        )
    return kept.weights


def _group() -> Any:
    """Return the process group, on CPUs, of the ranks that hold one model; None: one rank holds all of it."""
    state: Any = sys.modules.get("sglang.srt.distributed.parallel_state")
    if state is None:
        return None
    tensor, stages = state.get_tp_group(), state.get_pp_group()
    if stages.world_size > 1:
        raise InvalidArgument("pipeline stages are not supported: load versions from disk (pulse follow)")
    return tensor.cpu_group if tensor.world_size > 1 else None
