"""vLLM on two ranks, in processes of their own: all are brought to a version, or none."""

from __future__ import annotations

import pytest

from tests.engines.support.engine import Engine, EngineError
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start, cells_of, fresh_answers
from tests.engines.support.models import llama_parameters


@pytest.fixture(scope="module")
def engine(start: Start, history: History) -> Engine:
    """An engine of two ranks that was loaded from version 0, and follows the run."""
    engine = start(history.folder / "model", UNPACKED, tensor_parallel_size=2, **PULSE)
    engine.open_run(history.url, history.run, 0)
    return engine


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


def test_it_answers_as_a_fresh_engine_of_two_ranks(engine: Engine, history: History, start: Start) -> None:
    fresh = fresh_answers(start, history, 2, tensor_parallel_size=2)
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
