"""A mixture of experts on one rank and on two: live cells, answers, and the packing of experts in each step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.support.engine import Engine
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start, cells_of, fresh_answers
from tests.engines.support.models import MOE, changed, moe_parameters, random_weights, write_model

PROBED = PULSE | {"worker_extension_cls": "tests.engines.support.experts.ExpertsProbe"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Versions 0 to 3 of a Qwen3-MoE: 1 to 3 change two cells of a hundred each."""
    folder = tmp_path_factory.mktemp("experts")
    made = History(folder / "registry", "experts", folder, config=MOE)
    made.push(random_weights(MOE))
    for seed in (1, 2, 3):
        made.push(changed(made.states[-1], seed, 0.02))
    write_model(MOE, made.states[0], folder / "model")
    return made


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def engine(start: Start, run: History, ranks: int) -> Iterator[Engine]:
    """An engine that was loaded from version 0, and follows the run."""
    engine = start(run.folder / "model", UNPACKED, tensor_parallel_size=ranks, **PROBED)
    engine.open_run(run.url, run.run, 0)
    yield engine
    engine.close()


def test_it_goes_forwards_by_several_and_backwards_in_place(engine: Engine, run: History, ranks: int) -> None:
    places = engine.rpc("probe_addresses")
    for version in (0, 1, 3, 1, 2, 0):
        engine.update(version=version)
        expected = [cells_of(moe_parameters(run.states[version], rank, ranks)) for rank in range(ranks)]
        assert engine.rpc("probe_cells") == expected, version
        assert engine.rpc("pulse_verify") == [version] * ranks
    engine.rpc("pulse_stage", 2)
    assert [one["version"] for one in engine.rpc("pulse_apply", 2)] == [2] * ranks
    assert engine.rpc("pulse_undo") == [0] * ranks
    assert engine.rpc("probe_cells") == [cells_of(moe_parameters(run.states[0], rank, ranks)) for rank in range(ranks)]
    assert engine.rpc("probe_addresses") == places


def test_it_answers_as_a_fresh_engine_that_was_loaded_from_the_version(
    engine: Engine, run: History, start: Start, ranks: int
) -> None:
    engine.update(version=0)
    first = engine.generate(PROMPTS)
    fresh = fresh_answers(start, run, 2, tensor_parallel_size=ranks)
    engine.update(version=2)
    assert engine.generate(PROMPTS) == fresh
    for (_, of_one), (_, of_other) in zip(first, fresh, strict=True):
        assert not set(of_one) & set(of_other)
    engine.update(version=0)
    assert engine.generate(PROMPTS) == first


@pytest.mark.parametrize(("tokens", "each", "biased"), [(2, 2, False), (3, 1, True), (50, 4, True)])
def test_a_step_gives_the_bits_of_experts_that_vllm_packs_when_it_loads_them(
    engine: Engine, ranks: int, tokens: int, each: int, biased: bool
) -> None:
    """Few tokens, so that not all experts are used; and more tokens than experts."""
    assert engine.rpc("probe_step", tokens, each, biased) == [(True, True)] * ranks
