"""Outer rounds of several trainers in one process, without a store: DiLoCo, sparse float32 values, and our levels.

``Levels`` goes through what the library's members go through: the same weights, gate, exponents, coded bytes and mean.
The others are written down from their descriptions, with torch's own SGD as the outer optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from benchmarks.outer.inner import Floats
from pulse_kernels import get_backend
from pulse_kernels.protocol import OuterRates
from pulse_kernels.select import outer_loops
from pulse_registry.format.contribution import contribution_bytes
from pulse_registry.outer.exponents import chosen, middle
from pulse_registry.outer.masters import WholeMasters
from pulse_registry.outer.mean import GroupLevels, Part
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.outer.weights import Sent as SentParts
from pulse_registry.process.parallel import Map
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from pulse_schemas import ObjectRef
from pulse_schemas.heads import ContributionHead

Shapes = Sequence[tuple[str, tuple[int, ...]]]
FIRST_EXPONENT = -20
"""As a session's."""


@dataclass(slots=True)
class Sent:
    """What one trainer sent to a round: entries, of how many cells, in how many bytes."""

    entries: int
    cells: int
    nbytes: int

    @property
    def density(self) -> float:
        """Share of the cells."""
        return self.entries / self.cells

    @property
    def bits(self) -> float:
        """Of an entry."""
        return 8 * self.nbytes / max(1, self.entries)

    @property
    def factor(self) -> float:
        """How many times less than dense float32."""
        return 4 * self.cells / max(1, self.nbytes)


class Method(Protocol):
    """How trainers come from their own weights to common ones. A round: all contribute, then ``step``."""

    def contribute(self, trainer: int, local: Floats) -> Sent:
        """Take a trainer's weights after its inner steps, flat."""

    def step(self) -> None:
        """Make the outer step of what was contributed."""

    def weights(self) -> Floats:
        """Return the common float32 weights, flat, which the next round begins with."""


class Dense:
    """DiLoCo: the mean of all pseudo-gradients, in float32, to ``torch.optim.SGD`` with Nesterov's momentum."""

    def __init__(self, start: Floats, trainers: int, rates: OuterRates) -> None:
        self._theta = torch.nn.Parameter(torch.from_numpy(start.copy()))
        self._optimizer = torch.optim.SGD([self._theta], lr=rates.rate, momentum=rates.momentum, nesterov=True)
        self._trainers, self._sum = trainers, torch.zeros(len(start))

    def contribute(self, trainer: int, local: Floats) -> Sent:
        """See Method."""
        self._add(self._theta.detach() - torch.from_numpy(local))
        return Sent(len(local), len(local), 4 * len(local))

    def step(self) -> None:
        """See Method."""
        self._theta.grad = self._sum / self._trainers
        self._optimizer.step()
        self._sum.zero_()

    def weights(self) -> Floats:
        """See Method."""
        found: Floats = self._theta.detach().numpy()
        return found

    def _add(self, gradient: torch.Tensor) -> None:
        self._sum += gradient


class Values(Dense):
    """The rule of the one public PULSE-DiLoCo: what the gate passes is sent as float32, 12 bytes an entry."""

    def __init__(self, start: Floats, trainers: int, rates: OuterRates, gain: float, *, feedback: bool = True) -> None:
        super().__init__(start, trainers, rates)
        self._gain, self._feedback = gain, feedback
        self._residuals = torch.zeros(trainers, len(start))

    def contribute(self, trainer: int, local: Floats) -> Sent:
        """See Method."""
        theta = self._theta.detach()
        whole = self._residuals[trainer] + (theta - torch.from_numpy(local))
        fired = theta.bfloat16() != (theta - self._gain * whole).bfloat16()
        sent = torch.where(fired, whole, 0.0)
        self._add(sent)
        if self._feedback:
            self._residuals[trainer] = torch.where(fired, 0.0, whole)
        entries = int(fired.sum())
        return Sent(entries, len(local), 12 * entries)


@dataclass(slots=True)
class _Round:
    parts: dict[int, list[Part]] = field(default_factory=dict)
    exponents: list[int] = field(default_factory=list)


class Levels:
    """Ours: levels of a power of two, coded by the classes of the BF16 weights, in the objects that members put.

    Attributes:
        outer: the weights of all, with the residual of whoever contributes.
        middle: the exponent about which those of the open round lie.
        coded: what the newest contribution was; None where nothing was sent.
        parts: the same, before it was coded.
    """

    def __init__(
        self,
        shapes: Shapes,
        start: npt.NDArray[np.uint16],
        trainers: int,
        rates: OuterRates,
        gain: float,
        *,
        feedback: bool = True,
        each: Map = map,
    ) -> None:
        """Begin with BF16 weights.

        Args:
            shapes: names and shapes of the tensors, in the order of the flat weights.
            start: BF16 cells, flat.
            trainers: how many.
            rates: of the outer optimizer.
            gain: of the gate.
            feedback: keep what was not sent; without it, it is dropped.
            each: calls a function on many groups, maybe in threads.
        """
        self._shapes, self._rates, self._gain, self._feedback = shapes, rates, gain, feedback
        self.backend = get_backend()
        first = {name: cells.view("bfloat16") for name, cells in tensors(shapes, start).items()}
        views = read_model(first)
        self.geometry = Geometry(layout_of(views, "keep"))
        self.outer = OuterWeights(self.geometry, self.backend, outer_loops(self.backend.name), each=each)
        self.outer.begin(Weights.of(self.geometry, views).copy_of)
        self._residuals = [np.zeros(self.geometry.cells, np.float32) for _ in range(trainers)]
        self.middle, self._open = FIRST_EXPONENT, _Round()
        self.coded: bytes | None = None
        self.parts: SentParts = []

    def contribute(self, trainer: int, local: Floats) -> Sent:
        """See Method."""
        outer = self.outer
        outer.residual = self._residuals[trainer]
        outer.collect(self.masters(local))
        gate = outer.measured(self._gain)
        exponent = chosen(gate.count, gate.square, self._gain, self.middle)
        sent = outer.gated(self._gain, exponent, 1)
        self.coded = self.code(sent, exponent, outer.digest().hex()) if sent else None
        outer.settle(sent)
        self._residuals[trainer], self.parts = outer.residual, sent
        outer.origin = None  # the next trainer begins with the common weights, too
        if not self._feedback:
            outer.residual[:] = 0
        for group, part in sent:
            self._open.parts.setdefault(group.number, []).append(part)
        entries = sum(len(part.index) for _, part in sent)
        self._open.exponents += [exponent] if entries else []
        return Sent(entries, self.geometry.cells, len(self.coded or b""))

    def step(self) -> None:
        """See Method."""
        made = self._open
        self.outer.step(made.parts, min(made.exponents, default=0), len(self._residuals), self._rates)
        self.middle, self._open = middle(made.exponents, self.middle), _Round()

    def weights(self) -> Floats:
        """See Method."""
        found = np.empty(self.geometry.cells, np.float32)
        self.outer.store(self.masters(found))
        return found

    def masters(self, flat: Floats) -> WholeMasters:
        """Return flat weights as a member's."""
        return WholeMasters.of(self.geometry, read_model(tensors(self._shapes, flat)))

    def tensors(self, flat: npt.NDArray[Any]) -> Mapping[str, npt.NDArray[Any]]:
        """Return views of flat weights, by name."""
        return tensors(self._shapes, flat)

    @staticmethod
    def ref(coded: bytes) -> ObjectRef:
        """Return what a record would say of an object."""
        return ObjectRef(key="a contribution", size=len(coded), blake3=blake3(coded).hexdigest())

    def code(self, sent: SentParts, exponent: int, base: str) -> bytes:
        """Return the object that a member would put; ``base`` is the digest of the common weights."""

        def head(changed: int, groups: int) -> ContributionHead:
            return ContributionHead(
                layout=self.geometry.id,
                base=base,
                round=1,
                member="trainer",
                values="levels",
                exponent=exponent,
                changed=changed,
                groups=groups,
            )

        parts = [(group, part.index, part.levels) for group, part in sent if isinstance(part, GroupLevels)]
        return contribution_bytes(
            self.backend, self.geometry, head, parts, lambda group: [self.outer.version_cells(group)], self.outer.each
        )


def tensors(shapes: Shapes, flat: npt.NDArray[Any]) -> Mapping[str, npt.NDArray[Any]]:
    """Return views of flat cells, by name."""
    found, done = {}, 0
    for name, shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = flat[done : done + size].reshape(shape)
        done += size
    return found
