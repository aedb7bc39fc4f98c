"""Sessions of small models at one store in memory, whose versions are a dictionary."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.run import Run
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.store import MemoryStore, Store
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import Model
from pulse_schemas import Layout, Tensor
from tests.support.inline import Inline
from tests.unit.outer.test_member import BACKEND, Clock

Arrays = dict[str, npt.NDArray[np.float32]]
GEOMETRY = Geometry(
    Layout(tensors=(Tensor(name="b", dtype="BF16", shape=(20,)), Tensor(name="w", dtype="BF16", shape=(30, 10))))
)


def drawn(seed: int = 1, scale: float = 0.02) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        one.name: (rng.standard_normal(one.shape) * scale).astype(np.float32)
        for one in GEOMETRY.layout.tensors
    }  # fmt: skip


class Versions:
    """Versions of a run: digests and cells by number."""

    def __init__(self) -> None:
        self.digests, self._cells = dict[int, str](), dict[int, Weights]()

    def digest(self, version: int) -> str | None:
        return self.digests.get(version)

    def push(self, version: int, weights: OuterWeights) -> None:
        self.digests.setdefault(version, weights.digest().hex())
        if version not in self._cells:
            made = self._cells[version] = Weights.empty(GEOMETRY)
            for group in GEOMETRY.groups:
                made.fill(group, weights.version_cells(group))

    def replace(self, version: int, other: int) -> None:
        """Let a version be what another one is."""
        self.digests[version], self._cells[version] = self.digests[other], self._cells[other]

    def load(self, version: int) -> Weights:
        if version not in self._cells:
            cells = [drawn()[one.name].view(np.uint32) >> 16 for one in GEOMETRY.layout.tensors]
            return Weights(GEOMETRY, [one.astype(np.uint16) for one in cells])
        return self._cells[version]

    def close(self) -> None:
        pass


class Site:
    """A store, versions, and sessions at them.

    Attributes:
        versions: that all see.
    """

    def __init__(self) -> None:
        self.store, self.clock, self.versions = MemoryStore(uuid.uuid4().hex), Clock(), Versions()
        self.slept = 0

    def session(
        self, model: Model, member: str = "a", store: Store | None = None, *, name: str = "run", **options: Any
    ) -> OuterSession:
        """Return a session that has not joined; rounds of one inner step."""
        run = Run(
            name, store or self.store, BACKEND, self.versions, lambda _: (0, GEOMETRY.id), lambda _: GEOMETRY,
            lambda version, *_, **__: self.versions.load(version).copy_of, threads=lambda count, name: Inline(),
        )  # fmt: skip
        given = OuterOptions(member, **{"inner_steps": 1, "poll_s": 1.0, **options})
        return OuterSession(run, model, given, clock=self.clock, sleep=self._sleep)

    def joined(self, model: Model, member: str = "a", store: Store | None = None, **options: Any) -> OuterSession:
        session = self.session(model, member, store, **options)
        session.join()
        return session

    def _sleep(self, seconds: float) -> None:
        self.slept += 1
        self.clock.now += seconds
        if self.slept > 10_000:
            raise TimeoutError("this waits for ever")


def train(model: Arrays, seed: int, scale: float = 1e-5) -> None:
    """Make an inner step."""
    rng = np.random.default_rng(seed)
    for tensor in model.values():
        tensor -= (rng.standard_normal(tensor.shape) * scale + scale / 3).astype(np.float32)


def flat(model: Arrays) -> npt.NDArray[np.float32]:
    return np.concatenate([model[one.name].reshape(-1) for one in GEOMETRY.layout.tensors])


def bits(values: npt.NDArray[np.float32]) -> list[int]:
    found: list[int] = values.view(np.uint32).tolist()
    return found


class Switch:
    """A fault that is off until it is turned on."""

    def __init__(self, match: Callable[[str], bool]) -> None:
        self.on, self._match = False, match

    def __call__(self, _: str, key: str) -> bool:
        return self.on and self._match(key)
