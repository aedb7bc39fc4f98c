"""Array functions of the registry: diff, scatter, gather, digest, index and value coding; no I/O.

Examples:
    >>> import numpy as np
    >>> from pulse_kernels import CELL_TYPES, get_backend
    >>> backend = get_backend("reference")
    >>> old, new = np.array([1, 2, 3], np.uint16), np.array([1, 5, 3], np.uint16)
    >>> index, was, now = backend.diff(new, old)
    >>> index.tolist(), was.tolist(), now.tolist()
    ([1], [2], [5])
"""

from pulse_kernels.cells import CELL_TYPES, Cells, CellType, Index
from pulse_kernels.cpu.cached_loops import loops_cached, loops_exposed, loops_folder
from pulse_kernels.errors import BackendUnavailable, CodecError, RankError
from pulse_kernels.format.group import GROUP_BYTES, CoderName, decode_group, encode_group, move_group, step_group
from pulse_kernels.permissions import other_writers
from pulse_kernels.protocol import Backend, BackendName
from pulse_kernels.select import get_backend
from pulse_kernels.spans import Spans, SpanTable
from pulse_kernels.warm_up import warm_up_ahead

__all__ = [
    "CELL_TYPES",
    "GROUP_BYTES",
    "Backend",
    "BackendName",
    "BackendUnavailable",
    "CellType",
    "Cells",
    "CodecError",
    "CoderName",
    "Index",
    "RankError",
    "SpanTable",
    "Spans",
    "decode_group",
    "encode_group",
    "get_backend",
    "loops_cached",
    "loops_exposed",
    "loops_folder",
    "move_group",
    "other_writers",
    "step_group",
    "warm_up_ahead",
]
