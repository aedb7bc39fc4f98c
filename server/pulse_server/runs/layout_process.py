"""Subprocess that validates one layout from its input, and prints its sizes; see `pulse_server.runs.layouts`.

It is run as a file, and takes no more of the service with it than the schemas.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from contextlib import suppress
from typing import Final

from pulse_schemas.base import Fault, SchemaError
from pulse_schemas.layout import Layout

MOST_MEMORY: Final = 4 << 30
MOST_CPU_S: Final = 20
"""A layout of 10^12 cells takes 0.3 GiB and a second; nested lists of its length may take ten times that."""


def examine(data: bytes) -> dict[str, object]:
    """Return the cells of each dtype, or what is wrong with a layout."""
    try:
        layout = Layout.parse(data)
    except SchemaError as error:
        return {"error": str(error), "unsupported": error.fault is Fault.UNSUPPORTED}
    cells: Counter[str] = Counter()
    for tensor in layout.tensors:
        cells[tensor.dtype] += math.prod(tensor.shape)
    return {"cells": cells}


def main() -> None:
    """Answer on the output, in one line of JSON."""
    with suppress(ImportError, OSError, ValueError):  # no POSIX, or bounds that are lower
        import resource

        os.nice(10)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    print(json.dumps(examine(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
