"""What the hard tests share: small models as raw bytes, registries that retry without pauses, a look at the store."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

from pulse_kernels import BackendName
from pulse_registry import registry as registry_module
from pulse_registry.events import Listener
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, RunState
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.peers.peers import Peers
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.runtime import runtime as runtime_module
from pulse_registry.runtime.dependencies import Dependencies, Threads
from pulse_registry.store import RetryStore, Store
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault, FaultAction
from pulse_schemas import CommitRecord, FileSet, unseal_record
from tests.support.clock import Clock
from tests.support.records import DictStore

RUN = "run"
Model = dict[str, np.ndarray[Any, Any]]
Bits = dict[str, bytes]


@contextmanager
def without_pauses(*, retries: bool = True, snapshot_every: int = 64) -> Iterator[None]:
    """Let the registries that are made meanwhile retry at once, or not at all, and write snapshots often."""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry_module, "Dependencies", functools.partial(Dependencies, retrying=_retrying(retries)))
        patched.setattr(runtime_module, "LogWriter", functools.partial(LogWriter, snapshot_every=snapshot_every))
        yield


def quick(
    store: Store,
    *,
    retries: bool = False,
    backend: BackendName = "auto",
    device: Any = "auto",
    on_event: Listener | None = None,
    undo_share: float = 0.05,
    peers: Peers | None = None,
    host_copy: bool = False,
    **options: Any,
) -> Registry:
    """Return a registry of the run that makes each call of the store once, or again without pauses.

    It computes as users' do, with compiled loops; that these and the reference give the same bits has its own tests.
    ``options`` are of its pushes, which keep each dtype. With an ``undo_share`` of 0, every way back is by
    objects.
    """
    chosen = Options(
        push=PushOptions(**({"dtype": "keep"} | options)),
        pull=PullOptions(undo_share=undo_share, host_copy=host_copy),
        compute=ComputeOptions(backend=backend, device=device),
        on_event=on_event,
        peers=peers,
    )
    return registry_with(store, chosen, retrying=_retrying(retries))


def registry_with(store: Store, options: Options, **dependencies: Any) -> Registry:
    """Return a registry of the run for which `settle` can wait, and whose `push_thread` is known."""
    made: list[Executor] = []

    def threads(count: int, name: str) -> Executor:
        pool = Threads(count, name)
        made.extend([pool] if name == "pulse-push" else [])
        return pool

    registry = Registry(store, RUN, options, dependencies=Dependencies(threads=threads, **dependencies))
    _PUSH_THREADS[registry] = made
    return registry


_PUSH_THREADS: WeakKeyDictionary[Registry, list[Executor]] = WeakKeyDictionary()


def push_thread(registry: Registry) -> Executor:
    """Return the thread in which a registry's pushes are published, once there was one."""
    [thread] = _PUSH_THREADS[registry]
    return thread


def settle(registry: Registry) -> None:
    """Wait for what a push left to the background: the keyframe that may follow it."""
    for thread in _PUSH_THREADS[registry]:
        for _ in range(2):  # a push queues its keyframe only once it is done itself
            thread.submit(lambda: None).result()


def _retrying(retries: bool) -> Callable[[Store], Store]:
    def retrying(store: Store) -> Store:
        clock = Clock()
        return RetryStore(store, RetryPolicy(total_s=TOTAL_S if retries else 0.0, clock=clock, sleep=clock.sleep))

    return retrying


def small_model(seed: int = 0) -> Model:
    """Return a model of three widths, with a tensor of no dimension and an empty one: 61 cells."""
    rng = np.random.default_rng(seed)
    return {
        "a.weight": rng.integers(0, 2**16, (5, 8), dtype=np.uint16).view(ml_dtypes.bfloat16),
        "b.bias": rng.integers(0, 2**32, 10, dtype=np.uint32).view(np.float32),
        "c.count": np.array(int(rng.integers(0, 100)), dtype=np.int8),
        "d.none": np.empty((0, 3), np.int64),
        "e.mask": rng.integers(0, 2, 10, dtype=np.uint8),
    }


def change(model: Model, seed: int, cells: int = 3) -> None:
    """Change so many cells of each tensor, at most, in place."""
    rng = np.random.default_rng(seed)
    for array in model.values():
        flat = array.reshape(-1).view(f"u{array.itemsize}")
        if flat.size:
            at = rng.integers(0, flat.size, min(cells, flat.size))
            flat[at] += rng.integers(1, 100, len(at), dtype=np.uint8).astype(flat.dtype)


def bits(model: Mapping[str, Any]) -> Bits:
    """Return the bytes of every tensor."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in model.items()}


def copy_of(model: Model) -> Model:
    """Return the same values in other memory."""
    return {name: array.copy() for name, array in model.items()}


def garbage(model: Model, fill: int = 0xA5) -> Model:
    """Return tensors of the same names, dtypes and shapes that hold nothing of the model."""
    out = {name: np.empty_like(array) for name, array in model.items()}
    for array in out.values():
        array.reshape(-1).view(np.uint8)[:] = fill
    return out


def restored(store: Store, like: Model, version: int | str = "latest") -> Bits:
    """Return a version as a reader that knows nothing gets it."""
    into = garbage(like)
    with quick(store) as reader:
        reader.pull(version, into=into)  # type: ignore[call-overload]
    return bits(into)


def all_restored(store: Store, like: Sequence[Model]) -> list[Bits]:
    """Return the versions from 0 on, as many as ``like``, each pulled into memory that holds nothing of any."""
    found = []
    with quick(store) as reader:
        for version, model in enumerate(like):
            into = garbage(model)
            reader.pull(version, into=into)
            found.append(bits(into))
    return found


def copied(store: DictStore) -> DictStore:
    """Return a store of the same objects."""
    other = DictStore()
    other.objects = dict(store.objects)
    return other


@dataclass
class Outage:
    """Fails the n-th store call from when it was armed, and, if told so, every one after it until it is healed."""

    nth: int = 0
    action: FaultAction = "fail_before"
    lasting: bool = False
    only: str | None = None
    seen: int = 0
    fired: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)

    def arm(self, nth: int, action: FaultAction, *, lasting: bool = False, only: str | None = None) -> None:
        """Start to count calls; ``only`` those of one verb."""
        self.nth, self.action, self.lasting, self.only, self.seen, self.fired = nth, action, lasting, only, 0, 0

    def heal(self) -> bool:
        """Let every call through again; tell whether one has failed."""
        self.nth = 0
        return self.fired > 0

    def before(self, verb: str, key: str) -> bool:
        """Decide on a call, counting it."""
        self.log.append((verb, key))
        down = self.lasting and self.seen >= self.nth > 0
        counts = self.only in (None, verb)
        self.seen += counts
        due = down or (counts and self.seen == self.nth and self.action == "fail_before")
        self.fired += due
        return due

    def after(self, verb: str, key: str) -> bool:
        """Decide on the answer of the call that was counted last."""
        due = self.seen == self.nth > 0 and self.action == "fail_after" and self.only in (None, verb)
        self.fired += due
        return due


def failing(store: Store) -> tuple[FaultStore, Outage]:
    """Wrap a store in faults that can be armed and healed; calls are to come one at a time."""
    outage = Outage()
    faults = [Fault("fail_before", matches=outage.before), Fault("fail_after", matches=outage.after)]
    return FaultStore(store, faults), outage


_KINDS = tuple(
    re.compile(pattern)
    for pattern in (
        r"run/log/[0-9]{12}\.json",
        r"run/log/snapshots/[0-9]{12}\.json",
        r"run/log/segments/[0-9]{12}-[0-9a-f]{64}\.safetensors",
        r"run/head",
        r"run/clock",
        r"run/home",
        r"run/bases/[0-9a-f]{64}-[0-9]{4}",
        r"run/mirror",
        r"run/leases/[0-9A-Za-z._-]+\.json",
        r"run/layouts/[0-9a-f]{64}\.json",
        r"run/objects/patch/[0-9]{12}-[0-9]{12}-[0-9a-f]{32}(\.safetensors|/patch-head|/[0-9]{5})",
        r"run/objects/files/[0-9a-f]{64}",
        r"run/objects/keyframe/[0-9]{12}-[0-9a-f]{32}/model(-[0-9]{5}-of-[0-9]{5}\.safetensors|\.safetensors\.index\.json)",
    )
)


def state_of(store: Store) -> RunState:
    """Return the run's state as the log alone says it: snapshots and the hint are not looked at."""
    return LogReader(_WithoutHints(store), RUN).refresh()


class _WithoutHints(DictStore):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.objects = {key[4:]: store.get(key) for key in store.list("run/log/") if not key.startswith("run/log/s")}


def check_store(store: Store) -> set[str]:
    """Check every key and every object that the log names; return the keys that no record names: orphans."""
    found = list(store.list(""))
    unknown = [key for key in found if not any(kind.fullmatch(key) for kind in _KINDS)]
    assert not unknown, "every key is of a known kind"
    records = [key for key in found if re.fullmatch(r"run/log/[0-9]{12}\.json", key)]
    assert records == [f"run/{keys.record_key(seq)}" for seq in range(len(records))], "the log has no gap"
    write_ids = [unseal_record(store.get(key)).write_id for key in records]
    assert len(set(write_ids)) == len(write_ids), "no write lands twice"
    state = state_of(store)
    named = {patch.object.key: patch.object for patch in state.patches}
    for keyframe in state.keyframes:
        named |= {item.key: item for item in (keyframe.index, *keyframe.shards)}
    for key, item in named.items():
        data = store.get(f"run/{key}")
        assert (len(data), blake3(data).hexdigest()) == (item.size, item.blake3), f"{key} is what was committed"
    for version in state.versions:
        layout = f"run/layouts/{version.layout}.json"
        assert blake3(store.get(layout)).hexdigest() == version.layout
        if version.files is not None:
            files = FileSet.parse(store.get(f"run/{keys.file_key(version.files)}"))
            assert files.id == version.files
            for entry in files.files.values():
                data = store.get(f"run/{keys.file_key(entry.blake3)}")
                assert (len(data), blake3(data).hexdigest()) == (entry.size, entry.blake3)
    objects = {key for key in found if key.startswith("run/objects/") and not key.startswith(f"run/{keys.FILES}")}
    return {key for key in objects if keys.named_key(key.removeprefix("run/")) not in named}


def commits(store: Store) -> list[CommitRecord]:
    """Return the commit records that count, in order."""
    state = state_of(store)
    by_seq = [unseal_record(store.get(f"run/{keys.record_key(entry.seq)}")) for entry in state.versions]
    assert all(isinstance(record, CommitRecord) for record in by_seq)
    return by_seq  # type: ignore[return-value]


def calls_of(action: Callable[[], object], outage: Outage) -> list[tuple[str, str]]:
    """Return the store calls that an action makes."""
    outage.log.clear()
    action()
    return list(outage.log)
