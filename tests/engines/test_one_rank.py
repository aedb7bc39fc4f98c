"""vLLM on one rank follows a run: every live cell, and what it generates, is the version's; failures change nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engines.support.engine import Engine, EngineError
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start, cells_of, fresh_answers
from tests.engines.support.models import LLAMA, changed, llama_parameters, random_weights


@pytest.fixture(scope="module")
def engine(start: Start, history: History) -> Engine:
    """An engine that was loaded from version 0, and follows the run."""
    engine = start(history.folder / "model", UNPACKED, **PULSE)
    engine.open_run(history.url, history.run, 0)
    return engine


def holds(engine: Engine, history: History, version: int) -> bool:
    """Whether each live cell is the version's, by its bits, and the engine says so."""
    expected = cells_of(llama_parameters(history.states[version]))
    return (engine.rpc("probe_cells"), engine.rpc("pulse_version")) == ([expected], [version])


def test_it_goes_forwards_backwards_and_through_a_keyframe_in_place(engine: Engine, history: History) -> None:
    places = engine.rpc("probe_addresses")
    assert holds(engine, history, 0)
    # By one; by several, with NaNs between; back by several; to NaNs; through the keyframe; by one; back to the start.
    for version in (1, 2, 0, 2, 3, 2, 3, 5, 4, 5, 0):
        engine.update(version=version)
        assert holds(engine, history, version), version
        assert engine.rpc("pulse_verify") == [version]
    assert engine.rpc("probe_addresses") == places


def test_it_answers_as_a_fresh_engine_that_was_loaded_from_the_version(
    engine: Engine, history: History, start: Start
) -> None:
    """Log-probabilities are compared as they are: versions that differ in a few cells differ in them, not in tokens."""
    fresh = {version: fresh_answers(start, history, version) for version in (2, 5)}
    engine.update(version=0)
    first = engine.generate(PROMPTS)
    for version in (2, 5):
        engine.update(version=version)
        assert engine.generate(PROMPTS) == fresh[version], version
    engine.update(version=0)
    assert engine.generate(PROMPTS) == first
    for one, other in ((first, fresh[2]), (fresh[2], fresh[5]), (fresh[5], first)):
        for (_, of_one), (_, of_other) in zip(one, other, strict=True):
            assert not set(of_one) & set(of_other)


def test_what_is_staged_beside_serving_changes_nothing_until_it_is_applied(engine: Engine, history: History) -> None:
    engine.update(version=0)
    before = engine.generate(PROMPTS)
    assert engine.rpc("pulse_stage", 2) == [None]
    assert engine.generate(PROMPTS) == before
    while not engine.rpc("pulse_ready")[0]:
        pass
    with pytest.raises(EngineError, match="version 2 is staged, and not 1"):
        engine.update(version=1, staged=True)
    assert holds(engine, history, 0)
    engine.rpc("pulse_stage", 2)
    engine.update(version=2, staged=True)
    assert holds(engine, history, 2)
    engine.rpc("pulse_stage", 1)
    [applied] = engine.rpc("pulse_apply", 1)
    assert applied["version"] == 1
    assert holds(engine, history, 1)


def test_a_change_is_taken_back(engine: Engine, history: History) -> None:
    engine.update(version=1)
    before = engine.generate(PROMPTS)
    engine.update(version=2)
    assert engine.generate(PROMPTS) != before
    assert engine.rpc("pulse_undo") == [1]
    assert holds(engine, history, 1)
    assert engine.generate(PROMPTS) == before
    engine.update(version=4)
    with pytest.raises(EngineError, match="replaced whole"):
        engine.rpc("pulse_undo")
    assert holds(engine, history, 4)


def test_a_prefix_that_stays_cached_gives_neither_versions_answers(engine: Engine, history: History) -> None:
    """The control of the reset: whoever changes weights has to reset the caches, as `/pause?mode=keep` does."""
    engine.update(version=2)
    new = engine.generate(PROMPTS)
    engine.update(version=1)
    old = engine.generate(PROMPTS)
    engine.update(version=2)
    stale = engine.generate(PROMPTS, reset=False)
    assert stale[-1] not in (old[-1], new[-1])
    assert stale[:-1] == new[:-1]  # too short to be cached
    assert engine.generate(PROMPTS) == new


def damaged(history: History, check: Callable[[], None]) -> None:
    """Flip one byte in the middle of the newest object, and put it back after a check."""
    files = [path for path in (history.url / history.run / "objects").rglob("*") if path.is_file()]
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    whole = newest.read_bytes()
    half = len(whole) // 2
    newest.write_bytes(whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :])
    try:
        check()
    finally:
        newest.write_bytes(whole)


def test_a_failure_leaves_the_old_version_and_says_why(engine: Engine, history: History) -> None:
    engine.update(version=5)
    before = engine.generate(PROMPTS)

    def refused(why: str, **update: object) -> None:
        with pytest.raises(EngineError, match=why):
            engine.update(**update)
        assert holds(engine, history, 5)
        assert engine.generate(PROMPTS) == before

    refused(r"no version 99; the newest is 5", version=99)
    refused("nothing is staged", version=5, staged=True)

    history.push(changed(history.states[5], 6, 0.02))
    damaged(history, lambda: refused("CorruptObject", version=6))
    engine.update(version=6)
    engine.update(version=5)
    assert engine.generate(PROMPTS) == before

    history.push(history.states[5] | {"model.extra.weight": torch.ones(4).bfloat16()})
    refused("LayoutMismatch", version=7)

    away = history.url.with_name("away")
    shutil.move(history.url, away)
    try:
        refused("PulseError|NotFound|StoreUnavailable|CorruptObject", version=2)
    finally:
        shutil.move(away, history.url)
    engine.update(version=2)
    assert holds(engine, history, 2)


def test_a_parameter_that_was_replaced_is_not_written_beside(engine: Engine, history: History) -> None:
    engine.update(version=2)
    name = "model.layers.1.mlp.down_proj.weight"
    engine.rpc("probe_move", 0, name)
    with pytest.raises(EngineError, match=f"parameter {name} is not where it was"):
        engine.update(version=1)
    assert holds(engine, history, 2)
    engine.rpc("probe_put_back", 0)
    engine.update(version=1)
    assert holds(engine, history, 1)


def test_another_run_and_another_version_are_refused_when_it_is_opened(
    engine: Engine, history: History, tmp_path: Path
) -> None:
    engine.update(version=1)
    before = engine.generate(PROMPTS)
    other = History(tmp_path, "other", tmp_path)
    other.push(random_weights(LLAMA, seed=9))
    with pytest.raises(EngineError, match="the slices are not those of version 0"):
        engine.open_run(other.url, other.run, 0)
    with pytest.raises(EngineError, match="call init_weight_transfer_engine first"):
        engine.update(version=0)
    with pytest.raises(EngineError, match="the slices are not those of version 2"):
        engine.open_run(history.url, history.run, 2)
    with pytest.raises(EngineError, match="there is no run 'third'"):
        engine.open_run(history.url, "third", 0)
    assert engine.generate(PROMPTS) == before
    engine.open_run(history.url, history.run, 1)
    assert holds(engine, history, 1)
    engine.update(version=2)
    assert holds(engine, history, 2)
