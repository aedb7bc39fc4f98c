"""Chains: what a pull over many patches costs, against decoding each of them once, and when a keyframe is taken.

Each patch changes one percent of 20 million BF16 cells, at places that have nothing to do with each other. Times are
those of the processor, for one thread; memory is what a pull has allocated at its peak. What is resident is more by
what the C library keeps of freed arrays, which depends on all that the process did before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.growth.curve import Curve, curve_of, processor_ms
from pulse_registry import ComputeOptions, NetworkOptions, PushOptions, Registry, open
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.store import FileStore, PrefixStore
from pulse_registry.weights.backend import backend_of
from pulse_registry.weights.cell_space import Geometry
from tests.security.attacks.peak import peak_of

RUN: Final = "chain"
CHANGED: Final = 0.01
TENSORS: Final = 10
_STEPS: Final = np.array([1, -1, 2, -2], np.int16)
_ONE_THREAD: Final = ComputeOptions(threads=1)
_BY_BYTES: Final = NetworkOptions(object_cost=16 << 10, cell_cost=0)
_BY_TIME: Final = NetworkOptions(object_cost=16 << 10, cell_cost=16)
"""The prices of a folder that gives a gigabyte a second: what a pull would measure there."""


@dataclass(frozen=True, slots=True)
class Chained:
    """A pull over so many links.

    Attributes:
        links: patches from the version that is held to the one that is pulled.
        pull_ms: the pull.
        decode_ms: fetching and decoding each of them once.
        extra: memory that the pull allocates, over the weights' bytes.
    """

    links: int
    pull_ms: float
    decode_ms: float
    extra: float


def curves(quick: bool) -> list[Curve]:
    """Measure."""
    cells, links = (200_000, (1, 4, 16)) if quick else (20_000_000, (1, 4, 16, 64, 256))
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
        push_chain(folder, cells, links[-1])
        found = list(over_chains(folder, cells, links, repeats))
        push_keyframe(folder)
        by_bytes = list(routes(folder, cells, links, _BY_BYTES, repeats))
        by_time = list(routes(folder, cells, links, _BY_TIME, repeats))
    ratio, best = "x of decoding each patch once", "x of the cheaper by bytes"
    gain = [(n, time / before) for (n, before, _), (_, time, _) in zip(by_bytes, by_time, strict=True)]
    return [
        _curve("decode", "decode each patch once", "ms", [(one.links, one.decode_ms) for one in found]),
        _curve("pull", "pull over a chain", "ms", [(one.links, one.pull_ms) for one in found]),
        _curve("ratio", "pull over a chain", ratio, [(one.links, one.pull_ms / one.decode_ms) for one in found], 1.3),
        _curve("memory", "memory of a pull over a chain", "x of the weights", [(n.links, n.extra) for n in found], 1.0),
        _curve("bytes", "pull by fewest bytes, with a keyframe at hand", "ms", [(n, time) for n, time, _ in by_bytes]),
        _curve("time", "pull with decoding priced, with a keyframe at hand", "ms", [(n, t) for n, t, _ in by_time]),
        _curve("gain", "pull with decoding priced, with a keyframe at hand", best, gain, 1.0),
        _curve("keyframe", "a keyframe is taken, decoding priced", "of 1", [(n, float(one)) for n, _, one in by_time]),
        _curve("by_bytes", "a keyframe is taken by bytes", "of 1", [(n, float(one)) for n, _, one in by_bytes]),
    ]


def _curve(key: str, what: str, unit: str, points: Sequence[tuple[int, float]], limit: float | None = None) -> Curve:
    return curve_of(f"chains.{key}", what, "links", unit, points, "last", limit)


def model_of(cells: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return weights of a few tensors, of finite numbers."""
    rng = np.random.default_rng(seed)
    return {f"w{n}": rng.integers(0x3C00, 0x3F80, cells // TENSORS).astype(np.uint16) for n in range(TENSORS)}


def push_chain(folder: str, cells: int, links: int) -> None:
    """Push a keyframe, and so many patches."""
    model, rng = model_of(cells), np.random.default_rng(1)
    with open(folder, run=RUN, push=_push_options()) as registry:
        registry.push(0, model)
        for step in range(1, links + 1):
            change(model, rng)
            registry.push(step, model)


def push_keyframe(folder: str) -> None:
    """Push one more patch, and a keyframe with it."""
    with open(folder, run=RUN, push=_push_options(keyframe_every=1)) as registry:
        model = _copy_of(registry)
        change(model, np.random.default_rng(2))
        registry.push(10**6, model)


def change(model: dict[str, np.ndarray[Any, Any]], rng: np.random.Generator) -> None:
    """Change one percent of the cells, by one or two places each."""
    for tensor in model.values():
        places = np.unique(rng.integers(0, len(tensor), round(CHANGED * len(tensor))))
        tensor[places] += rng.choice(_STEPS, len(places)).astype(np.uint16)


def over_chains(folder: str, cells: int, links: Sequence[int], repeats: int) -> Iterator[Chained]:
    """Pull over so many links, from version 0 on, and decode them."""
    model = model_of(cells)
    with open(folder, run=RUN, compute=_ONE_THREAD, network=_BY_BYTES) as registry:
        registry.pull(0, into=model)
        for number in links:
            decode = processor_ms(lambda number=number: decoded(folder, registry, number), repeats)  # type: ignore[misc]
            times = []
            for _ in range(repeats):
                registry.pull(0, into=model, replace=True)
                times.append(processor_ms(lambda number=number: registry.pull(number, into=model), 1))  # type: ignore[misc]
            registry.pull(0, into=model, replace=True)
            extra = peak_of(lambda number=number: registry.pull(number, into=model))  # type: ignore[misc]
            yield Chained(number, min(times), decode, extra / (2 * cells))


def decoded(folder: str, registry: Registry, links: int) -> None:
    """Fetch the first patches of a run, and decode each of them once, by itself."""
    backend, geometry, state = backend_of("auto"), Geometry(registry.layout(0)), registry.state()
    store = PrefixStore(FileStore(Path(folder)), RUN)
    for version in range(1, links + 1):
        [patch] = begin_patches(store, RUN, geometry, state.patches_into(version), map)
        for number in patch.entries:
            patch.decode(backend, geometry.groups[number])


def routes(
    folder: str, cells: int, links: Sequence[int], network: NetworkOptions, repeats: int
) -> Iterator[tuple[int, float, bool]]:
    """Pull the newest version, which has a keyframe, from so many before it: links, time, whether by the keyframe."""
    with open(folder, run=RUN, compute=_ONE_THREAD, network=network) as registry:
        newest = registry.version().version
        model = _copy_of(registry)
        for number in links:
            found = registry.route(newest, have=newest - number)
            times = []
            for _ in range(repeats):
                registry.pull(newest - number, into=model)
                times.append(processor_ms(lambda: registry.pull(newest, into=model), 1))
            yield number, min(times), found.legs[0].keyframe is not None


def _push_options(**more: int) -> PushOptions:
    return PushOptions(coder="gap", keyframe_share=1e9, dtype="keep", **more)


def _copy_of(registry: Registry) -> dict[str, np.ndarray[Any, Any]]:
    """Return the newest version, as arrays."""
    model = {tensor.name: np.empty(tensor.shape, np.uint16) for tensor in registry.layout().tensors}
    registry.pull("latest", into=model)
    return model
