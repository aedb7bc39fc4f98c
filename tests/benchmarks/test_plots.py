"""Plots and tables are made from result files: the same results, the same bytes; other results, other plots."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plots import FOLDER, is_current, plots, write_plots
from benchmarks.report import PAGE, tables
from benchmarks.results import Row, read_results

MACHINE = {"cpu": "a CPU", "cores": 2}
CODERS = ("gap", "class", "auto")


def a_run(kind: str) -> dict[str, Any]:
    phases = {coder: {"diff": 1.0} for coder in CODERS}
    return {
        "states": {"kind": kind, "title": kind, "seed": None, "cells": 100, "bytes": 200, "steps": 1},
        "machine": MACHINE,
        "versions": {"python": "3"},
        "rows": [],
        "sizes": [
            {
                "step": 0,
                "changed_share": 0.01,
                "bits": {"gap": 13.0, "class": 8.0, "auto": 13.0, "xor_zstd": 25.0},
                "entropy_bits": 7.8,
            }
        ],
        "times": {
            "push_core": {coder: {"median_ms": 50.0} for coder in CODERS},
            "stage_apply_core": {coder: {"median_ms": 30.0} for coder in CODERS},
            "push_phases_ms": phases,
            "pull_phases_ms": phases,
        },
        "peers": {
            "codecs": {
                "XOR + zstd-1": {"bits": [25.0], "encode_ms": 150.0, "decode_ms": 80.0},
                "size alone": {"bits": [9.0], "encode_ms": None, "decode_ms": None},
            }
        },
    }


def over_links() -> dict[str, Any]:
    ways = {"auto": {"seconds": [0.1, 0.3], "bytes": [1, 1]}, "full sync": {"seconds": [4.0], "bytes": [9]}}
    rows = [Row(f"a link.{way}{end}", way, 1.5, "s") for way in ways for end in ("", ".mb")]
    return {
        "kind": "links",
        "title": "links",
        "machine": MACHINE,
        "versions": {"python": "3"},
        "rows": [row.document() for row in rows],
        "links": [{"name": "a link", "ways": ways}],
    }


def by_size() -> dict[str, Any]:
    side = {"core": 0.5, "core_ms": 20.0, "whole_ms": 30.0, "peak_gb": 1.0, "diff": 0.9}
    return {
        "kind": "scale",
        "title": "sizes",
        "machine": MACHINE,
        "versions": {"python": "3"},
        "settings": {"coder": "auto"},
        "rows": [],
        "sizes": [{"cells": 10**8, "bytes": 2 * 10**8, "trainer": side, "worker": side}],
        "skipped": {str(8 * 10**9): "needs about 40 GiB of memory"},
    }


def far_behind() -> dict[str, Any]:
    sizes = {"bytes": 150.0, "direct_bytes": 100.0, "chain_bytes": 400.0}
    ratios = {"ratio": 1.5, "worst_ratio": 1.75}
    return {
        "kind": "ladder",
        "title": "far behind",
        "machine": MACHINE,
        "versions": {"python": "3"},
        "seed": 0,
        "settings": {"coder": "auto", "cells": 100, "versions": 5, "object_cost": 1},
        "rows": [],
        "states": "synthetic",
        "full_bytes": 1000,
        "pairs": 2,
        "distances": [
            {"distance": distance, "pairs": 1, "objects": 1.0, "most_objects": 2, **sizes, **ratios}
            for distance in (1, 4)
        ],
    }


def grpo_in_rounds() -> dict[str, Any]:
    runs = [
        {"seed": seed, "method": method, "rewards": {"0": 0.25, "2": 0.35 + seed / 10}, "nbytes": nbytes}
        for seed in (0, 1)
        for method, nbytes in (("DiLoCo", [4e6, 4e6]), ("one trainer", []))
    ]
    where = {"machine": MACHINE, "versions": {"python": "3"}}
    return {"kind": "outer-grpo", "title": "GRPO", **where, "rows": [], "runs": runs}


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    return [a_run("recorded"), a_run("synthetic"), over_links(), by_size(), far_behind(), grpo_in_rounds()]


@pytest.mark.slow
def test_there_is_a_plot_for_each_kind_of_result(documents: list[dict[str, Any]], tmp_path: Path) -> None:
    assert write_plots(documents, tmp_path)
    expected = {"bits.svg", "times.svg", "links.svg", "sizes.svg", "far-behind-synthetic.svg", "outer-grpo.svg"}
    assert {path.name for path in tmp_path.iterdir()} == expected
    for path in tmp_path.iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "size alone" in (tmp_path / "bits.svg").read_text()
    assert "size alone" not in (tmp_path / "times.svg").read_text()


def test_rewards_are_means_of_the_seeds_with_what_was_sent_for_them() -> None:
    (plot,) = plots([grpo_in_rounds()])
    assert plot.figures["DiLoCo"] == {"rounds": [0, 2], "rewards": [25, 40], "sent": 8e6}
    assert plot.figures["one trainer"]["sent"] == 0
    assert b"DiLoCo: 8.0 MB a trainer" in plot.svg()


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(documents: list[dict[str, Any]], tmp_path: Path) -> None:
    plot = plots(documents)[0]
    assert plot.svg() == plot.svg()
    write_plots(documents, tmp_path)
    assert not write_plots(documents, tmp_path)


@pytest.mark.slow
def test_a_plot_of_other_figures_is_drawn_again_and_one_without_results_removed(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    write_plots(documents, tmp_path)
    before = (tmp_path / "bits.svg").read_text()
    documents[0]["sizes"][0]["bits"]["class"] = 7.5
    assert not all(is_current(tmp_path / f"{plot.name}.svg", plot) for plot in plots(documents))
    assert write_plots(documents[:2], tmp_path)
    assert (tmp_path / "bits.svg").read_text() != before
    assert not (tmp_path / "links.svg").exists()


def test_results_without_peers_give_no_plot_of_times() -> None:
    run = a_run("recorded")
    run["peers"] = {}
    assert [plot.name for plot in plots([run])] == ["bits"]


def test_tables_name_every_way_every_size_and_what_was_left_out(documents: list[dict[str, Any]]) -> None:
    found = tables(documents)
    assert "| full sync | 1.50 s |" in found
    assert "| 0.10 B | 0.20 GB | 0.90x |" in found
    assert "left out: needs about 40 GiB" in found
    assert "| 4 | 2 | 0 kB | 0 kB | 0 kB | 1.50x | 1.75x |" in found


def test_the_plots_of_the_page_show_the_figures_of_the_result_files() -> None:
    page = PAGE.read_text()
    for plot in plots(read_results()):
        assert f"(plots/{plot.name}.svg)" in page
        assert is_current(FOLDER / f"{plot.name}.svg", plot), "run python -m benchmarks report"
