"""States: synthetic ones look like a policy's, recorded ones are read from files, and a live model walks them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.sizes import entropy_bits, near_share
from benchmarks.states import Changed, Live, States, StatesError, Tensor, load_states, save_states, visits
from benchmarks.synthetic import synthetic_states

CELLS = 300_000


@pytest.fixture(scope="module")
def synthetic() -> States:
    return synthetic_states(CELLS, steps=3, seed=7)


def test_synthetic_states_change_about_one_percent_of_the_cells_a_step_mostly_to_a_neighbouring_value(
    synthetic: States,
) -> None:
    for step in range(3):
        assert 0.003 < synthetic.changed(step) / synthetic.cells < 0.015
        assert 0.8 < near_share(synthetic, step) < 1.0


def test_synthetic_states_have_about_the_size_asked_for(synthetic: States) -> None:
    assert 0.8 * CELLS < synthetic.cells < 1.25 * CELLS
    assert {tensor.dtype for tensor in synthetic.tensors} == {"BF16"}


def test_the_same_seed_gives_the_same_states_and_another_seed_others(synthetic: States) -> None:
    again, other = synthetic_states(CELLS, 3, 7), synthetic_states(CELLS, 3, 8)
    for a, b in zip(synthetic.first, again.first, strict=True):
        assert np.array_equal(a, b)
    assert [synthetic.changed(k) for k in range(3)] == [again.changed(k) for k in range(3)]
    assert [synthetic.changed(k) for k in range(3)] != [other.changed(k) for k in range(3)]


def test_saved_states_are_read_back_equal(synthetic: States, tmp_path: Path) -> None:
    save_states(synthetic, tmp_path, 4)
    read = load_states(tmp_path, "here")
    assert (read.kind, read.title, list(read.tensors)) == ("recorded", "here", list(synthetic.tensors))
    one, other = Live(synthetic), Live(read)
    for state in range(4):
        one.go(state)
        other.go(state)
        for a, b in zip(one.cells, other.cells, strict=True):
            assert np.array_equal(a, b)


def test_a_live_model_comes_back_to_where_it_was_without_moving(synthetic: States) -> None:
    live = Live(synthetic)
    model = live.model()
    live.go(3)
    assert not all(np.array_equal(a, b) for a, b in zip(live.cells, synthetic.first, strict=True))
    live.go(0)
    for tensor, cells, first in zip(synthetic.tensors, live.cells, synthetic.first, strict=True):
        assert np.array_equal(cells, first)
        assert np.shares_memory(model[tensor.name], cells)


def test_a_folder_with_one_state_or_with_two_layouts_is_refused(synthetic: States, tmp_path: Path) -> None:
    save_states(synthetic, tmp_path, 1)
    with pytest.raises(StatesError, match="at least two states"):
        load_states(tmp_path)
    (tmp_path / "other").mkdir()
    save_states(synthetic_states(20_000, 1), tmp_path / "other", 1)
    (tmp_path / "other" / "state-000.safetensors").rename(tmp_path / "state-001.safetensors")
    with pytest.raises(StatesError, match="other tensors"):
        load_states(tmp_path)


def test_visits_go_forwards_then_backwards_until_there_are_enough() -> None:
    assert visits(3, 2) == [1, 2, 3]
    assert visits(3, 8) == [1, 2, 3, 2, 1, 0, 1, 2]
    assert visits(1, 4) == [1, 0, 1, 0]


def test_entropy_of_a_fair_coin_a_cell_and_a_fair_coin_a_distance_is_what_arithmetic_says() -> None:
    # 4 of 8 cells of one exponent change (1 bit a cell), two by +1 and two by +2 (1 bit each): 12 bits for 4 changes.
    old = np.full(8, 0x3F80, np.uint16)
    index = np.array([0, 2, 4, 6], np.uint32)
    new = np.array([0x3F81, 0x3F82, 0x3F81, 0x3F82], np.uint16)
    states = States("synthetic", "coins", 0, [Tensor("w", "BF16", (8,))], [old], [[Changed(index, old[index], new)]])
    assert entropy_bits([old], states, 0) == pytest.approx(3.0)
    assert near_share(states, 0) == 0.5


def test_a_learning_rate_makes_the_density_and_states_come_back_from_files(tmp_path: Path) -> None:
    runner, found = CliRunner(), []
    for rate in (1e-7, 1e-5):
        folder = tmp_path / str(rate)
        arguments = ["synthetic", str(folder), "--cells", "40000", "--steps", "2", "--rate", str(rate)]
        answer = runner.invoke(app, arguments)
        assert answer.exit_code == 0, answer.output
        found.append(load_states(folder))
    few, many = (states.changed(0) / states.cells for states in found)
    assert 0 < few < many / 10
