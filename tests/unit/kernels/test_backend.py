"""Choosing a backend, and what the compiled one leaves on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pulse_kernels
from pulse_kernels import CELL_TYPES, BackendName, BackendUnavailable, decode_group, encode_group, get_backend
from pulse_kernels.cpu import compile

PACKAGE = Path(pulse_kernels.__file__).parent
LOAD = """
from pulse_kernels.cpu.compile import compiled
import numpy as np
loops = [compiled("diff", 1), compiled("union", 4), compiled("move", 1)]
old, new = np.zeros(64, np.uint8), np.ones(64, np.uint8)
loops[2](old, old, 0, 0, new)
assert not new.any()
print(sum(sum(f.stats.cache_hits.values()) for f in loops), sum(sum(f.stats.cache_misses.values()) for f in loops))
print(len(loops[0].signatures))
"""


def python(code: str, package_root: Path = PACKAGE.parent, **environment: str) -> list[str]:
    """Run code in a new process and return the words that it prints; warnings are errors there too."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "PYTHON", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**inherited, "PYTHONPATH": str(package_root), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_auto_takes_the_compiled_backend_where_it_imports():
    assert get_backend().name == get_backend("auto").name == "numba"
    assert get_backend("reference").name == "reference"
    assert get_backend("numba") is get_backend("numba")


@pytest.mark.parametrize("name", ["", "Numba", "cuda", "numpy"])
def test_an_unknown_name_is_refused(name: str):
    with pytest.raises(BackendUnavailable, match="reference"):
        get_backend(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["reference", "numba"])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_to_warm_up_is_idempotent(name: BackendName, width: int):
    for _ in range(2):
        assert get_backend(name).warm_up(width) is None


def test_after_the_warm_up_nothing_is_left_to_compile(monkeypatch: pytest.MonkeyPatch):
    backend, u16 = get_backend("numba"), np.arange(100, dtype=np.uint16)
    monkeypatch.setattr(compile, "READY", {})
    backend.warm_up(2)
    warm = {*compile.READY}
    assert warm
    live = np.zeros(100, np.uint32)
    index, old, new = backend.diff(u16, ~u16)
    backend.cast_f32(live, u16.copy())
    backend.advance_spans([u16, live], [u16.copy(), u16.copy()], 0)
    backend.gather(u16, index)
    backend.scatter(u16.copy(), index, new)
    cell_type = CELL_TYPES["BF16"]
    distance = backend.distance(old, new, cell_type)
    backend.move(old, distance, cell_type)
    backend.step(u16, index, distance, cell_type, 0)
    backend.merge((index, distance), (index, distance))
    backend.locate(backend.union(index, index), index)
    backend.gather(index, index)
    backend.scatter(index.copy(), index, index)
    backend.digest(u16, 0)
    backend.digest_sparse(index, new, 0)
    for coder in ("gap", "class"):
        coded = encode_group(backend, coder, cell_type, 100, index, old, new, [old])
        decode_group(backend, coder, cell_type, 100, 100, coded, [old])
    assert {*compile.READY} == warm, "compiled late"


def test_without_numba_auto_falls_back_and_the_explicit_choice_raises():
    code = """
import sys
sys.modules["numba"] = None
from pulse_kernels import BackendUnavailable, get_backend
print(get_backend().name, get_backend("auto").name, get_backend("reference").name)
try:
    get_backend("numba")
except BackendUnavailable as error:
    print("refused:", "numba" in str(error), error.__cause__ is not None)
"""
    assert python(code) == ["reference", "reference", "reference", "refused:", "True", "True"]


def test_importing_the_package_does_not_import_numba():
    assert python("import sys, pulse_kernels; print('numba' in sys.modules)") == ["False"]


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path):
    hits, misses, signatures = python(LOAD, NUMBA_CACHE_DIR=str(tmp_path))
    assert (hits, misses, signatures) == ("0", "3", "1")
    hits, misses, signatures = python(LOAD, NUMBA_CACHE_DIR=str(tmp_path))
    assert (hits, misses, signatures) == ("3", "0", "1")


@pytest.mark.slow
def test_a_changed_simd_code_is_not_answered_from_the_cache(tmp_path: Path):
    root = tmp_path / "site"
    shutil.copytree(PACKAGE, root / "pulse_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert python(LOAD, root, **cache)[:2] == ["0", "3"]
    with (root / "pulse_kernels/cpu/loops/simd.py").open("a") as file:
        file.write("\n# changed\n")
    assert python(LOAD, root, **cache)[:2] == ["0", "3"]


@pytest.mark.slow
def test_two_versions_of_numba_keep_their_loops_in_one_folder(tmp_path: Path):
    cache, other = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}, f"import numba; numba.__version__ = '0.0'\n{LOAD}"
    for code, expected in ((LOAD, ["0", "3"]), (other, ["0", "3"]), (LOAD, ["3", "0"]), (other, ["3", "0"])):
        assert python(code, **cache)[:2] == expected


@pytest.fixture
def sealed_package(tmp_path: Path) -> Path:
    """A copy of the package in whose folder no cache can be made; by a file in its place, since root may write all."""
    root = tmp_path / "site"
    shutil.copytree(PACKAGE, root / "pulse_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pulse_kernels/cpu/loops/__pycache__").write_text("in the way")
    return root


@pytest.mark.slow
def test_where_the_package_folder_cannot_be_written_the_users_cache_folder_serves(sealed_package: Path, tmp_path: Path):
    home = tmp_path / "cache"
    for expected in (["0", "3", "1"], ["3", "0", "1"]):
        assert python(LOAD, sealed_package, XDG_CACHE_HOME=str(home), HOME=str(tmp_path)) == expected
    assert list(home.rglob("*.nbi"))


@pytest.mark.slow
def test_where_no_folder_can_be_written_every_process_compiles_for_itself(sealed_package: Path, tmp_path: Path):
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    environment = {"XDG_CACHE_HOME": str(blocked / "cache"), "HOME": str(blocked)}
    code = "from pulse_kernels.cpu.backend import NumbaBackend\nimport numpy as np\n" + (
        "print(*NumbaBackend().diff(np.full(3, 7, np.uint8), np.zeros(3, np.uint8))[0])"
    )
    assert python(code, sealed_package, **environment) == ["0", "1", "2"]
