"""The types of the library in a user's project: what mypy and pyright make of a program that uses it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import run, site_packages

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(HERE / "typed_program.py", tmp_path)
    return tmp_path


def test_an_editable_install_is_paths_alone_which_type_checkers_follow(editable: Path) -> None:
    (file,) = site_packages(editable).glob("*pulse*.pth")
    roots = [Path(line) for line in file.read_text().splitlines()]
    for package in ("pulse_kernels", "pulse_registry", "pulse_schemas", "pulse_server", "pulse_start"):
        assert [root for root in roots if (root / package / "py.typed").exists()], package


def test_mypy_strict_sees_the_types_of_an_editable_install(editable: Path, project: Path) -> None:
    options = ("--strict", "--python-executable", editable, "--cache-dir", project / "cache")
    command = (sys.executable, "-m", "mypy", *options, "typed_program.py")
    assert "no issues" in run(*command, cwd=project, MYPYPATH=str(HERE / "stubs"))


def test_pyright_strict_sees_the_types_of_an_installed_wheel(python: Path, project: Path) -> None:
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "enableTypeIgnoreComments": true}')
    assert "0 errors" in run(sys.executable, "-m", "pyright", "--pythonpath", python, "typed_program.py", cwd=project)
