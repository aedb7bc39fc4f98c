"""Writer: what ``torch.distributed.checkpoint.save`` writes to, so that a checkpoint is a push.

The save plan says which boxes of which tensors a rank is to write: slices, which are pushed at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.integrations.dcp.names import WEIGHTS_ALONE, Names
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult
from pulse_registry.weights.slice import Slice


class Writer(StorageWriter):
    """Publishes a state dict as the next version: ``dcp.save(state_dict, storage_writer=Writer(registry, step))``.

    Also for ``dcp.async_save``. Every item must be a tensor; what else a checkpoint holds (an optimizer's state, a data
    loader's, a module's extra state) is refused, or left out by a ``prefix``. Where several ranks save, each pushes its
    shards by a registry that was opened with their process group. A failure reaches the caller in torch's
    ``CheckpointException``, whose ``failures`` has it by rank.

    Attributes:
        result: of the last push; None: there was none.
    """

    def __init__(
        self, registry: Registry, step: int, prefix: str = "", *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Name the step that is saved next; nothing is written yet.

        Args:
            registry: takes the push.
            step: the trainer's own label, as of ``Registry.push``.
            prefix: only items whose names begin so are published, under the rest of their names: ``"model."`` for
                ``{"model": ..., "optimizer": ...}``.
            metadata: JSON values to keep with the version.
        """
        self.result: PushResult | None = None
        self._registry, self._names = registry, Names(prefix)
        self._step, self._metadata = step, metadata
        self._items: list[WriteItem] | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether a ``checkpoint_id`` is a step: a number."""
        return os.fspath(checkpoint_id).isdecimal()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew, with the step that ``checkpoint_id`` is, if there is one.

        Raises:
            InvalidArgument: it is none.
        """
        if checkpoint_id is None:
            return
        if not self.validate_checkpoint_id(checkpoint_id):
            raise InvalidArgument(f"checkpoint_id {checkpoint_id!r} is no step: give a number, or none")
        self._step = int(os.fspath(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Begin a save."""
        self.result = None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan of the items that are published.

        Raises:
            InvalidModel: one of them is no tensor.
        """
        items = [item for item in plan.items if self._names.tensor(item.index.fqn) is not None]
        for item in items:
            if item.tensor_data is None:
                raise InvalidModel(
                    f"{item.index.fqn!r} of the state dict is no tensor: {WEIGHTS_ALONE}. Save the model's state dict "
                    "alone, or pass Writer(..., prefix='model.') to leave out what is not named so"
                )
        self._items = items if getattr(plan, "usable", True) else None
        return replace(plan, items=items)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans, each with some item of any: a rank without one takes part in the push, too.

        Raises:
            InvalidModel: they have no item.
            InvalidArgument: the ranks are not those with which the registry was opened.
        """
        if self._registry.ranks != len(plans):
            raise InvalidArgument(
                f"{len(plans)} ranks save, and the registry was opened for {self._registry.ranks}: open it with "
                "process_group= on all ranks that save; or save the full state dict on one, with no_dist=True"
            )
        items = [item for plan in plans for item in plan.items]
        known = any(not getattr(plan, "usable", True) for plan in plans)  # torch leaves out the plans that it remembers
        if not items and not known:
            raise InvalidModel(f"no item of the state dict is named {self._names.prefix!r}...: nothing would be pushed")
        return [replace(plan, storage_data=items[0]) for plan in plans] if items else plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Push what this rank holds as its part of the next version; committed when this returns.

        A plan leaves to one rank what several hold. The push deals it out itself, once it has compared them; and names
        of one memory are seen to be tied where all of them are there.

        Raises:
            PulseError: as ``Registry.push``.
        """
        items = plan.items if self._items is None else self._items
        parts = [(item, _part(item, planner.resolve_data(item))) for item in items]
        held = [(item, part) for item, part in parts if part is not None]
        if not held and isinstance(plan.storage_data, WriteItem):
            held = [(plan.storage_data, _nothing(plan.storage_data))]  # the others wait for this rank
        model: dict[str, torch.Tensor | list[Slice]] = {}
        for item, part in held:
            name = self._names.tensor(item.index.fqn) or ""
            if isinstance(part, torch.Tensor):
                model[name] = part
            else:
                model[name] = [*model.get(name, ()), part]
        self.result = self._registry.push(self._step, model, metadata=self._metadata)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Do nothing: the version was committed when it was written, and the log says what it holds."""


def _part(item: WriteItem, tensor: object) -> torch.Tensor | Slice | None:
    """Return what an item is of a model: the tensor, if it is all of it, else a slice; None: it has no cells."""
    data = item.tensor_data
    if data is None or not isinstance(tensor, torch.Tensor):
        raise InvalidModel(f"{item.index.fqn!r} of the state dict is no tensor: {WEIGHTS_ALONE}")
    if tensor.shape != data.chunk.sizes:
        raise InvalidModel(
            f"tensor {item.index.fqn!r}: the planner gave {list(tensor.shape)} cells for {list(data.chunk.sizes)}"
        )
    if tensor.shape == data.size:
        return tensor.detach()
    return Slice(tensor.detach(), of=tuple(data.size), at=tuple(data.chunk.offsets)) if tensor.numel() else None


def _nothing(item: WriteItem) -> Slice:
    """Return a slice of an item's tensor without any cell."""
    if item.tensor_data is None:
        raise InvalidModel(f"{item.index.fqn!r} of the state dict is no tensor: {WEIGHTS_ALONE}")
    tensor = torch.empty(0, dtype=item.tensor_data.properties.dtype)
    return Slice(tensor, of=tuple(item.tensor_data.size), at=0)
