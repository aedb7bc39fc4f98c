"""Compiled loops lie where nobody else can change them, or are compiled anew: whoever changes them runs code as us."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import pulse_kernels
from pulse_kernels import loops_exposed, other_writers, permissions
from pulse_registry.weights.backend import what_compiles
from tests.support.others import NOBODY

SUFFIXES = (".nbi", ".nbc")


@pytest.fixture(autouse=True)
def no_groups_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is of several users, whoever runs the tests."""
    monkeypatch.setattr(grp, "getgrgid", lambda number: SimpleNamespace(gr_name="developers"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "above" / "loops"
    made.mkdir(parents=True)
    for path in (made.parent, made):
        path.chmod(0o755)
    for name in ("numba_a.nbi", "numba_a.1.nbc", "other.txt"):
        (made / name).write_bytes(b"")
        (made / name).chmod(0o644)
    return made


def test_a_folder_of_our_own_is_nobody_elses(folder: Path) -> None:
    assert other_writers(folder, SUFFIXES) is None


@pytest.mark.parametrize("mode", [0o757, 0o775, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_told(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert other_writers(folder, SUFFIXES) == f"{folder} may be written by others (mode {mode:04o})"


@pytest.mark.parametrize(("mode", "told"), [(0o777, True), (0o775, True), (0o1777, False), (0o755, False)])
def test_so_is_one_whose_place_others_could_give_to_another(folder: Path, mode: int, told: bool) -> None:
    folder.parent.chmod(mode)
    assert (other_writers(folder, SUFFIXES) is not None) == told


def test_the_root_of_a_volume_is_as_who_mounted_it_decided(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.chmod(0o777)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == folder.parent)
    expected = None if folder.parent.stat().st_uid == 0 else f"{folder.parent} may be written by others (mode 0777)"
    assert other_writers(folder, SUFFIXES) == expected


def test_a_file_that_others_may_write_is_told_unless_they_can_not_come_to_it(folder: Path) -> None:
    (folder / "numba_a.1.nbc").chmod(0o666)
    assert other_writers(folder, SUFFIXES) == f"{folder}/numba_a.1.nbc may be written by others (mode 0666)"
    assert other_writers(folder, (".nbi",)) is None
    folder.chmod(0o700)
    assert other_writers(folder, SUFFIXES) is None


def test_a_link_among_the_files_is_told(folder: Path) -> None:
    (folder / "numba_b.nbi").symlink_to(folder / "numba_a.nbi")
    assert other_writers(folder, SUFFIXES) == f"{folder}/numba_b.nbi is no plain file"
    (folder / "numba_b.nbi").rename(folder / "numba_\x1b[2J.nbi")
    assert other_writers(folder, SUFFIXES) == f"{folder}/'numba_\\x1b[2J.nbi' is no plain file"


def test_a_group_of_one_user_is_that_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folder.chmod(0o775)
    found = folder.stat()
    monkeypatch.setattr(permissions.pwd, "getpwuid", lambda uid: permissions.pwd.struct_passwd(("ada", *"xxxxxx")))
    for group, told in (("ada", False), ("team", True)):
        monkeypatch.setattr(
            permissions.grp, "getgrgid", lambda gid, name=group: permissions.grp.struct_group((name, *"xxx"))
        )
        assert (other_writers(folder, SUFFIXES) is not None) == told, found

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(permissions.pwd, "getpwuid", unknown)
    assert other_writers(folder, SUFFIXES) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away takes root")
@pytest.mark.parametrize("which", [".", "..", "numba_a.nbi"])
def test_what_another_user_owns_is_told(folder: Path, which: str) -> None:
    os.chown(folder / which, NOBODY, NOBODY)
    told = other_writers(folder, SUFFIXES)
    assert told is not None
    assert told.endswith(f"is of user {NOBODY}")
    os.chown(folder / which, 0, 0)
    assert other_writers(folder, SUFFIXES) is None


def test_who_may_write_the_code_itself_may_write_what_is_compiled_of_it(tmp_path: Path) -> None:
    package, folder = tmp_path, tmp_path / "__pycache__"
    folder.mkdir()
    for open_to, allowed in ((0o755, 0o755), (0o775, 0o775), (0o777, 0o777), (0o777, 0o775)):
        package.chmod(open_to)
        folder.chmod(allowed)
        assert other_writers(folder, SUFFIXES, package) is None
    package.chmod(0o755)
    assert other_writers(folder, SUFFIXES, package) is not None
    folder.chmod(0o777)
    package.chmod(0o775)
    assert other_writers(folder, SUFFIXES, package) is not None


def test_a_folder_that_can_not_be_looked_at_is_not_believed(tmp_path: Path) -> None:
    told = loops_exposed(tmp_path / "none")
    assert told is not None
    assert told.startswith(f"{tmp_path / 'none'} can't be looked at: No such file")


# -- the attack -------------------------------------------------------------------------------------------------------

LOADS = """
import pulse_kernels
from pulse_kernels.cpu import compile
print(compile.compiled("move", 2).stats.cache_path, compile.exposed())
"""
PLANTS = """
import pathlib, pickle, sys
class Code:
    def __reduce__(self):
        return eval, (f"(open({sys.argv[2]!r}, 'w').close(), {{}})",)
for index in pathlib.Path(sys.argv[1]).rglob("*.nbi"):
    with index.open("rb") as file:
        version = pickle.load(file)
    index.write_bytes(pickle.dumps(version) + pickle.dumps(Code()))
"""


def python(script: str, *arguments: object, **environment: str) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment)
    return done.stdout.strip()


@pytest.mark.slow
def test_no_code_is_run_that_another_user_has_put_among_the_compiled_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    kept = python(LOADS)
    assert kept.startswith(str(tmp_path / "numba"))
    assert kept.endswith(" None")
    (folder,) = (tmp_path / "numba").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    python(PLANTS, folder, tmp_path / "ran")
    python(LOADS)
    assert (tmp_path / "ran").exists(), "what lies there is run, which is why it matters who may write it"
    (tmp_path / "ran").unlink()
    folder.chmod(0o777)
    python(PLANTS, folder, tmp_path / "ran")
    assert python(LOADS) == f"None {folder} may be written by others (mode 0777)"
    assert not (tmp_path / "ran").exists()
    told = what_compiles("numba")
    assert told is not None
    assert f"the kernels in {folder} are not used" in told
    assert "NUMBA_CACHE_DIR" in told


@pytest.mark.slow
def test_a_folder_that_numba_would_leave_open_is_made_for_its_user_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    site = tmp_path / "site" / "pulse_kernels"
    shutil.copytree(Path(pulse_kernels.__file__).parent, site, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "cpu/loops/__pycache__").write_text("in the way")
    kept = python(
        "import os; os.umask(0)\n" + LOADS,
        PYTHONPATH=str(site.parent),
        HOME=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        NUMBA_CACHE_DIR="",
    )
    folder, told = kept.split()
    assert told == "None"
    assert Path(folder).is_relative_to(home)
    modes = [path.stat().st_mode & 0o777 for path in (Path(folder), *Path(folder).parents) if path.is_relative_to(home)]
    assert modes == [0o700] * 4


def test_the_tests_own_loops_are_nobody_elses() -> None:
    folder = pulse_kernels.loops_folder()
    assert folder is not None
    assert loops_exposed(folder) is None
