"""A run in a folder, of which every file of an object changes at the k-th read of it: flipped in place, or cut short.

``python -m tests.scenarios.faults.changing_files STRIDE`` cuts files in a process of its own: who reads one that is
mapped dies of it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

from pulse_registry.cache import CacheFolder, partial_object
from pulse_registry.cache.store import CachedStore
from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format.keyframe import KeyframeForm, write_keyframe
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.pull import fetch, group_stream
from pulse_registry.push import keyframe as push_keyframe
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore, Store
from pulse_schemas import KeyframeRef, ObjectRef
from tests.support.groups import small_groups
from tests.support.registries import RUN, Bits, Model, bits, change, garbage, quick

Kind = Literal["raw", "exponents", "older"]
Strike = Callable[[Path], object]
KINDS: Final[tuple[Kind, ...]] = ("raw", "exponents", "older")
"""Of keyframes: plain ones, coded ones, and those whose index is one without pieces."""
CACHES: Final = ("none", "cold", "warm")
STEPS: Final = 3


def a_model() -> Model:
    rng = np.random.default_rng(5)
    return {
        "a": rng.normal(0, 0.02, (60, 50)).astype(ml_dtypes.bfloat16),
        "b": rng.normal(0, 1.0, 1500).astype(np.float32),
        "c": rng.integers(0, 99, 500, dtype=np.int8),
    }


def flip(path: Path) -> None:
    """Change a byte in every 64, in place: whoever has the file open or mapped sees it."""
    with path.open("r+b") as file:
        for at in range(3, path.stat().st_size, 64):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))


def cut(path: Path) -> None:
    """Take half of the file away."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Take all of the file away."""
    os.truncate(path, 0)


@contextmanager
def small_pieces() -> Iterator[None]:
    """Let a model of 12 KB be several groups, pieces, shards and ranges."""
    with small_groups(2048), pytest.MonkeyPatch.context() as patched:
        patched.setattr(partial_object, "RANGE_BYTES", 4096)
        patched.setattr(fetch, "RANGE_BYTES", 1024)
        patched.setattr(group_stream, "RANGE_BYTES", 1024)
        patched.setattr(fetch, "_LEAST_BEGINNING", 64)
        patched.setattr(fetch, "_BEGINNINGS_BYTES", 64)
        patched.setattr(fetch, "PIECE_BYTES", 4096)
        yield


def a_run(folder: Path, kind: Kind) -> Bits:
    """Push a keyframe and patches; return the newest state."""
    model = a_model()
    form = functools.partial(KeyframeForm, shard_bytes=7000, piece_bytes=4096)
    coding = "exponents" if kind == "exponents" else "raw"
    options: dict[str, Any] = {"keyframe_share": 1e9, "keyframe_coding": coding}
    with small_pieces(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(push_keyframe, "KeyframeForm", form)
        if kind == "older":
            patched.setattr(push_keyframe, "write_keyframe", functools.partial(_without_pieces, write_keyframe))
        with quick(FileStore(folder), **options) as registry:
            for step in range(STEPS):
                registry.push(step, model)
                wanted = bits(model)
                change(model, step, cells=400)
    return wanted


def _without_pieces(write: Callable[..., KeyframeRef], store: Store, *what: Any, **how: Any) -> KeyframeRef:
    ref = write(store, *what, **how)
    index = json.loads(store.get(ref.index.key))
    del index["metadata"]["pulse"]["pieces"]
    data = json.dumps(index).encode()
    store.put(ref.index.key, data)
    digest = blake3(data).hexdigest()
    return ref.model_copy(update={"index": ObjectRef(key=ref.index.key, size=len(data), blake3=digest)})


class Reads:
    """Counts the reads of objects' bytes, from files of the store or of the cache, and acts after the k-th of them."""

    def __init__(self, k: int | None, act: Callable[[], None]) -> None:
        self.seen = 0
        self._k, self._act, self._lock = k, act, threading.Lock()

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for store in (FileStore, CachedStore):
                for name in ("get", "get_into"):
                    patched.setattr(store, name, self._counted(getattr(store, name)))
            yield

    def _counted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def counted(store: Any, key: str, *rest: Any, **named: Any) -> Any:
            answer = read(store, key, *rest, **named)
            if "objects/" in key:
                with self._lock:
                    self.seen += 1
                    if self.seen == self._k:
                        self._act()
            return answer

        return counted


class World:
    """A run, and what lies in a cache that has read it; copies of them are struck."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder
        self.wanted = a_run(folder / "run", kind)
        self.now = folder / "now"
        self.renew("warm")
        assert self.pull() == "pulled"
        shutil.copytree(self.now / "cache", folder / "cache")

    def renew(self, cache: str) -> None:
        """Make new copies to strike."""
        shutil.rmtree(self.now, ignore_errors=True)
        shutil.copytree(self.folder / "run", self.now / "run")
        if cache == "warm" and (self.folder / "cache").exists():
            shutil.copytree(self.folder / "cache", self.now / "cache")
        self._cache = None if cache == "none" else CacheFolder(self.now / "cache")

    def strike(self, how: Strike) -> None:
        """Change all files of objects, of the store and of the cache."""
        files = [*(self.now / "run" / RUN / "objects").rglob("*.safetensors"), *(self.now / "cache").glob("?" * 64)]
        for path in files:
            how(path)

    def registry(self) -> Registry:
        options = PushOptions(dtype="keep")
        return Registry(
            FileStore(self.now / "run"),
            RUN,
            Options(push=options, cache=self._cache, compute=ComputeOptions(backend="reference")),
        )

    def pull(self, reads: Reads | None = None, *, load: bool = False) -> str:
        """Pull as a new worker, or into new tensors: what is committed, or nothing and a typed error; return which."""
        into = garbage(a_model())
        before = bits(into)
        with ExitStack() as stack:
            stack.enter_context(small_pieces())
            if reads is not None:
                stack.enter_context(reads.watched())
            registry = stack.enter_context(self.registry())
            try:
                if load:
                    into = registry.load(framework="numpy")
                else:
                    registry.pull(into=into)
            except (CorruptObject, NotFound):
                assert bits(into) == before, "a pull that failed has changed the weights"
                return "refused"
        assert bits(into) == self.wanted, "cells that nobody has committed"
        return "pulled"

    def pull_at_reads(self, cache: str, how: Strike, stride: int, *, load: bool = False) -> Counter[str]:
        """Pull and change the files after a read: each time after another, ``stride`` further on, and after the last.

        With a stride of 2, the pulls into new tensors meet the reads that the others leave out.
        """
        self.renew(cache)
        reads = Reads(None, lambda: None)
        assert self.pull(reads, load=load) == "pulled"
        outcomes: Counter[str] = Counter()
        for k in sorted({*range(1 + (load and stride > 1), reads.seen + 1, stride), reads.seen}):
            self.renew(cache)
            outcomes[self.pull(Reads(k, lambda: self.strike(how)), load=load)] += 1
        return outcomes

    def change_what_is_staged(self, cache: str, how: Strike) -> None:
        """Stage a version, change all of its files, and apply it."""
        self.renew(cache)
        into = garbage(a_model())
        with small_pieces(), self.registry() as registry, registry.stage(into=into) as staged:
            self.strike(how)
            staged.apply()
        assert bits(into) == self.wanted, "cells that nobody has committed"


def main(stride: int) -> None:
    """Cut files, after a read in so many and of what is staged."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), kind)
            for cache in CACHES:
                world.change_what_is_staged(cache, empty)
                print(kind, cache, dict(world.pull_at_reads(cache, cut, stride)), flush=True)
    print("alive", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
