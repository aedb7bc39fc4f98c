"""``pulse warm-up``: the kernels are where it says, for processes that come after; or it says that they can not be."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest

from pulse_kernels.cpu import backend, compile
from tests.support.command_line import Pulse


@pytest.fixture
def few_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has compiled nothing, of a package with two small loops."""
    monkeypatch.setattr(compile, "READY", {})
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(backend, "loops_of", lambda width: [("address", width)])
    monkeypatch.setattr(compile, "exponent_loops", lambda: [("address_to_write", 2)])


@pytest.mark.usefixtures("few_loops")
def test_the_kernels_are_kept_in_the_folder_that_was_named(pulse: Pulse, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    answer = pulse("warm-up", "--to", folder, "--json")
    assert (answer.code, answer.json["folder"]) == (0, str(folder))
    assert answer.json["seconds"] >= 0
    assert len(list(folder.rglob("*.nbc"))) == 2
    text = pulse("warm-up", "--to", folder)
    assert (text.code, f"NUMBA_CACHE_DIR={folder}" in text.out) == (0, True)


@pytest.mark.usefixtures("few_loops")
def test_a_folder_that_cannot_be_written_is_refused(pulse: Pulse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answer = pulse("warm-up", "--to", tmp_path / "file" / "kernels", "--json")
    assert answer.code != 0
    assert "file/kernels" in answer.json["message"]


@pytest.mark.usefixtures("few_loops")
def test_a_folder_that_others_may_write_is_refused_and_nothing_is_kept_there(pulse: Pulse, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    answer = pulse("warm-up", "--to", folder, "--json")
    assert answer.code != 0
    assert f"{folder} may be written by others (mode 0777)" in answer.json["message"]
    assert list(folder.rglob("*.nb*")) == []


@pytest.mark.usefixtures("few_loops")
def test_without_a_folder_numbas_own_is_told(pulse: Pulse) -> None:
    answer = pulse("warm-up")
    assert answer.code == 0
    assert answer.out.startswith("the kernels are in ")
