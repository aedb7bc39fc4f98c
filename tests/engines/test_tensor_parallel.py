"""vLLM on two ranks, in processes of their own: all are brought to a version, or none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.support.engine import Answer, Engine, EngineError
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start, cells_of, fresh_answers
from tests.engines.support.models import llama_parameters


@pytest.fixture(scope="module")
def engine(start: Start, history: History) -> Engine:
    """An engine of two ranks that was loaded from version 0, and follows the run."""
    engine = start(history.folder / "model", UNPACKED, tensor_parallel_size=2, **PULSE)
    engine.open_run(history.url, history.run, 0)
    return engine


@pytest.fixture(scope="module")
def fresh(history: History, start: Start) -> list[Answer]:
    """What a new engine of two ranks says that was loaded from version 2."""
    return fresh_answers(start, history, 2, tensor_parallel_size=2)


@pytest.fixture(scope="module")
def dense(history: History) -> History:
    """The same versions as a run of one keyframe and patches of coder `class`, whose decoding needs whole groups."""
    made = History(history.url, "dense", history.folder)
    for weights in history.states:
        made.push(weights, coder="class", keyframe_share=1e9)
    return made


@pytest.fixture
def following(engine: Engine, history: History, dense: History) -> Iterator[Engine]:
    """The engine at version 2 of that run, which has no keyframe there; after the test it follows the first run."""
    engine.update(version=2)
    engine.open_run(dense.url, dense.run, 2)
    yield engine
    engine.open_run(history.url, history.run, engine.rpc("pulse_version")[0])


def holds(engine: Engine, history: History, version: int) -> bool:
    """Whether each live cell of each rank is the version's, by its bits, and the ranks say so."""
    expected = [cells_of(llama_parameters(history.states[version], rank, 2)) for rank in range(2)]
    return (engine.rpc("probe_cells"), engine.rpc("pulse_version")) == (expected, [version, version])


def test_all_ranks_go_forwards_and_backwards_in_place(engine: Engine, history: History) -> None:
    places = engine.rpc("probe_addresses")
    assert holds(engine, history, 0)
    for version in (1, 3, 2, 0, 5, 0):
        engine.update(version=version)
        assert holds(engine, history, version), version
        assert engine.rpc("pulse_verify") == [version, version]
    engine.rpc("pulse_stage", 1)
    assert [one["version"] for one in engine.rpc("pulse_apply", 1)] == [1, 1]
    assert holds(engine, history, 1)
    assert engine.rpc("pulse_undo") == [0, 0]
    assert holds(engine, history, 0)
    assert engine.rpc("probe_addresses") == places


def test_it_answers_as_a_fresh_engine_of_two_ranks(engine: Engine, fresh: list[Answer]) -> None:
    engine.update(version=1)
    old = engine.generate(PROMPTS)
    engine.update(version=2)
    assert engine.generate(PROMPTS) == fresh
    assert old != fresh


@pytest.mark.parametrize("rank", [0, 1])
def test_what_fails_on_one_rank_changes_none(engine: Engine, history: History, rank: int) -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    engine.update(version=2)
    before = engine.generate(PROMPTS)
    engine.rpc("probe_move", rank, name)
    engine.rpc("pulse_stage", 1)
    with pytest.raises(EngineError, match=f"rank {rank}: parameter {name} is not where it was"):
        engine.rpc("pulse_apply")
    with pytest.raises(EngineError, match=f"rank {rank}: parameter {name} is not where it was"):
        engine.update(version=1)
    assert holds(engine, history, 2)
    assert engine.generate(PROMPTS) == before
    engine.rpc("probe_put_back", rank)
    engine.update(version=1)
    assert holds(engine, history, 1)


def test_after_a_failure_on_all_ranks_each_answer_is_that_of_its_call(engine: Engine, history: History) -> None:
    engine.update(version=1)
    for _ in range(2):
        with pytest.raises(EngineError, match="no version 99"):
            engine.update(version=99)
        assert engine.rpc("pulse_version") == [1, 1]
    engine.update(version=2)
    assert holds(engine, history, 2)


def test_patches_that_need_whole_groups_are_followed_with_a_host_copy(
    following: Engine, dense: History, fresh: list[Answer]
) -> None:
    places = following.rpc("probe_addresses")
    for version in (3, 5, 0, 1):
        following.update(version=version)
        assert holds(following, dense, version), version
    old = following.generate(PROMPTS)
    following.rpc("pulse_stage", 2)
    assert [one["changed"] > 0 for one in following.rpc("pulse_apply", 2)] == [True, True]
    assert holds(following, dense, 2)
    assert following.generate(PROMPTS) == fresh != old
    assert following.rpc("pulse_undo") == [1, 1]
    assert holds(following, dense, 1)
    following.update(version=3)
    assert holds(following, dense, 3)
    assert following.rpc("pulse_verify") == [3, 3]
    assert following.rpc("probe_addresses") == places


def test_what_fails_with_a_host_copy_changes_no_rank(following: Engine, dense: History) -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    following.rpc("probe_move", 1, name)
    with pytest.raises(EngineError, match=f"rank 1: parameter {name} is not where it was"):
        following.update(version=3)
    with pytest.raises(EngineError, match="no version 99"):
        following.update(version=99)
    following.rpc("probe_put_back", 1)
    assert holds(following, dense, 2)
    following.update(version=3)
    assert holds(following, dense, 3)
