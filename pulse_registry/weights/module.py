"""Tensor names of a module, without the parts that wrappers (compile, FSDP, DDP) put in between.

So a trainer that is compiled and data-parallel has the layout of a plain worker. A wrapper is known by its type, never
by a name: what a policy itself calls ``module`` stays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulse_registry.errors import InvalidModel

SPREAD_BY_ZERO_3 = (
    "is spread over ranks by DeepSpeed ZeRO-3, and has no cells here: use ZeRO-2 or FSDP2, push within "
    "deepspeed.zero.GatheredParameters, or give each rank's part as Slice(p.ds_tensor, of=p.ds_shape, at=its offset)"
)
_CHECKPOINT = "torch.distributed.algorithms._checkpoint"
_FLAT = "_fsdp_wrapped_module"
_WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod", True),
    ("torch.nn.parallel", "DistributedDataParallel", "module", True),
    ("torch.nn.parallel", "DataParallel", "module", True),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", _FLAT, False),
    (f"{_CHECKPOINT}.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module", False),
)
"""Of each wrapper: where torch has its type, the type, what it calls the module that it wraps, and whether that is in
the names of a state dict; the others leave it out themselves."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    kind: type
    inner: str
    named: bool


def module_tensors(module: Any) -> Mapping[str, Any]:
    """Return the state dict of an ``nn.Module``, without the names of wrappers.

    Raises:
        InvalidModel: two names would become one; or it is sharded by FSDP1, whose state dict is no view of its shards,
            or by DeepSpeed ZeRO-3, whose state dict has empty tensors.
    """
    wrappers = _known()
    _refuse_flat_shards(module, wrappers)
    _refuse_empty_shards(module)
    state = module.state_dict()
    kinds = tuple(wrapper.kind for wrapper in wrappers)
    if not any(isinstance(part, kinds) for part in module.modules()):
        return state  # type: ignore[no-any-return]
    named: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in state.items():
        own = _own_name(module, name, wrappers) if isinstance(name, str) else name
        if own in named:
            raise InvalidModel(
                f"tensors {given[own]!r} and {name!r} are both {own!r} once the names of wrappers are left out: rename "
                "one, or pass a mapping of names to tensors"
            )
        named[own], given[own] = value, name
    return named


def unwrapped(model: Any) -> Any:
    """Return the module below the wrappers around it; what is no wrapped module, as it is."""
    kinds = _known()
    while (wrapper := next((known for known in kinds if isinstance(model, known.kind)), None)) is not None:
        model = model._modules[wrapper.inner]
    return model


def _known() -> list[_Wrapper]:
    """Return the wrappers that can be met: those whose type is loaded."""
    found = [(getattr(sys.modules.get(home), name, None), inner, named) for home, name, inner, named in _WRAPPERS]
    return [_Wrapper(kind, inner, named) for kind, inner, named in found if kind is not None]


def _refuse_flat_shards(module: Any, wrappers: Sequence[_Wrapper]) -> None:
    """Refuse what FSDP1 has sharded, before its state dict is asked for: that gathers the whole model on every rank."""
    kind = next((wrapper.kind for wrapper in wrappers if wrapper.inner == _FLAT), None)
    if kind is None:
        return
    if any(isinstance(part, kind) and part.sharding_strategy.name != "NO_SHARD" for part in module.modules()):  # type: ignore[attr-defined]
        raise InvalidModel(
            "the module is sharded by FullyShardedDataParallel (FSDP1), whose state dict gathers the whole model on "
            "every rank. Shard it by torch.distributed.fsdp.fully_shard (FSDP2), or pass a mapping of names to a Slice "
            "of what this rank holds; or gather the state dict on all ranks, and push that from one of them"
        )


def _refuse_empty_shards(module: Any) -> None:
    """Refuse what ZeRO-3 has taken apart: parameters tell of it, and the tensors of the state dict don't."""
    for name, parameter in module.named_parameters():
        if not parameter.numel() and math.prod(getattr(parameter, "ds_shape", (0,))):
            raise InvalidModel(f"tensor {name!r} {SPREAD_BY_ZERO_3}")


def _own_name(module: Any, name: str, wrappers: Sequence[_Wrapper]) -> str:
    """Walk down the modules that a name leads through, and leave out what wrappers call theirs."""
    kept: list[str] = []
    parts = name.split(".")
    while parts and module is not None:
        part = parts[0]
        wrapper = next((known for known in wrappers if isinstance(module, known.kind)), None)
        if wrapper is not None and not wrapper.named:
            module = module._modules[wrapper.inner]
        elif part in module._modules:
            module = module._modules[part]
            if wrapper is None or part != wrapper.inner:
                kept.append(part)
            parts.pop(0)
        else:
            break  # the name of a tensor, or one that a hook made up
    return ".".join((*kept, *parts))
