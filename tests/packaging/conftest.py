"""What users install, built once: an sdist, a wheel from it, and environments with either kind of install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.environments import copy_tree, install, run


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from a copy of the tree, and the wheel from the sdist."""
    base = tmp_path_factory.mktemp("dist")
    copy_tree(base / "tree")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", base / "out", base / "tree", cwd=base)
    return base / "out"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the wheel."""
    return install(tmp_path_factory.mktemp("fresh") / "venv", wheel)


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has a copy of the tree, editable."""
    base = tmp_path_factory.mktemp("editable")
    copy_tree(base / "tree")
    return install(base / "venv", "-e", base / "tree")
