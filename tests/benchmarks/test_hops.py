"""The count of what a push and a pull go through: it counts what it says, and the command writes it down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import hops as hops_module
from benchmarks.__main__ import app
from benchmarks.hops import OPERATIONS, Hops, Profile, size_of
from benchmarks.results import rows_of

CALLER = """
from b import helped, twice
def plain(): return 1
def both(): return helped() + twice(plain)
def alone(): return plain()
"""
HELPER = """
def helped(): return 1
def twice(call): return sum(map(lambda number: call(), range(2)))
"""


def test_calls_from_file_to_file_are_counted_and_others_are_not(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.py").write_text(CALLER)
    (tmp_path / "b.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    import a  # type: ignore[import-not-found]

    profile = Profile(tmp_path)
    profile.watch()
    try:
        within = profile.hops(a.alone)
        across = profile.hops(a.both)
    finally:
        profile.leave()
    assert within == Hops(files=1, functions=2, crossings=0, pairs=(), rooms=1)
    # both -> helped, both -> twice, and twice's lambda -> plain, two times.
    assert (across.files, across.functions, across.crossings, across.pairs) == (2, 5, 4, (("a.py", "b.py"),))
    assert (across.arrows, across.knots) == (3, (("a.py", "b.py"),))


def test_what_a_pool_is_handed_counts_as_called_by_whoever_called_the_pool(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "c.py").write_text(CALLER.replace("from b", "from d"))
    (tmp_path / "d.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(hops_module, "POOLS", ("d.py",))
    import c  # type: ignore[import-not-found]

    profile = Profile(tmp_path)
    profile.watch()
    try:
        across = profile.hops(c.both)
    finally:
        profile.leave()
    assert across.pairs == (("c.py", "d.py"),)
    # both -> helped, both -> twice; twice's lambda is both's own call, and plain is of both's file.
    assert (across.arrows, across.knots) == (3, ())


def test_the_size_of_packages_is_that_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "one.py").write_text("def f(a, /, b, *, c): ...\n\n\nclass C:\n    def g(self, a): ...\n")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "two.py").write_text("x = 1\n")
    assert size_of((tmp_path,), tmp_path) == {
        "lines": 6,
        "files": 3,
        "modules at the top": 1,
        "longest list of parameters": 3,
        "longest list of parameters, commands and kernels apart": 3,
    }


def test_flags_of_commands_and_arguments_of_kernels_count_apart(tmp_path: Path) -> None:
    (tmp_path / "loops").mkdir()
    (tmp_path / "loops" / "compiled.py").write_text("def loop(a, b, c, d, e): ...\n")
    (tmp_path / "gpu.py").write_text("@jit\ndef kernel(a, b, c, d): ...\n")
    (tmp_path / "push.py").write_text("def push(a, b, c): ...\ndef other(a, b): ...\n")
    size = size_of((tmp_path,), tmp_path, commands=[(tmp_path / "push.py", "push")])
    assert size["longest list of parameters"] == 5
    assert size["longest list of parameters, commands and kernels apart"] == 2


def test_the_commands_of_pulse_and_of_its_groups_are_found() -> None:
    commands = {(path.name, name) for path, name in hops_module.commands_of(hops_module.app)}
    assert {("push.py", "push"), ("import_.py", "import_"), ("warm_up.py", "warm_up")} <= commands
    assert "key.py" in {file for file, _ in commands}


def test_calls_within_a_folder_are_none_from_room_to_room() -> None:
    one, near, far, top = ("push/a.py", "f"), ("push/b.py", "g"), ("store/c.py", "h"), ("context.py", "i")
    hops = Hops.of({(None, one): 1, (one, near): 2, (near, far): 3, (far, top): 4})
    assert (hops.files, hops.crossings, hops.rooms, hops.moves) == (4, 9, 3, 7)


@pytest.mark.slow
def test_the_command_counts_every_operation(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["hops", "--out", str(tmp_path / "hops.json")])
    assert ran.exit_code == 0, ran.output
    rows = {row.key: row.value for row in rows_of(json.loads((tmp_path / "hops.json").read_text()))}
    for operation in OPERATIONS:
        assert 5 < rows[f"{operation}.files"] < rows[f"{operation}.functions"]
        assert rows[f"{operation}.crossings"] >= rows[f"{operation}.files"] - 1
        assert 3 < rows[f"{operation}.rooms"] <= rows[f"{operation}.moves"] + 1 <= rows[f"{operation}.crossings"]
