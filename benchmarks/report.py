"""The tables and plots of docs/benchmarks.md, made from the result files: ``python -m benchmarks report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.plots import FOLDER, plots, write_plots
from benchmarks.results import RESULTS, read_results, rows_of

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin (python -m benchmarks report) -->", "<!-- results: end -->"


def tables(documents: list[dict[str, Any]]) -> str:
    """Return the Markdown between the marks: plots, then states, then what was measured over a store or a service."""
    shown = [f"![{plot.title}](plots/{plot.name}.svg)" for plot in plots(documents)]
    coded = [document for document in documents if "sizes" in document and "states" in document]
    hops = [document for document in documents if document.get("kind") == "hops"]
    others = [document for document in documents if document not in coded and document not in hops]
    sections = {
        "scale": _sizes_section,
        "links": _links_section,
        "ladder": _ladder_section,
        "turns": _turns_section,
    }
    rest = [sections.get(document.get("kind", ""), _rows_section)(document) for document in others]
    return "\n\n".join([*shown, *map(_section, coded), *rest, *([_hops_section(hops)] if hops else [])])


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


def update_page(page: Path = PAGE, folder: Path = RESULTS, into: Path = FOLDER) -> bool:
    """Renew the page and its plots; tell whether that changed anything."""
    documents = read_results(folder)
    text = page.read_text()
    renewed = with_tables(text, documents)
    page.write_text(renewed)
    return write_plots(documents, into) or renewed != text


def _rows_section(document: dict[str, Any]) -> str:
    return "\n".join([*_heading(document), *_table(document)])


def _heading(document: dict[str, Any]) -> list[str]:
    machine, versions = document["machine"], document["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [f"### {document['title']}", "", f"{_where(machine)}; {named}.", ""]


def _where(machine: dict[str, Any]) -> str:
    where: str = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    virtual = machine.get("reports_free_memory", False)
    return where + " of a virtual machine that reports free memory to its host" * virtual


def _sizes_section(document: dict[str, Any]) -> str:
    lines = [
        *_heading(document),
        "| cells | bytes | diff, of copy bandwidth | push, of XOR + zstd-1 | pull, of XOR + zstd-1 | push | pull "
        "| trainer, peak RSS | worker, peak RSS |",
        "|" + " ---: |" * 9,
    ]
    for size in document["sizes"]:
        trainer, worker = size["trainer"], size["worker"]
        lines.append(
            f"| {size['cells'] / 1e9:.2f} B | {size['bytes'] / 1e9:.2f} GB | {trainer['diff']:.2f}x "
            f"| {trainer['core']:.2f}x | {worker['core']:.2f}x | {trainer['whole_ms']:,.0f} ms "
            f"| {worker['whole_ms']:,.0f} ms | {trainer['peak_gb']:.1f} GB | {worker['peak_gb']:.1f} GB |"
        )
    lines += [
        f"| {int(cells) / 1e9:.2f} B | left out: {why} |" + " |" * 7 for cells, why in document["skipped"].items()
    ]
    return "\n".join(lines)


def _ladder_section(document: dict[str, Any]) -> str:
    settings, rows = document["settings"], document["distances"]
    seed = "" if document["seed"] is None else f", seed {document['seed']}"
    lines = [
        *_rows_section(document).splitlines(),
        "",
        f"{settings['cells']:,} cells, {settings['versions']:,} versions, {settings['coder']}; "
        f"{document['pairs']:,} pairs of versions{seed}; an object costs {settings['object_cost']:,} bytes in the "
        "route search.",
        "",
        "| versions behind | objects, most | chain | ladder | direct diff | ladder / direct, mean | worst |",
        "|" + " ---: |" * 7,
    ]
    lines += [
        f"| {row['distance']:,.0f} | {row['most_objects']} | {_kilobytes(row['chain_bytes'])} "
        f"| {_kilobytes(row['bytes'])} | {_kilobytes(row['direct_bytes'])} | {row['ratio']:.2f}x "
        f"| {row['worst_ratio']:.2f}x |"
        for row in (rows if len(rows) < 16 else rows[::4])
    ]
    return "\n".join(lines)


def _kilobytes(nbytes: float) -> str:
    return f"{nbytes / 1e3:,.0f} kB"


def _hops_section(documents: list[dict[str, Any]]) -> str:
    """One column a result file, the oldest release first."""
    columns = sorted(documents, key=lambda document: (document["file"] != "before", document["file"]))
    values = [{row.key: row.texts()[0] for row in rows_of(document)} for document in columns]
    lines = [
        f"### {columns[0]['title']}",
        "",
        "| what | " + " | ".join(document["file"] for document in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    lines += [
        f"| {row.what} | " + " | ".join(column.get(row.key, "") for column in values) + " |"
        for row in rows_of(columns[0])
    ]
    return "\n".join(lines)


def _links_section(document: dict[str, Any]) -> str:
    links, values = document["links"], {row.key: row for row in rows_of(document)}
    lines = _heading(document)
    lines += [
        "| push to weights changed | " + " | ".join(f"{link['name']} | stored" for link in links) + " |",
        "| --- |" + " ---: |" * (2 * len(links)),
    ]
    for way in links[0]["ways"]:
        keys = [key for link in links for key in (f"{link['name']}.{way}", f"{link['name']}.{way}.mb")]
        lines.append(f"| {way} | " + " | ".join(values[key].texts()[0] for key in keys) + " |")
    return "\n".join(lines)


def _turns_section(document: dict[str, Any]) -> str:
    """One column a commit."""
    settings, rows = document["settings"], {row.key: row for row in rows_of(document)}
    lines = [
        *_heading(document),
        f"Commits {settings['before']} and {settings['now']}: medians of {settings['runs']} runs of each.",
        "",
        "| what | before | now | now / before | limit | holds |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for key in (key.removesuffix(".new") for key in rows if key.endswith(".new")):
        now, limit, holds = rows[f"{key}.new"].texts()
        ratio = rows[f"{key}.ratio"].texts()[0] if f"{key}.ratio" in rows else ""
        what = rows[f"{key}.new"].what.removesuffix(": now")
        lines.append(f"| {what} | {rows[f'{key}.old'].texts()[0]} | {now} | {ratio} | {limit} | {holds} |")
    return "\n".join(lines)


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
        f"{_where(machine)}{load}; "
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
    lines += [
        "",
        "| ms from start to end, median; phases overlap | " + " | ".join(_CODERS) + " |",
        "| --- |" + " ---: |" * len(_CODERS),
    ]
    for what, key in (("push", "push_phases_ms"), ("pull", "pull_phases_ms")):
        phases = document["times"][key]
        for phase in phases["gap"]:
            figures = " | ".join(f"{phases[coder][phase]:.1f}" for coder in _CODERS)
            lines.append(f"| {what}: {phase} | {figures} |")
    return "\n".join(lines)


_CODERS = ("gap", "class", "auto")
_FORMATS = {"class": "class", "gap": "gap", "auto": "auto", "xor_zstd": "XOR + zstd-1", "entropy": "entropy"}
