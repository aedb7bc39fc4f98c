"""The table of hostile objects: each is refused for what it claims, before memory is spent on it, and changes nothing.

The files are those of the folder ``hostile``; ``make`` writes them, and says what they hold.
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from pulse_kernels import get_backend
from pulse_registry import Slice
from pulse_registry.errors import PulseError
from tests.security.attacks.edits import commit, group, index, layout, patch, pieces, shard, shard_header, words
from tests.security.attacks.families import FAMILIES
from tests.security.attacks.forge import CELLS
from tests.security.attacks.make import FOLDER, count, documents, honest_run, table
from tests.security.attacks.readers import read
from tests.security.attacks.row import Forge
from tests.security.attacks.runs import Run
from tests.support.records import DictStore
from tests.support.registries import copied, quick
from tests.support.sampling import slow_but

MEMORY = 2 * 2 * CELLS + (3 << 20)
"""Bytes that a reader may take at its peak: twice the layout's, and what any pull takes beside it."""
ATTACKS = sorted(
    path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.json") if path.parent.name != "honest"
)
BY_HASH = (
    "a-group-of-another-hash",
    "another-header",
    "a-header-that-is-none",
    "no-seal",
    "twice-in-one",
    "seal-of",
    "seal-in",
    "signed/",
)
"""What these are about is a hash; all others are refused for their content."""
BY_DIGEST = ("coded/another-window.json", "coded/other-marks.json", "keyframe/a-shard-of-other-cells.json")
"""Whoever wrote the record chose these cells, and their BLAKE3: only the state digest, of all cells, is another."""


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    # What a process takes once, for modules and compiled loops, is no part of what an object makes a reader take.
    get_backend("numba").warm_up(2)
    for about in FAMILIES.values():
        honest = honest_run(about.run)
        for backend in ("reference", "numba"):
            read(about.reader, honest, copied(honest.store), backend)


def stored(files: dict[str, Any]) -> dict[str, bytes]:
    """Return the bytes of files as a document has them."""
    return {
        key: content.encode() if isinstance(content, str) else bytes.fromhex(content["hex"])
        for key, content in files.items()
    }


def attacked(path: str) -> tuple[dict[str, Any], DictStore]:
    """Return what a file says of an attack, and the store that a reader then meets."""
    told, store = json.loads((FOLDER / path).read_text()), DictStore()
    store.objects = stored(json.loads((FOLDER / "honest" / f"{told['run']}.json").read_text())["files"])
    store.objects |= stored(told["files"])
    for key in told["missing"]:
        del store.objects[key]
    return told, store


@pytest.mark.parametrize("path", slow_but(ATTACKS[::3], ATTACKS))
def test_a_hostile_object_is_refused_for_what_it_claims(path: str) -> None:
    told, store = attacked(path)
    honest = honest_run(told["run"])
    tracemalloc.start()
    try:
        error = read(told["reader"], honest, store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(error).__name__ in told["errors"], repr(error)
    assert told["words"] in str(error)
    assert not any(word in str(error) for word in ("BLAKE3", "seal does not")) or any(name in path for name in BY_HASH)
    assert peak < MEMORY
    if told["reader"] in ("pull", "join"):
        error = read(told["reader"], honest, store, "numba")
        assert type(error).__name__ in told["errors"], f"the compiled decoder: {error!r}"


def by_slice(honest: Run, store: DictStore) -> Exception | None:
    """Pull version 1 as one that holds nothing, into a part of the tensor; return the error."""
    name, whole = next(iter(honest.weights[1].items()))
    part = np.zeros(600, whole.dtype)
    with quick(store, backend="reference") as registry:
        try:
            registry.pull(1, into={name: Slice(part, of=whole.shape, at=300)})
        except PulseError as error:
            assert not part.any(), "no weight was changed"
            return error
    return None


@pytest.mark.parametrize("path", [path for path in ATTACKS if path.startswith(("keyframe/", "coded/"))])
def test_a_hostile_keyframe_is_refused_by_a_reader_of_a_part_too(path: str) -> None:
    told, store = attacked(path)
    honest = honest_run(told["run"])
    by_slice(honest, copied(honest.store))
    tracemalloc.start()
    try:
        error = by_slice(honest, store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    if path in BY_DIGEST:
        assert error is None, "it takes all cells to see it"
    else:
        assert type(error).__name__ in told["errors"], repr(error)


def test_the_files_are_what_the_builder_writes() -> None:
    # The words are those of the readers' messages: the test above looks at them.
    made = documents(lambda path: json.loads((FOLDER / path).read_text())["words"])
    assert sorted(made) == sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.json"))
    for path, text in made.items():
        assert (FOLDER / path).read_text() == text, f"{path}: run python -m tests.security.attacks.make"
    assert (FOLDER / "README.md").read_text() == table()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_honest_run_is_taken(family: str) -> None:
    about = FAMILIES[family]
    honest = honest_run(about.run)
    error = read(about.reader, honest, copied(honest.store))
    assert str(error) in ("", "None"), "what is refused of the others is what was changed in them"


FORGED: dict[str, tuple[str, Forge]] = {
    "a patch": ("gap", patch(lambda parts: None)),
    "a group of gap": ("gap", group(lambda parts, patch: None)),
    "a group of class": ("class", group(lambda parts, patch: None)),
    "words": ("gap", words(list)),
    "another step in a record": ("gap", commit(lambda record: record.update(step=77))),
    "a shard": ("gap", shard(lambda data: data)),
    "a shard's header": ("gap", shard_header(lambda header: header)),
    "an index": ("gap", index(lambda data: data)),
    "other pieces": ("gap", pieces(lambda listed: listed.update(size=1 << 20))),
    "a layout": ("gap", layout(lambda document: None)),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_the_forger_writes_without_a_change_is_taken(what: str) -> None:
    run, forge = FORGED[what]
    honest = honest_run(run)
    store = copied(honest.store)
    forge(store)
    assert read("join", honest, store) is None, "a forged run is refused for its content alone, not for its hashes"
    assert read("pull", honest, store) is None


def test_each_row_of_the_table_has_a_file() -> None:
    assert len(ATTACKS) == count()
