"""Environments to install into: fresh ones, which borrow their requirements from the one that runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Run a program without this tree on its path, with ``more`` variables; a failure shows what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_tree(tree: Path) -> None:
    """Copy what builds, and what must not get in, into a new folder: what tools leave in the tree stays there."""
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, tree / name)
    unwanted = shutil.ignore_patterns("*.egg-info", "__pycache__", ".*")
    ours = ("pulse_start", "pulse_registry", "server", "kernels", "schemas")
    for name in (*ours, "tests", "docs", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted)


def install(home: Path, *what: str | Path) -> Path:
    """Make an environment in ``home`` with our packages alone in it, and return its Python."""
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    # A plain path line adds the folder but not what its .pth files add: our editable install stays unseen.
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site_packages(python), "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    alone = ("--no-deps", "--no-index", "--no-cache-dir", "--no-build-isolation", "--ignore-installed")
    run(sys.executable, "-m", "pip", "--python", python, "install", *alone, *what, cwd=home)
    return python


def site_packages(python: Path) -> Path:
    """Return where an environment's packages are."""
    return Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=python.parent).strip())
