"""Adapters: PEFT's layers in a trained model, merged for a push and taken out again, or told apart from the base.

PEFT is met where its modules are loaded, and is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from pulse_registry.errors import InvalidModel
from pulse_registry.weights.module import module_tensors

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""What wrappers inside of a model put into the paths of its modules, and ``module_tensors`` leaves out."""
_OWN = "push the adapter as a run of its own: PulseCallback(adapters='own')"


def is_adapted(model: torch.nn.Module) -> bool:
    """Whether a model has layers of PEFT's."""
    kinds = _kinds("BaseTunerLayer", "AuxiliaryTrainingWrapper", "PeftModel")
    return bool(kinds) and any(isinstance(part, kinds) for part in model.modules())


def base_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model that adapters were put into, without PEFT's own around it."""
    if isinstance(model, _kinds("PeftModel")):
        return model.get_base_model()  # type: ignore[operator, no-any-return]
    return model


@contextmanager
def merged(model: torch.nn.Module) -> Iterator[None]:
    """Merge the active adapters into the base weights for a while; these are what they were afterwards, bit for bit.

    PEFT takes an adapter out again by arithmetic, which rounds: so the base weights are kept meanwhile, in host memory.
    On ranks that share a model this is a collective, as PEFT's own merge is.

    Raises:
        InvalidModel: the adapter is no change of weights (a prompt), or its base is quantised.
    """
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InvalidModel(f"the adapter is a prompt, which can't be merged into weights: {_OWN}")
    layers = [part for part in model.modules() if isinstance(part, _kinds("BaseTunerLayer")) and not part.merged]
    kept = _keep(layers)
    try:
        for layer in layers:
            layer.merge()  # type: ignore[operator]
        yield
    finally:
        try:
            for layer in layers:
                if layer.merged:
                    layer.unmerge()  # type: ignore[operator]
        finally:
            for parameter, memory, cells in kept:
                memory.copy_(cells)
                parameter.data = memory


def base_tensors(model: torch.nn.Module) -> dict[str, Any]:
    """Return the tensors of the base model under the names that they had before PEFT wrapped its modules."""
    base = base_model(model)
    layers = list(_layers(base))
    named = {}
    for name, tensor in module_tensors(base).items():
        own: str | None = name
        for path, keep in layers:
            if own is not None and own.startswith(path):
                own = path + own[len(path) + len(keep) :] if own.startswith(path + keep) else None
        if own is not None:
            named[own] = tensor
    return named


def adapter_tensors(model: torch.nn.Module) -> dict[str, Any]:
    """Return the active adapter's tensors under the names that its checkpoint has (``adapter_model.safetensors``).

    Raises:
        InvalidModel: this is no ``PeftModel``.
    """
    if not isinstance(model, _kinds("PeftModel")):
        raise InvalidModel(f"a {type(model).__name__} has no adapter to push: it is no PeftModel")
    state: Mapping[str, Any] = sys.modules["peft"].get_peft_model_state_dict(
        model, state_dict=dict(module_tensors(model)), adapter_name=model.active_adapter, save_embedding_layers=False
    )
    return dict(state)


def _layers(base: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Yield of each of PEFT's modules the prefix of its names, and what follows it in the base's; inner ones first."""
    found = []
    for path, part in base.named_modules():
        keep = _kept_name(part)
        if keep is not None:
            for wrapper in _WRAPPERS:
                path = path.replace(wrapper, "")
            found.append((f"{path}." if path else "", keep))
    yield from reversed(found)


def _kept_name(part: torch.nn.Module) -> str | None:
    if isinstance(part, _kinds("BaseTunerLayer")):
        return "base_layer."
    if isinstance(part, _kinds("TrainableTokensWrapper")):
        return "token_adapter."
    if isinstance(part, _kinds("ModulesToSaveWrapper")):
        active = part.active_adapters
        return f"modules_to_save.{active[0]}." if active else "original_module."  # type: ignore[index]
    return None


def _keep(layers: list[torch.nn.Module]) -> list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]]:
    """Return the base parameters of layers, their memory, and a copy of their cells in host memory.

    Raises:
        InvalidModel: one is quantised: to merge would round it, and could not be taken back.
    """
    kept: dict[int, tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]] = {}
    for layer in layers:
        for name, parameter in layer.get_base_layer().named_parameters():  # type: ignore[operator]
            if not parameter.dtype.is_floating_point or parameter.dtype.itemsize < 2:
                raise InvalidModel(
                    f"parameter {name!r} below an adapter is {parameter.dtype}: a quantised base can't take the "
                    f"adapter in without rounding. Train over a BF16 base, or {_OWN}"
                )
            kept.setdefault(id(parameter), (parameter, parameter.data, parameter.data.to("cpu", copy=True)))
    return list(kept.values())


def _kinds(*names: str) -> tuple[type, ...]:
    """Return those of PEFT's types that are loaded."""
    homes = [sys.modules.get(home) for home in ("peft", "peft.tuners.tuners_utils", "peft.utils.other")]
    return tuple({kind for home in homes for name in names if isinstance(kind := getattr(home, name, None), type)})
