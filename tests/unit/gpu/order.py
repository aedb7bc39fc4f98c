"""A GPU's streams where there is no GPU: each call is done at once, and whoever did not wait for another is told of.

Every stream counts what it was given, and knows how far it has waited for the others (vector clocks): of two uses of
one memory, one a write, the second has to come after the first on its stream or by what it has waited for. Memory goes
back to the stream that allocated it: whoever else has used it must be done, or recorded.
"""

from __future__ import annotations

import bisect
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

from pulse_registry.gpu import stream as device_stream
from pulse_registry.gpu import stream_order

ADDRESSES = {"address", "live", "shadow", "source", "target"}
"""What kernels call tables of addresses: what they point at is read."""
WRITTEN = {"scatter_cells": {"address"}, "copy_tiles": {"target"}, "write_heads": {"data"}, "encode_lanes": {"words"}}
"""Or written; with what the source of a kernel does not show."""
Known = dict[str, int]

_TO = torch.ops.aten._to_copy.default
_WAITS = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default
"""What the host waits for, as it does for a copy from memory that is not pinned (``_TO``)."""


class Stream:
    """Work in order; ``known`` is how much of each stream is done before what comes next."""

    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name, self.known = gpu, name, Known()

    def wait_stream(self, other: Stream) -> None:
        self.learn(other.known)

    def wait_event(self, event: Known) -> None:
        self.learn(event)

    def record_event(self) -> Known:
        return dict(self.known)

    def synchronize(self) -> None:
        self.gpu.host = joined(self.gpu.host, self.known)

    def learn(self, known: Known) -> None:
        self.known = joined(self.known, known)


def joined(one: Known, other: Known) -> Known:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


@dataclass(frozen=True)
class Use:
    stream: str
    tick: int
    write: bool
    what: str

    def __str__(self) -> str:
        return f"{self.what} {'writes' if self.write else 'reads'} it on {self.stream}"


@dataclass
class Block:
    """Memory, and what has used it since it was last written."""

    owner: Stream
    nbytes: int
    uses: list[Use] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)


class Gpu:
    """Streams of one device, and the memory that they use.

    Attributes:
        faults: what did not wait.
        host: how much of each stream the host has waited for.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.host = Known()
        self._streams: dict[str, Stream] = {}
        self._blocks: dict[int, Block] = {}
        self._of_host: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._here = threading.local()
        self._lock = threading.RLock()
        self._default = self.stream("default")

    def stream(self, name: str = "") -> Stream:
        with self._lock:
            made = Stream(self, name or f"stream {len(self._streams)}")
            return self._streams.setdefault(made.name, made)

    def current(self, device: object = None) -> Stream:
        stream: Stream = getattr(self._here, "stream", self._default)
        return stream

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._here.stream = self.current(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def synchronize(self, device: object = None) -> None:
        for stream in self._streams.values():
            stream.synchronize()

    def enter(self) -> None:
        """Watch this thread, to its end."""
        Watch(self).__enter__()

    def threads(self, count: int, name: str) -> Executor:
        return ThreadPoolExecutor(count, name, initializer=self.enter)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Do what a GPU would do later."""
        before, self._here.unseen = self.unwatched, True
        try:
            yield
        finally:
            self._here.unseen = before

    @property
    def unwatched(self) -> bool:
        return getattr(self._here, "unseen", False)

    def elsewhere(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns in another thread, whose stream is the default one."""
        with ThreadPoolExecutor(1, initializer=self.enter) as pool:
            return pool.submit(call).result()

    def host_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        self._of_host.add(tensor.untyped_storage())
        return tensor

    def is_of_host(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._of_host

    def record(self, tensor: torch.Tensor, stream: Stream) -> None:
        if (block := self._block(tensor.untyped_storage())) is not None:
            block.recorded.add(stream.name)

    def ran(self, what: str, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]) -> None:
        """Note an operation on the current stream."""
        with self._lock:
            stream = self.current()
            stream.learn(self.host)
            tick = stream.known[stream.name] = stream.known.get(stream.name, 0) + 1
            written = {t.untyped_storage() for t in writes}
            for storage in {t.untyped_storage() for t in reads} | written:
                block = self._block(storage)
                if block is not None:
                    self._use(block, stream, Use(stream.name, tick, storage in written, what))

    def launched(self, kernel: Any, given: dict[str, Any]) -> None:
        """Note a launch, and what its tables of addresses point at."""
        function = kernel.fn
        stores = set(re.findall(r"tl\.(?:store|atomic_\w+)\(\s*(\w+)", inspect.getsource(function)))
        stores |= WRITTEN.get(function.__name__, set())
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        reads, writes = (
            [t for n, t in tensors.items() if n not in stores],
            [t for n, t in tensors.items() if n in stores],
        )
        with self._lock:
            self.ran(function.__name__, reads, writes)
            stream = self.current()
            for name in ADDRESSES & tensors.keys():
                use = Use(stream.name, stream.known[stream.name], name in stores, function.__name__)
                for block in self._at(tensors[name]):
                    self._use(block, stream, use)

    def _at(self, addresses: torch.Tensor) -> list[Block]:
        begins = sorted(self._blocks)
        places = {bisect.bisect(begins, address) - 1 for address in addresses.numpy().tolist()}
        return [self._blocks[begins[place]] for place in places]

    def _block(self, storage: torch.UntypedStorage) -> Block | None:
        address = storage.data_ptr()
        if not address or storage in self._of_host:
            return None
        if address not in self._blocks:
            self._blocks[address] = Block(self.current(), storage.nbytes())
            weakref.finalize(storage, self._freed, address)
        return self._blocks[address]

    def _use(self, block: Block, stream: Stream, use: Use) -> None:
        for before in block.uses:
            if (before.write or use.write) and stream.known.get(before.stream, 0) < before.tick:
                self.faults.append(f"{use}, and has not waited: {before}")
        if use.write:
            block.uses.clear()
        block.uses.append(use)

    def _freed(self, address: int) -> None:
        with self._lock:
            block = self._blocks.pop(address)
            waited = joined(self.host, block.owner.known)
            for name in block.recorded:
                waited = joined(waited, self._streams[name].known)
            for use in block.uses:
                if waited.get(use.stream, 0) < use.tick and use.stream != block.owner.name:
                    self.faults.append(f"{use}, and it was given back to {block.owner.name}")


class Watch(TorchDispatchMode):
    """Tells a Gpu of torch's own operations."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.gpu.unwatched:
            return result
        given = [*zip(func._schema.arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in func._schema.arguments if kwargs and a.name in kwargs]
        reads = [t for a, value in given for t in tensors_in(value) if a.alias_info is None]
        writes = [
            t for a, value in given for t in tensors_in(value) if a.alias_info is not None and a.alias_info.is_write
        ]
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view:
            self.gpu.ran(str(func), reads, [*writes, *tensors_in(result)])
        from_host = func is _TO and self.gpu.is_of_host(args[0]) and not (kwargs or {}).get("non_blocking")
        if func in _WAITS or from_host:
            self.gpu.current().synchronize()
        return result


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors_in(part)] if isinstance(value, (list, tuple)) else []


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Let lanes have streams in the block, and watch this thread."""
    gpu = Gpu()
    launch = InterpretedFunction.run

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        gpu.launched(self, dict(zip(self.arg_names, arguments, strict=False)) | named)
        with gpu.unseen():
            return launch(self, *arguments, **named)

    def waiting(name: str) -> Any:
        plain = getattr(torch.Tensor, name)

        def call(self: torch.Tensor, *arguments: Any) -> Any:
            if not gpu.unwatched:
                gpu.ran(name, [self], [])
                gpu.current().synchronize()
            return plain(self, *arguments)

        return call

    with monkeypatch.context() as patched:
        for module in (device_stream, stream_order):
            patched.setattr(module, "has_streams", lambda device: True)
        patched.setattr(torch.cuda, "Stream", lambda device: gpu.stream())
        patched.setattr(torch.cuda, "current_stream", gpu.current)
        patched.setattr(torch.cuda, "stream", gpu.on)
        patched.setattr(torch.cuda, "device", lambda device: nullcontext())
        patched.setattr(torch.cuda, "synchronize", gpu.synchronize)
        patched.setattr(torch.Tensor, "record_stream", lambda tensor, stream: gpu.record(tensor, stream))
        for name in ("cpu", "tolist"):
            patched.setattr(torch.Tensor, name, waiting(name))
        from_numpy = torch.from_numpy
        patched.setattr(torch, "from_numpy", lambda array: gpu.host_memory(from_numpy(array)))
        patched.setattr(InterpretedFunction, "run", run)
        with Watch(gpu):
            yield gpu
