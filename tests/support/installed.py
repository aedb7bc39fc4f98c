"""Packages that a test file needs in the processes that it starts: asked for, and not imported.

Every test process collects every file; `pytest.importorskip` would load the package into each of them.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> None:
    """Skip the file where a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
