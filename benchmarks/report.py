"""The tables of docs/benchmarks.md, made from the result files: ``python -m benchmarks report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, read_results, rows_of

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin (python -m benchmarks report) -->", "<!-- results: end -->"


def tables(documents: list[dict[str, Any]]) -> str:
    """Return the Markdown between the marks: states first, then what was measured over a store or a service."""
    coded = [document for document in documents if "states" in document]
    others = [document for document in documents if "states" not in document]
    return "\n\n".join([*map(_section, coded), *map(_rows_section, others)])


def with_tables(page: str, documents: list[dict[str, Any]]) -> str:
    """Return a page with the tables between its marks renewed.

    Raises:
        ValueError: the page has not both marks.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs {BEGIN!r} and {END!r} once each")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables(documents)}\n\n{END}{after}"


def update_page(page: Path = PAGE, folder: Path = RESULTS) -> bool:
    """Renew the page; tell whether that changed it."""
    text = page.read_text()
    renewed = with_tables(text, read_results(folder))
    page.write_text(renewed)
    return renewed != text


def _rows_section(document: dict[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(
        [
            f"### {document['title']}",
            "",
            f"{machine['cpu']}, {machine['cores']} cores; {named}.",
            "",
            *_table(document),
        ]
    )


def _table(document: dict[str, Any]) -> list[str]:
    heading = ["| what | measured | limit | holds |", "| --- | ---: | --- | --- |"]
    return heading + ["| " + " | ".join((row.what, *row.texts())) + " |" for row in rows_of(document)]


def _section(document: dict[str, Any]) -> str:
    states, machine, versions = document["states"], document["machine"], document["versions"]
    seed = "" if states["seed"] is None else f", seed {states['seed']}"
    load = f", load {machine['load_before']:.1f} before the run" if "load_before" in machine else ""
    names = ("python", "numpy", "numba", "zstandard")
    lines = [
        f"### {states['title'][0].upper()}{states['title'][1:]}",
        "",
        f"{states['kind']}{seed}; {states['cells']:,} cells, {states['bytes'] / 1e6:.0f} MB, {states['steps']} steps. "
        f"{machine['cpu']}, {machine['cores']} cores{load}; "
        + ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
        + ".",
        "",
        *_table(document),
    ]
    lines += [
        "",
        "| step | changed | " + " | ".join(_FORMATS.values()) + " |",
        "| ---: | ---: |" + " ---: |" * len(_FORMATS),
    ]
    for row in document["sizes"]:
        bits = {**row["bits"], "entropy": row["entropy_bits"]}
        figures = " | ".join(f"{bits[name]:.2f}" for name in _FORMATS)
        lines.append(f"| {row['step']} | {100 * row['changed_share']:.2f} % | {figures} |")
    lines += ["", "| milliseconds, median | " + " | ".join(_CODERS) + " |", "| --- |" + " ---: |" * len(_CODERS)]
    for what, key in (("push", "push_phases_ms"), ("pull", "pull_phases_ms")):
        phases = document["times"][key]
        for phase in phases["gap"]:
            figures = " | ".join(f"{phases[coder][phase]:.1f}" for coder in _CODERS)
            lines.append(f"| {what}: {phase} | {figures} |")
    return "\n".join(lines)


_CODERS = ("gap", "class", "auto")
_FORMATS = {"class": "class", "gap": "gap", "auto": "auto", "xor_zstd": "XOR + zstd-1", "entropy": "entropy"}
