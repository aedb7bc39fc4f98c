"""The whole with SmolLM2-135M, on one rank and on three: ``make sweep-engines``, which makes its checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.engines.support.engine import Answer, Engine
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start, cells_of, fresh_answers
from tests.engines.support.models import changed, llama_parameters

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Versions 0 to 3: each changes a cell of a hundred of the one before."""
    model, folder = Path(os.environ["PULSE_SMOLLM2"]), tmp_path_factory.mktemp("smollm2")
    made = History(folder / "registry", "smollm2", folder, config=json.loads((model / "config.json").read_text()))
    made.push(load_file(model / "model.safetensors"))
    for seed in (1, 2, 3):
        made.push(changed(made.states[-1], seed, 0.01))
    return made


@pytest.fixture(scope="module", params=[1, 3], ids=["one rank", "three ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    """Its nine heads go into three, and not into two."""
    return int(request.param)


@pytest.fixture(scope="module")
def fresh(start: Start, run: History, ranks: int) -> dict[int, list[Answer]]:
    """What fresh engines say, by version; each has ended before the next one starts, for three ranks take gigabytes."""
    return {version: fresh_answers(start, run, version, tensor_parallel_size=ranks) for version in (1, 3)}


@pytest.fixture(scope="module")
def engine(start: Start, run: History, ranks: int, fresh: dict[int, list[Answer]]) -> Iterator[Engine]:
    """An engine that was loaded from version 0, and follows the run."""
    engine = start(run.checkpoint(0), UNPACKED, tensor_parallel_size=ranks, **PULSE)
    engine.open_run(run.url, run.run, 0)
    yield engine
    engine.close()


def holds(engine: Engine, run: History, ranks: int, version: int) -> bool:
    """Whether each live cell of each rank is the version's, by its bits, and the ranks say so."""
    expected = [cells_of(llama_parameters(run.states[version], rank, ranks)) for rank in range(ranks)]
    return (engine.rpc("probe_cells"), engine.rpc("pulse_version")) == (expected, [version] * ranks)


def test_each_live_cell_is_the_versions(engine: Engine, run: History, ranks: int) -> None:
    places = engine.rpc("probe_addresses")
    for version in (0, 1, 3, 2, 0):  # by one, by several, back by one, back by several
        engine.update(version=version)
        assert holds(engine, run, ranks, version), version
        assert engine.rpc("pulse_verify") == [version] * ranks
    engine.rpc("pulse_stage", 1)
    assert [one["version"] for one in engine.rpc("pulse_apply", 1)] == [1] * ranks
    assert engine.rpc("pulse_undo") == [0] * ranks
    assert holds(engine, run, ranks, 0)
    assert engine.rpc("probe_addresses") == places


def test_it_answers_as_fresh_engines_that_were_loaded_from_the_versions(
    engine: Engine, fresh: dict[int, list[Answer]]
) -> None:
    engine.update(version=0)
    before = engine.generate(PROMPTS)
    for version in (3, 1):  # forwards by several, and backwards
        engine.update(version=version)
        assert engine.generate(PROMPTS) == fresh[version], version
        for (_, of_old), (_, of_fresh) in zip(before, fresh[version], strict=True):
            assert not set(of_old) & set(of_fresh)
        before = fresh[version]
