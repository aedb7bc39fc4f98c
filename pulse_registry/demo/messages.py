"""What the demo's processes tell each other. Plain values: they travel through queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role = Literal["rollout", "late", "laggard", "sharded"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Trainer to workers: tokens to complete. ``number`` counts prompts and seeds the sampling."""

    number: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Worker to trainer: a prompt's completions, made with the weights of one version.

    ``logprobs`` are what the worker's model gave to each token that it chose.
    """

    number: int
    worker: str
    version: int
    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The trainer has the model."""

    parameters: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sharded:
    """A rank of the trainer, or of the sharded worker, has memory for its part of the weights, ``nbytes`` as BF16."""

    process: str
    rank: int
    ranks: int
    cells: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """The trainer made an optimizer step. ``staleness``: versions that each group was behind when it was learned."""

    step: int
    reward: float
    right: float
    loss: float
    staleness: tuple[int, ...]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Published:
    """A version is committed. ``sha256`` is that of the trainer's own cells, which the library had no part in.

    ``slices``: the same of what each rank of the sharded worker holds of them.
    """

    version: int
    step: int
    kind: str
    changed: int
    cells: int
    nbytes: int
    full_nbytes: int
    digest: str
    phases: Mapping[str, float]
    sha256: str
    slices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulled:
    """A worker brought its weights to a version. ``sha256`` is that of its own cells, after the fact.

    ``checked``: what the library compared: see ``PullResult``.
    """

    worker: str
    role: Role
    before: int | None
    version: int
    nbytes: int
    objects: int
    changed: int
    phases: Mapping[str, float]
    checked: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Generated:
    """A worker answered a prompt."""

    worker: str
    version: int
    completions: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A worker is done; ``Registry.verify`` has found its weights to be this version's."""

    worker: str
    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Trained:
    """The trainer is done; no version follows."""

    version: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A process ends with an error; ``peer_lost``: one that another rank's end has brought."""

    process: str
    message: str
    trace: str
    peer_lost: bool = False


Event: TypeAlias = Loaded | Sharded | Stepped | Published | Pulled | Generated | Checked | Trained | Failed
