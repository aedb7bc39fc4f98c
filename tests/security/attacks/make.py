"""Write the table of hostile objects as files, for other readers too: ``python -m tests.security.attacks.make``.

``hostile/honest/<run>.json`` holds the files of an honest run. ``hostile/<family>/<name>.json`` holds one attack: what
is wrong, who reads it, the errors that it may get, words of the message, and the files that differ from the honest
run. A file's content is text, or ``{"hex": ...}``.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.security.attacks.families import FAMILIES
from tests.security.attacks.readers import read
from tests.security.attacks.row import Errors, Family, Ignored
from tests.security.attacks.runs import RUNS, Run
from tests.support.records import DictStore
from tests.support.registries import copied

FOLDER = Path(__file__).parent / "hostile"
_WIDTH = 90
_CUT_SHORT = re.compile("were asked for: it is cut short")
_SCHEMA = re.compile(r"[A-Z]\w+: [a-z_0-9.]+(?=:)")
_FOREIGN = re.compile(
    "this is not a patch object|not JSON|it is no keyframe's index|is no whole safetensors file|"
    "is no checkpoint's index|it is no whole zstd frame|it is cut short"
)


def documents(words: Callable[[str], str] | None = None) -> dict[str, str]:
    """Return the text of every file, by its path in the folder.

    Args:
        words: tells those of the file at a path; None lets the reader meet the attack, and takes those of its message.
    """
    made = {f"honest/{name}.json": _text(honest(name)) for name in RUNS}
    for family, about in FAMILIES.items():
        for name in about.rows:
            path = f"{family}/{_slug(name)}.json"
            made[path] = _text(attack(family, name, None if words is None else words(path)))
    return made


@cache
def honest_run(name: str) -> Run:
    """Return an honest run; its files must not be changed in place."""
    return RUNS[name]()


def honest(name: str) -> dict[str, Any]:
    """Return an honest run as its file has it: with the bytes of the weights of each version."""
    run = honest_run(name)
    weights = [{tensor: array.tobytes().hex() for tensor, array in model.items()} for model in run.weights]
    return {"files": _files(run.store.objects), "weights": weights}


def attack(family: str, name: str, words: str | None = None) -> dict[str, Any]:
    """Return one attack as its file has it."""
    about = FAMILIES[family]
    run, (forge, errors) = honest_run(about.run), about.rows[name]
    store = copied(run.store)
    forge(store)
    changed = {key: data for key, data in store.objects.items() if run.store.objects.get(key) != data}
    return {
        "about": name,
        "run": about.run,
        "reader": about.reader,
        "errors": sorted(error.__name__ for error in _classes(errors)),
        "words": _words(about, run, store) if words is None else words,
        "files": _files(changed),
        "missing": sorted(run.store.objects.keys() - store.objects.keys()),
    }


def _words(about: Family, run: Run, store: DictStore) -> str:
    """Return what of the message is ours and the same everywhere."""
    error = read(about.reader, run, store)
    message = str(error)
    if isinstance(error, Ignored):
        message = re.sub(r"^run \w+: ignoring the .*?: ", "", message)
    message = re.sub(r"(?<!\S)/\S+/(?=weight_v)", "", message)  # a temporary folder
    tail = re.split(r"(?:\.safetensors|\.json|snapshot): ", message)[-1]
    foreign = _CUT_SHORT.search(message) or _SCHEMA.search(tail) or _FOREIGN.search(tail)
    if foreign:
        return foreign.group()
    whole = re.split("[0-9a-f]{24,}", tail)[0]
    return whole[:_WIDTH].rstrip()


def _classes(errors: Errors) -> tuple[type[Exception], ...]:
    return errors if isinstance(errors, tuple) else (errors,)


def _files(objects: dict[str, bytes]) -> dict[str, Any]:
    return {key: _content(objects[key]) for key in sorted(objects)}


def _content(data: bytes) -> str | dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return text if text.isprintable() else {"hex": data.hex()}


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def main() -> None:
    """Write all files anew, and print how many of them changed."""
    logging.getLogger().addHandler(logging.NullHandler())  # of what they refuse, readers log warnings
    before = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    made = documents() | {"README.md": table()}
    shutil.rmtree(FOLDER, ignore_errors=True)
    for path, text in made.items():
        file = FOLDER / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    changed = sum(before[path] != made[path] for path in before.keys() & made.keys())
    new, gone = len(made.keys() - before.keys()), len(before.keys() - made.keys())
    print(f"{count()} attacks: {new} files are new, {changed} changed, {gone} are gone")


def count() -> int:
    """Return the number of attacks."""
    return sum(len(about.rows) for about in FAMILIES.values())


def table() -> str:
    """Return the table of all attacks."""
    lines = [
        "# Hostile objects",
        "",
        "Made by `python -m tests.security.attacks.make`; what the files hold is said there, and the readers in "
        "`readers.py`.",
        f"Each of the {count()} attacks breaks one rule, and every hash and size on the way to it fits.",
    ]
    for family, about in FAMILIES.items():
        lines += ["", f"## {family} ({len(about.rows)}; run `{about.run}`, reader `{about.reader}`)", ""]
        lines += ["| what is wrong | error |", "| --- | --- |"]
        for name, (_, errors) in about.rows.items():
            told = " or ".join(sorted(error.__name__ for error in _classes(errors)))
            lines.append(f"| [{name}]({family}/{_slug(name)}.json) | {told} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
