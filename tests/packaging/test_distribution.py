"""What a user installs: the sdist builds a wheel that holds our four packages, typed, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pulse_kernels", "pulse_registry", "pulse_schemas", "pulse_server")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program without this tree on its path; a failure shows what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from a copy of the tree, and the wheel from the sdist."""
    base = tmp_path_factory.mktemp("dist")
    # A copy: an egg-info that an editable install left in the tree would add stale names to the sdist.
    tree = base / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree / name)
    unwanted = shutil.ignore_patterns("*.egg-info", "__pycache__", ".*")
    for name in ("pulse_registry", "server", "kernels", "schemas", "tests", "docs", "benchmarks", "examples"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tree / name, ignore=unwanted)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", base / "out", tree, cwd=base)
    return base / "out"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a fresh environment that borrows its requirements from this one."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--no-cache-dir", wheel, cwd=home)
    # A plain path line adds the folder but not what its .pth files add: our editable install stays unseen.
    site_packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site_packages, "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return python


def test_the_wheel_holds_exactly_our_four_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    assert len(top) == len(PACKAGES) + 1


def test_the_wheel_holds_every_module_of_the_tree(wheel: Path) -> None:
    roots = {"pulse_registry": ROOT, "pulse_server": ROOT / "server"}
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


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_from_the_installed_wheel(python: Path, package: str, tmp_path: Path) -> None:
    where = run(python, "-c", f"import {package}; print({package}.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1]), f"{package} came from {where}"
