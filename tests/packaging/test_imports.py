"""What `import pulse_registry` costs: nothing heavy is loaded, and nothing heavy need be there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG_S

HEAVY = (
    "accelerate",
    "aiobotocore",
    "boto3",
    "botocore",
    "cryptography",
    "fastapi",
    "gguf",
    "matplotlib",
    "numba",
    "s3fs",
    "starlette",
    "torch",
    "transformers",
    "triton",
    "uvicorn",
)
LIGHT_PACKAGES = ("pulse_registry", "pulse_schemas", "pulse_kernels")


def python(code: str, cwd: Path) -> str:
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_importing_the_library_loads_nothing_heavy(package: str, tmp_path: Path) -> None:
    code = f"import sys, {package}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    assert python(code, tmp_path) == ""


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_the_library_imports_where_no_extra_is_installed(package: str, tmp_path: Path) -> None:
    # None in sys.modules makes an import raise ModuleNotFoundError, as if the package were not installed.
    # numba stays: the core requires it.
    missing = set(HEAVY) - {"numba"}
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); import {package}; print('imported')"
    assert python(code, tmp_path) == "imported"


@pytest.mark.slow
def test_importing_the_library_starts_no_thread_or_process(tmp_path: Path) -> None:
    code = (
        "import pulse_registry, threading, multiprocessing\n"
        "print(threading.active_count(), multiprocessing.active_children())"
    )
    assert python(code, tmp_path) == "1 []"
