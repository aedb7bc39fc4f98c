"""Print what the service's image installs: what the core and the extras server, s3 and trust require, but for numba.

numba and its LLVM are some 200 MB, and compile what pushes and pulls compute. The service computes nothing of that: it
reads logs, signs URLs and checks records. With ``--kernels`` what is left out is printed, for the image with tools.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("server", "s3", "trust")
LEFT_OUT = ("numba",)


def requirements(pyproject: Path, *, kernels: bool = False) -> list[str]:
    """Return the requirements of the image, or those that it leaves out: one a line of a requirements file."""
    project = tomllib.loads(pyproject.read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    return [
        line for line in wanted if (re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower() in LEFT_OUT) is kernels
    ]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), kernels="--kernels" in sys.argv[2:])))
