"""``pulse stats``: exact numbers as JSON, shares for people."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import pulse_registry
from tests.support.command_line import Pulse, Run


def test_the_document_has_the_counts_of_the_run(run: Run, pulse: Pulse) -> None:
    found = pulse("stats", "--weights", "--json").json
    cells = {name: [state[name].reshape(-1).view(np.uint16) for state in run.states] for name in run.states[0]}
    changed = {name: sum(int((a != b).sum()) for a, b in pairwise(each)) for name, each in cells.items()}
    assert {one["name"]: one["changed"] for one in found["tensors"]} == changed
    assert found["total"]["changed"] == sum(changed.values()) == sum(step["changed"] for step in found["steps"])
    assert sum(sum(counts) for counts in found["sizes"].values()) == sum(changed.values())
    assert sum(one["changed"] for one in found["exponents"]["BF16"]) == sum(changed.values())
    assert [sum(step["layers"]) for step in found["steps"]] == [step["changed"] for step in found["steps"]]
    assert [one["versions"] for one in found["windows"]] == [1, 2, 4]
    assert (found["run"], found["first"], found["last"], found["unseen"]) == ("math", 0, 4, [])
    only = pulse("stats", "--from", 1, "--to", 2, "--weights", "--json").json
    assert only["steps"] == [{**found["steps"][1], "again": None}]


def test_people_are_shown_shares_and_what_was_not_seen(run: Run, pulse: Pulse) -> None:
    answer = pulse("stats", "--weights", "--tensors")
    assert answer.code == 0
    assert answer.out.startswith("versions 0 to 4 of run math: 4 steps\n")
    for said in ("over versions", "kind", "layer", "tensor", "moved by steps"):
        assert said in answer.out
    assert "exponent of BF16" in answer.out
    assert "not seen" not in answer.out
    assert pulse("push", "--step", 99, "--coder", "class", run.root.parent / "trainer" / "0.safetensors").code == 0
    plain = pulse("stats")
    assert "not seen: version 4 to 5: a patch of coder class, which --weights reads" in plain.out
    assert "exponent of BF16" not in plain.out


def test_a_range_the_wrong_way_round_is_refused(run: Run, pulse: Pulse) -> None:
    answer = pulse("stats", "--from", 3, "--to", 1)
    assert answer.code == 2
    assert "give the older one first" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_plot_is_drawn_with_the_numbers_of_the_metadata(run: Run, pulse: Pulse, tmp_path: Path, suffix: str) -> None:
    with pulse_registry.open(str(run.root), run=run.name) as registry:
        model = registry.load()
        for step in range(2):
            registry.push(90 + step, model, metadata={"reward $x$": step / 2, "note": "text", "good": True})
    file = tmp_path / f"stats.{suffix}"
    assert pulse("stats", "--weights", "--plot", file).code == 0
    drawn = file.read_bytes()
    assert drawn.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    if suffix == "svg":
        text = drawn.decode()
        for said in ("run math, versions 0 to 6", "changed a step by layer, %", "by exponent, %", "reward $x$"):
            assert said in text
        assert "mathdefault" not in text
        assert "note" not in text
        assert ">good<" not in text


@pytest.mark.slow
def test_a_plot_of_no_format_or_of_nothing_is_refused(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    assert "ends with .png" in pulse("stats", "--plot", tmp_path / "stats.txt").err
    answer = pulse("stats", "--from", 1, "--to", 1, "--plot", tmp_path / "stats.png")
    assert answer.code == 2
    assert "no step was seen" in answer.err
    assert "can't be written" in pulse("stats", "--weights", "--plot", tmp_path / "none" / "stats.png").err
