"""The states that benchmarks run on: a folder of recorded checkpoints, or synthetic ones (see ``synthetic``).

Only the first state is kept whole; each step after it is kept as the cells that it changed, so that a live model walks
through the states in place, as a trainer's does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import ml_dtypes  # noqa: F401 - registers bfloat16 and float8 with NumPy
import numpy as np
import numpy.typing as npt

from pulse_kernels import CELL_TYPES
from pulse_registry.format.safetensors import cell_shape, tensor_entry
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_schemas import Dtype

Cells: TypeAlias = npt.NDArray[Any]


class StatesError(Exception):
    """A folder does not hold states that can be compared."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, stored dtype and shape."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """What one step changed in one tensor: flat indices, strictly increasing, and the cells before and after."""

    index: npt.NDArray[np.uint32]
    old: Cells
    new: Cells


@dataclass(frozen=True, slots=True)
class States:
    """A run of states of one layout.

    Attributes:
        kind: where they come from.
        title: one line for people.
        seed: of the synthetic ones.
        tensors: in the order of the files.
        first: flat cells of state 0, one array a tensor.
        steps: ``steps[k]`` leads from state k to k + 1, one entry a tensor.
    """

    kind: Literal["recorded", "synthetic"]
    title: str
    seed: int | None
    tensors: Sequence[Tensor]
    first: Sequence[Cells]
    steps: Sequence[Sequence[Changed]]

    @property
    def cells(self) -> int:
        """Cells of one state."""
        return sum(cells.size for cells in self.first)

    @property
    def nbytes(self) -> int:
        """Bytes of one state."""
        return sum(cells.nbytes for cells in self.first)

    def changed(self, step: int) -> int:
        """Return how many cells a step changes."""
        return sum(len(part.index) for part in self.steps[step])


class Live:
    """A model in memory, one allocation a tensor, that goes from state to state in place."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.cells = [cells.copy() for cells in states.first]
        self.at = 0

    def go(self, state: int) -> None:
        """Go to a state, forwards or backwards."""
        while self.at < state:
            for cells, part in zip(self.cells, self._states.steps[self.at], strict=True):
                cells[part.index] = part.new
            self.at += 1
        while self.at > state:
            self.at -= 1
            for cells, part in zip(self.cells, self._states.steps[self.at], strict=True):
                cells[part.index] = part.old

    def model(self) -> dict[str, Cells]:
        """Return the tensors by name, in their own dtypes; views of the live memory."""
        return {
            tensor.name: cells.view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
            for tensor, cells in zip(self._states.tensors, self.cells, strict=True)
        }


def compare(old: Cells, new: Cells) -> Changed:
    """Return where two arrays of cells differ (plain NumPy: this is no part of what is measured)."""
    index = np.flatnonzero(old != new).astype(np.uint32)
    return Changed(index, old[index], new[index])


def load_states(folder: Path, title: str | None = None, limit: int | None = None) -> States:
    """Read a folder of one safetensors file a state, in name order.

    Raises:
        StatesError: fewer than two files, or files of different layouts.
    """
    paths = sorted(folder.glob("*.safetensors"))[:limit]
    if len(paths) < 2:
        raise StatesError(f"{folder} holds {len(paths)} safetensors files; at least two states are needed")
    tensors, first = _read(paths[0])
    live, steps = [np.array(cells) for cells in first], []
    with ThreadPoolExecutor() as pool:
        for path in paths[1:]:
            others, arrays = _read(path)
            if others != tensors:
                raise StatesError(f"{path.name} has other tensors than {paths[0].name}")
            steps.append(list(pool.map(compare, live, arrays)))
            for cells, part in zip(live, steps[-1], strict=True):
                cells[part.index] = part.new
    kept = [np.array(cells) for cells in first]
    return States("recorded", title or f"{len(paths)} checkpoints of {folder.name}", None, tensors, kept, steps)


def save_states(states: States, folder: Path, count: int) -> None:
    """Write the first ``count`` states as safetensors files, for a process of its own to read."""
    live = Live(states)
    header: dict[str, Any] = {}
    at = 0
    for tensor, cells in zip(states.tensors, live.cells, strict=True):
        header[tensor.name] = tensor_entry(tensor.dtype, tensor.shape, at, at + cells.nbytes)
        at += cells.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    for state in range(count):
        live.go(state)
        with (folder / f"state-{state:03d}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for cells in live.cells:
                cells.tofile(file)


def visits(steps: int, at_least: int) -> list[int]:
    """Return the states to go to, one a repeat: forwards, then backwards, and so on until there are enough."""
    there, back = list(range(1, steps + 1)), list(range(steps - 1, -1, -1))
    found = list(there)
    for leg in _alternate(lambda: back, lambda: there):
        if len(found) >= at_least:
            return found
        found += leg[: at_least - len(found)]
    return found


def _alternate(*makers: Callable[[], list[int]]) -> Iterator[list[int]]:
    while True:
        for make in makers:
            yield make()


def _read(path: Path) -> tuple[list[Tensor], list[Cells]]:
    """Map a file's tensors as flat cells, largest alignment first in the order of their bytes."""
    mapped = np.memmap(path, mode="r")
    size = int.from_bytes(mapped[:8].tobytes(), "little")
    header = json.loads(mapped[8 : 8 + size].tobytes())
    header.pop("__metadata__", None)
    tensors, arrays = [], []
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in CELL_TYPES:
            raise StatesError(f"{path.name}: tensor {name!r} is {entry['dtype']}, which is not known here")
        start, stop = (8 + size + offset for offset in entry["data_offsets"])
        tensors.append(Tensor(name, entry["dtype"], cell_shape(entry["dtype"], entry["shape"])))
        arrays.append(
            np.frombuffer(
                mapped, CELL_TYPES[entry["dtype"]].dtype, (stop - start) // CELL_TYPES[entry["dtype"]].width, start
            )
        )
    return tensors, arrays
