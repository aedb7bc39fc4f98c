"""Tensor in a file, as part of a model to publish: its cells are read when they are needed, each of them once.

They come by calls that say so where the file has become shorter meanwhile. A memory map would kill the process.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_kernels import CELL_TYPES, Cells
from pulse_registry.errors import InvalidArgument
from pulse_registry.process.open_files import open_regular, read_into
from pulse_registry.quoting import quoted
from pulse_schemas import Dtype


class SourceFile:
    """A file that tensors are read from; it is closed with the last of them.

    Attributes:
        path: of the file, for messages.
        nbytes: its size when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open a file; links are followed.

        Raises:
            OSError: it can't be opened, or is no regular file.
        """
        with open_regular(path) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.path, self.nbytes = path, os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of the file; fewer where it ends before."""
        return os.pread(self._descriptor, stop - start, start)

    def read_into(self, at: int, buffer: memoryview) -> bool:
        """Read bytes from a place of the file on; tell whether it had them all."""
        return read_into(self._descriptor, buffer, at) == buffer.nbytes


class FileTensor:
    """A tensor of a model that lies in a file.

    Attributes:
        name: in the file.
        dtype: of its cells.
        shape: of the tensor.
    """

    def __init__(self, file: SourceFile, name: str, dtype: Dtype, shape: tuple[int, ...], at: int) -> None:
        """Take note of a tensor that begins at byte ``at`` of the file; nothing is read."""
        self.name, self.dtype, self.shape = name, dtype, shape
        self._file, self._at = file, at

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two names of the same bytes, seen in the same way."""
        return id(self._file), self._at, self.dtype, self.shape

    def cells(self, start: int, stop: int) -> Cells:
        """Return cells, by their flat indices, as unsigned integers in memory of their own.

        Raises:
            InvalidArgument: the file has become shorter, or can't be read.
        """
        known = CELL_TYPES[self.dtype]
        cells: npt.NDArray[Any] = np.empty(stop - start, known.dtype)
        self.read_into(start * known.width, cells.view(np.uint8).data)
        return cells

    def read_into(self, at: int, buffer: memoryview) -> None:
        """Read the tensor's bytes from ``at`` on; raises as ``cells``."""
        try:
            whole = self._file.read_into(self._at + at, buffer)
        except OSError as error:
            raise InvalidArgument(f"{self._file.path} can't be read: {error.strerror or error}") from error
        if not whole:
            raise InvalidArgument(
                f"{self._file.path} became shorter while tensor {quoted(self.name)} was read: something writes it; "
                "push it once that is done"
            )
