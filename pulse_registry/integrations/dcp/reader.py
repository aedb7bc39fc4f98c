"""Reader: a version of a run as what ``torch.distributed.checkpoint.load`` reads from.

The load plan says which boxes of which tensors a rank wants, and where they are to go: slices, which are pulled at
once. So only the groups and pieces that meet them are fetched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties
from torch.distributed.checkpoint.metadata import TensorStorageMetadata as TensorMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from pulse_registry.errors import BaseMismatch, InvalidArgument, LayoutMismatch
from pulse_registry.integrations.dcp.names import WEIGHTS_ALONE, Names
from pulse_registry.registry import Registry
from pulse_registry.results import PullResult, VersionName
from pulse_registry.weights.slice import Slice
from pulse_registry.weights.tensors import torch_dtype
from pulse_schemas import Layout, Tensor


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The version that a rank found, and goes by until the coordinator says which one all take."""

    version: int
    layout: str


class Reader(StorageReader):
    """Reads a version for ``dcp.load(state_dict, storage_reader=Reader(registry))``, bit for bit.

    The state dict may hold plain tensors and DTensors, sharded in any way, of all tensors of the version or of some.
    All ranks take the version that the coordinator finds. Each rank fetches what its shards need; tensors that already
    hold a version of the run, and are unchanged since, take patches only. Of a registry that was opened with a process
    group, the weights of all ranks change, or of none; otherwise each rank's do or do not.

    A tensor of another dtype is refused, but for F32 in host memory that takes a BF16 or F16 version: each number stays
    the same. A failure reaches the caller in torch's ``CheckpointException``, whose ``failures`` has it by rank.

    Attributes:
        result: of this rank's last load; None: there was none, or it had nothing to read.
    """

    def __init__(self, registry: Registry, version: VersionName = "latest", *, prefix: str = "") -> None:
        """Name a version; nothing is read yet.

        Args:
            registry: holds it.
            version: a number, a tag or ``"latest"``.
            prefix: stands in the state dict before the name of each tensor of the version: ``"model."`` for
                ``{"model": model.state_dict()}``.
        """
        self.result: PullResult | None = None
        self._registry, self._names = registry, Names(prefix)
        self._version: VersionName = version
        self._layout: tuple[_Chosen, Layout] | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether a ``checkpoint_id`` names a version: a number, a tag or ``latest``, and no path."""
        return bool(os.fspath(checkpoint_id)) and os.sep not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew, with the version that ``checkpoint_id`` names, if there is one.

        Raises:
            InvalidArgument: it names none.
        """
        self._layout = None
        if checkpoint_id is None:
            return
        if not self.validate_checkpoint_id(checkpoint_id):
            raise InvalidArgument(f"checkpoint_id {checkpoint_id!r} names no version: give a number, a tag or 'latest'")
        name = os.fspath(checkpoint_id)
        self._version = int(name) if name.isdecimal() else name

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return what the version holds: each tensor, and each name that is tied to one, as one chunk.

        Raises:
            NotFound: there is no such version.
            InvalidArgument: torch is older than a tensor's dtype.
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: the log can't be read.
        """
        layout = self._found()[1]
        named = {self._names.item(name): _metadata(tensor) for name, tensor in _tensors(layout).items()}
        return Metadata(state_dict_metadata=dict(named), planner_data={item: (item,) for item in named})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Begin a load by what ``read_metadata`` returned."""
        self.result = None

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with the version that this rank found.

        Raises:
            LayoutMismatch: the version lacks an item.
        """
        chosen, layout = self._found()
        tensors = _tensors(layout)
        for item in plan.items:
            name = self._names.tensor(item.storage_index.fqn)
            if item.type is not LoadItemType.TENSOR or name not in tensors:
                raise LayoutMismatch(
                    f"{item.storage_index.fqn!r} of the state dict is no tensor of version {chosen.version} of run "
                    f"{self._registry.run!r}: {WEIGHTS_ALONE}; load the rest from a checkpoint of your own"
                )
        return replace(plan, storage_data=chosen)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans with the coordinator's version, on all ranks.

        Raises:
            LayoutMismatch: another rank found another version, of other tensors.
            InvalidArgument: the ranks are not those with which the registry was opened.
        """
        chosen, _ = self._found()
        if self._registry.ranks not in (1, len(plans)):
            raise InvalidArgument(
                f"the registry was opened for {self._registry.ranks} ranks, and {len(plans)} load: pass "
                "torch.distributed.checkpoint.load the same process_group"
            )
        for rank, plan in enumerate(plans):
            found = plan.storage_data
            if isinstance(found, _Chosen) and found.layout != chosen.layout:
                raise LayoutMismatch(
                    f"rank {rank} found version {found.version} of run {self._registry.run!r}, whose tensors are not "
                    f"those of version {chosen.version}: load a version by its number"
                )
        return [replace(plan, storage_data=chosen) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Pull what the plan asks for into the tensors that the planner gives; done when this returns.

        Raises:
            LayoutMismatch, InvalidModel: a tensor can't take what it is to hold.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the version can't be read. Nothing was changed.
        """
        found, layout = self._found()
        chosen = plan.storage_data if isinstance(plan.storage_data, _Chosen) else found
        targets = [(item, planner.resolve_tensor(item)) for item in plan.items]
        self.result = self._pull(chosen.version, layout, self._slices(layout, targets))
        for item, target in targets:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _found(self) -> tuple[_Chosen, Layout]:
        if self._layout is None:
            registry = self._registry
            version = registry.version(self._version)
            self._layout = _Chosen(version.version, version.layout), registry.layout(version.version)
        return self._layout

    def _slices(self, layout: Layout, targets: Sequence[tuple[ReadItem, torch.Tensor]]) -> dict[str, list[Slice]]:
        """Return what the items are, by tensor; those without cells are left out."""
        tensors, found = _tensors(layout), dict[str, list[Slice]]()
        for item, target in targets:
            name = self._names.tensor(item.storage_index.fqn) or ""
            if target.shape != item.lengths:
                raise LayoutMismatch(
                    f"tensor {name!r}: the planner gave {list(target.shape)} cells for {list(item.lengths)}"
                )
            if target.numel():
                part = Slice(target.detach(), of=tensors[name].shape, at=tuple(item.storage_offsets))
                found.setdefault(name, []).append(part)
        return found

    def _pull(self, version: int, layout: Layout, slices: dict[str, list[Slice]]) -> PullResult | None:
        registry = self._registry
        if not slices:
            if registry.ranks == 1:
                return None
            slices = _nothing(layout.tensors[0])  # the others wait for this rank
        partial = any(tensor.name not in slices for tensor in layout.tensors)
        try:
            return registry.pull(version, into=slices, cast=True, check="all", partial=partial)
        except BaseMismatch:  # they were trained on since they were pulled, perhaps: a load takes what it finds
            return registry.pull(version, into=slices, cast=True, replace=True, partial=partial)


def _tensors(layout: Layout) -> dict[str, Tensor]:
    """Return the tensors of a layout by all their names."""
    tensors = {tensor.name: tensor for tensor in layout.tensors}
    return tensors | {alias: tensors[name] for alias, name in layout.tied.items()}


def _metadata(tensor: Tensor) -> TensorMetadata:
    size = torch.Size(tensor.shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return TensorMetadata(properties=TensorProperties(dtype=torch_dtype(tensor.dtype)), size=size, chunks=[whole])


def _nothing(tensor: Tensor) -> dict[str, list[Slice]]:
    """Return a slice of a tensor without any cell."""
    return {tensor.name: [Slice(torch.empty(0, dtype=torch_dtype(tensor.dtype)), of=tensor.shape, at=0)]}
