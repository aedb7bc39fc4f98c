"""Trace of a loader: which cells of which tensors a model's own ``load_weights`` copies to where; nothing is copied.

The loader runs once, on tensors that have a shape and a dtype and no memory. Its views of them are strided, so are the
places that it copies to, and a copy is seen before it is made. So fused rows, shards, renames, transposed weights and
experts are known as the model itself knows them, and no table names architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pulse_registry.integrations.loader.region import Region

Load = Callable[[Iterable[tuple[str, torch.Tensor]]], object]
"""A model's ``load_weights``: takes names and tensors of a checkpoint."""

_aten: Final = torch.ops.aten
_MOVES: Final = frozenset({_aten._to_copy.default, _aten.clone.default})
"""What gives the same cells in the same order elsewhere, where the dtype stays."""
_MOST_FAULTS: Final = 64


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy that a loader makes of a tensor.

    Attributes:
        region: the tensor's cells.
        live: where they go.
        place: what that is a part of: a parameter's or buffer's name.
    """

    region: Region
    live: torch.Tensor
    place: str


@dataclass(slots=True)
class Traced:
    """What a loader does with each tensor.

    Attributes:
        copies: by name, what is copied as it is.
        faults: by name, why some of its cells can't be written in place.
    """

    copies: dict[str, list[Copy]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def trace(model: torch.nn.Module, load: Load, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> Traced:
    """Run a model's loader on tensors that hold nothing; the model's cells and their addresses stay as they are.

    A tensor that the loader raises for is left out, with its message, and the others are traced again.

    Args:
        model: its parameters and buffers are what is live.
        load: the loader, such as ``model.load_weights``.
        tensors: names, shapes and dtypes of the checkpoint.

    Raises:
        Exception: what the loader raises for more than 64 tensors.
    """
    wrong: dict[str, str] = {}
    while True:
        tracer = _Tracer(model, tensors, wrong)
        try:
            with tracer.addresses_kept(), torch.no_grad(), tracer:
                load(tracer.feed())
        except Exception as error:  # whatever a loader raises
            if tracer.last in wrong or len(wrong) == _MOST_FAULTS:
                raise
            wrong[tracer.last] = f"the loader raises {type(error).__name__}: {error}"
            continue
        tracer.found.faults.update(wrong)
        return tracer.found


class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation of a loader, and keeps it from writing to what is live."""

    def __init__(
        self,
        model: torch.nn.Module,
        tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        without: Collection[str],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = Traced()
        self.last = ""
        self._model = model
        self._live = {_storage(tensor): name for name, tensor in _held(model)}
        self._fakes = {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, (shape, dtype) in tensors.items()
            if name not in without
        }
        self._names = {_storage(fake): {name} for name, fake in self._fakes.items()}
        self._computed: dict[int, tuple[torch.Tensor, set[str], str]] = {}  # kept, so that no storage is used twice

    def feed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, and remember at which one the loader is."""
        for name, fake in self._fakes.items():
            self.last = name
            yield name, fake

    @contextmanager
    def addresses_kept(self) -> Iterator[None]:
        """Give parameters back the memory that a loader took from them."""
        held = [(name, tensor, tensor.data) for name, tensor in _held(self._model)]
        try:
            yield
        finally:
            for name, tensor, data in held:
                if _storage(tensor) != _storage(data) or tensor.data_ptr() != data.data_ptr():
                    for one in self._read(tensor):
                        self._fault(one, f"the loader puts it in the place of {name}, whose address would change")
                    tensor.data = data

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.copy_.default:
            self._copy(args[0], args[1])
            if _storage(args[0]) in self._live or self._read(args[1:]):
                return args[0]
            return func(*args, **kwargs)
        written, read = _written(func, args, kwargs), self._read((args, kwargs))
        if written is not None and _storage(written) in self._live:
            for name in read:
                self._fault(name, f"{func} writes what it makes of it to {self._live[_storage(written)]}")
            return written
        if written is None and func in _MOVES and read and kwargs.get("dtype") in (None, args[0].dtype):
            return args[0]
        made = func(*args, **kwargs)
        for tensor in _tensors(made):
            if read and (written is not None or not self._known(tensor)):
                self._compute(tensor, read, str(func))
        return made

    def _copy(self, live: torch.Tensor, source: torch.Tensor) -> None:
        """Take note of one copy."""
        place = self._live.get(_storage(live))
        computed = self._computed.get(_storage(source))
        if place is None:
            self._compute(live, self._read(source), "a copy in between")
            return
        if computed is not None:
            for name in computed[1]:
                self._fault(name, f"the loader computes with it ({computed[2]}), and writes the result to {place}")
            return
        for name in self._names.get(_storage(source), ()):
            if source.dtype != live.dtype:
                self._fault(name, f"the loader casts it from {source.dtype} to {live.dtype}, into {place}")
                continue
            seen = source.expand(live.shape)
            region = Region(int(seen.storage_offset()), tuple(seen.shape), seen.stride())
            self.found.copies.setdefault(name, []).append(Copy(region, live.detach(), place))

    def _known(self, tensor: torch.Tensor) -> bool:
        return _storage(tensor) in self._names or _storage(tensor) in self._computed

    def _read(self, values: Any) -> set[str]:
        """Return the names of the tensors that an operation reads, as they are or computed with."""
        found: set[str] = set()
        for tensor in _tensors(values):
            found |= self._names.get(_storage(tensor), set())
            if (computed := self._computed.get(_storage(tensor))) is not None:
                found |= computed[1]
        return found

    def _compute(self, tensor: torch.Tensor, names: set[str], how: str) -> None:
        if names:
            before = self._computed.get(_storage(tensor), (tensor, set(), how))
            self._computed[_storage(tensor)] = (before[0], before[1] | names, how)

    def _fault(self, name: str, why: str) -> None:
        self.found.faults.setdefault(name, why)


def _held(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what is live: parameters and buffers, by their names."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _written(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """Return the tensor that an operation writes to."""
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[k] if k < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                return value
    return None
