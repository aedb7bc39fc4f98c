"""`pulse export` and `pulse import`, there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import bits, held
from tests.support.command_line import Pulse, Run


@pytest.mark.parametrize("options", [(), ("--encoding", "overwrite", "--checksum", "blake3")], ids=["xor", "overwrite"])
def test_a_chain_that_was_exported_is_the_same_run_when_it_is_imported(
    run: Run, pulse: Pulse, tmp_path: Path, options: tuple[str, ...]
) -> None:
    written = pulse("export", "--format", "hf-delta", "--chain", *options, "--json", tmp_path / "updates").json
    assert [(one["version"], one["base"]) for one in written] == [(0, None), (1, 0), (2, 1), (3, 2), (4, 3)]
    imported = pulse("import", "--format", "hf-delta", "--run", "copy", "--json", tmp_path / "updates").json
    assert [(one["version"], one["name"]) for one in imported] == [(n, f"{n:06d}") for n in range(5)]
    assert [one["folder"] for one in imported] == [one["folder"] for one in written]
    assert pulse("import", "--run", "copy", "--json", tmp_path / "updates").json == []
    for number, state in enumerate(run.states):
        assert pulse("pull", "--run", "copy", "--version", number, "--out", tmp_path / "out").code == 0
        assert held(tmp_path / "out") == bits(state)


def test_what_was_done_is_told_in_words(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    whole = pulse("export", "--to", "0", tmp_path / "weight_v000000")
    assert whole.out.startswith(f"{tmp_path / 'weight_v000000'} holds version 0, all of it: 2 tensors in ")
    delta = pulse("export", "--from", "0", "--to", "2", tmp_path / "weight_v000002")
    assert "holds version 2, from version 0: 2 tensors in " in delta.out
    imported = pulse("import", "--run", "copy", tmp_path)
    assert [line.split(":")[0] for line in imported.out.splitlines()] == [
        f"version 0 is {tmp_path / 'weight_v000000'} (000000)",
        f"version 1 is {tmp_path / 'weight_v000002'} (000002)",
    ]
    assert pulse("import", "--run", "copy", tmp_path).out == f"run 'copy' has all of {tmp_path} already\n"
    pulse("export", "--chain", tmp_path / "chain")
    assert pulse("export", "--chain", tmp_path / "chain").out == f"{tmp_path / 'chain'} holds all of them already\n"


def test_errors_have_their_exit_codes(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    assert pulse("export", "--from", "0", tmp_path / "out").code == 0
    for code, *arguments in (
        (4, "export", "--from", "0", tmp_path / "out"),
        (3, "export", "--from", "9", tmp_path / "new"),
        (2, "export", "--format", "arc", tmp_path / "new"),
        (2, "export", "--encoding", "add", tmp_path / "new"),
        (2, "export", "--chain", "--from", "3", "--to", "1", tmp_path / "new"),
        (2, "import", tmp_path / "nothing"),
        (5, "import", "--run", "other", tmp_path / "out"),
    ):
        assert pulse(*arguments).code == code, arguments
    (tmp_path / "out" / "model-00001-of-00001.safetensors").write_bytes(b"")
    assert pulse("export", "--to", "0", tmp_path / "whole").code == 0
    assert pulse("import", "--run", "other", tmp_path / "whole").code == 0
    refused = pulse("import", "--run", "other", "--json", tmp_path / "out")
    assert (refused.code, refused.json["error"]) == (6, "CorruptObject")
