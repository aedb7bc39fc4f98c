"""What a user installs: the sdist builds a wheel that holds our packages, typed, and nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT, run

PACKAGES = ("pulse_kernels", "pulse_registry", "pulse_schemas", "pulse_server", "pulse_start")


def test_the_wheel_holds_exactly_our_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    assert len(top) == len(PACKAGES) + 1


def test_the_wheel_holds_every_module_of_the_tree(wheel: Path) -> None:
    roots = {"pulse_registry": ROOT, "pulse_start": ROOT, "pulse_server": ROOT / "server"}
    roots |= {"pulse_kernels": ROOT / "kernels", "pulse_schemas": ROOT / "schemas"}
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.endswith(".py")}
    written = {
        path.relative_to(root).as_posix() for package, root in roots.items() for path in (root / package).rglob("*.py")
    }
    assert shipped == written


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_ships_its_types(wheel: Path, package: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert f"{package}/py.typed" in archive.namelist()


def test_wheel_and_sdist_carry_the_license(wheel: Path, dist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= files
    assert not [name for name in files if name.startswith(("tests/", "benchmarks/", "docs/"))]


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_from_the_installed_wheel(python: Path, package: str, tmp_path: Path) -> None:
    where = run(python, "-c", f"import {package}; print({package}.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1]), f"{package} came from {where}"
