"""The benchmarks of outer rounds measure what they say; the bytes of recorded rounds hold their limits."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from tests.support.installed import needs

needs("torch")
from benchmarks.outer import dense_store, quality, replay, speed  # noqa: E402
from benchmarks.outer.learning import Plan  # noqa: E402
from benchmarks.outer.methods import Dense, Levels, Values  # noqa: E402
from benchmarks.outer.sample import Sample, cut  # noqa: E402
from benchmarks.outer.text import Size  # noqa: E402
from pulse_kernels.protocol import OuterRates  # noqa: E402

RATES = OuterRates(0.7, 0.9)


def test_recorded_rounds_take_as_few_bytes_as_they_should() -> None:
    """A sample of 65,536 cells of real rounds: here the heads of objects weigh much more than in a whole model."""
    rounds = Sample.read()
    for gain, limit in replay.PAYLOAD_LIMIT.items():
        told, patches = replay.levels(rounds, gain, lambda _: None)
        after = [one for one in told if one.round > 1]
        assert len(after) == rounds.trainers * (rounds.rounds - 1) >= 8
        assert all(4 * len(rounds.start) / one.nbytes > limit for one in after)
        bits = 8 * sum(one.nbytes - one.head for one in after)
        assert bits / sum(one.entries for one in after) <= replay.BITS_LIMIT
        assert min(patches) > 0
        if gain > 1:  # so that there are enough entries for statistics to be worth their bytes
            assert bits / sum(one.entropy * one.entries for one in after) <= replay.ENTROPY_LIMIT


@pytest.mark.slow
def test_float32_values_of_recorded_rounds_take_many_times_more() -> None:
    rounds = Sample.read()
    told, _ = replay.levels(rounds, 1.0, lambda _: None)
    others = replay.others(rounds, 1.0, lambda _: None)
    for ours, theirs in zip(told, others, strict=True):
        assert theirs.nbytes["12 bytes an entry"] > 8 * (ours.nbytes - ours.head)
        assert theirs.density >= ours.density


def test_figures_of_bytes_are_of_every_gain_and_those_that_are_promised_have_limits() -> None:
    rounds = Sample.read()
    part = cut(rounds, rounds.recipe, stretches=4, length=1000)
    found = {row["key"]: row for row in replay.document(part, rounds.recipe, say=lambda _: None)["rows"]}
    limits = {gain: found[f"{gain:g}.payload"].get("limit") for gain in (1.0, 7.0, 14.0)}
    assert limits == {1.0: 100.0, 7.0: 30.0, 14.0: None}
    assert found["1.values.density"]["value"] > found["1.density"]["value"] > 0


def test_a_sample_is_read_as_it_was_written(tmp_path: Path) -> None:
    rounds = Sample.read()
    part = cut(rounds, rounds.recipe, stretches=4, length=100)
    part.write(tmp_path / "part.npz")
    found = Sample.read(tmp_path / "part.npz")
    assert found.start.tolist() == part.start.tolist()
    assert found.gradients.tobytes() == part.gradients.tobytes()
    assert found.recipe == rounds.recipe
    assert part.gradients[1, 2, :100].tobytes() == rounds.gradients[1, 2, :100].tobytes()


def test_all_methods_step_alike_where_all_is_sent() -> None:
    """With a gain that passes all, float32 values are DiLoCo; with fine levels, ours is next to it."""
    rng = np.random.default_rng(1)
    start = (rng.standard_normal(4000) * 0.02).astype(np.float32)
    cells = (start.view(np.uint32) >> 16).astype(np.uint16)
    start = (cells.astype(np.uint32) << 16).view(np.float32)
    methods = Dense(start, 2, RATES), Values(start, 2, RATES, 1e9), Levels([("w", (4000,))], cells, 2, RATES, 1e9)
    for _ in range(3):
        moved = [(rng.standard_normal(4000) * 1e-5).astype(np.float32) for _ in range(2)]
        for method in methods:
            before = method.weights().copy()
            for trainer in range(2):
                method.contribute(trainer, before - moved[trainer])
            method.step()
    dense, values, levels = (method.weights() for method in methods)
    assert dense.tobytes() == values.tobytes()
    assert 0 < np.abs(levels - dense).max() < 2e-5 < np.abs(dense - start).max()


@pytest.mark.slow
def test_figures_of_quality_are_of_every_method() -> None:
    size = Size(width=24, layers=1, heads=1, first_steps=2, held_out=64)
    regime = quality.Regime(1e-5, ["DiLoCo", "values, gain 1", "levels, gain 1", "one trainer", "DDP"])
    runs = quality.measure(Plan(rounds=4), size, "drift", regime, 0)
    assert all(set(run.losses) == {0, 1, 2, 3, 4} for run in runs)
    keys = [row.key for row in quality.rows(runs)]
    assert {"drift.4.like values, gain 1", "drift.4.like values, gain 1, most"} <= set(keys)
    assert all(f"drift.4.{method}" in keys for method in regime.methods)


@pytest.mark.slow
def test_times_are_of_every_piece_of_a_round() -> None:
    times = speed.measure(200_000, 7.0, 1, 0, lambda _: None)
    assert all(len(taken) == 1 and taken[0] > 0 for taken in times.values())
    rows = {row.key: row.value for row in speed.rows(times, 7.0)}
    assert rows["7.ratio"] == pytest.approx(
        (times["measure"][0] + times["gate"][0] + times["code"][0]) / times["push"][0]
    )
    cores = [times[f"{piece}, cores"][0] for piece in ("measure", "gate", "code", "push")]
    assert rows["7.ratio.cores"] == pytest.approx(sum(cores[:3]) / cores[3])


def test_dense_values_in_4_bits_are_read_as_they_were_written() -> None:
    grid = np.array([0, 0.5, -1, 1.5, -2, 3, 4, -6], np.float32)
    exact = np.concatenate([np.ldexp(np.tile(grid, 4), -k) for k in range(5)]).astype(np.float32)[:130]
    assert dense_store.decode(dense_store.encode(exact, "F4"), "F4").tolist() == exact.tolist()
    values = (np.random.default_rng(1).standard_normal(1001) * 1e-5).astype(np.float32)
    coded = dense_store.encode(values, "F4")
    assert len(coded) == pytest.approx(1001 * 4.25 / 8, rel=0.05)
    assert np.abs(dense_store.decode(coded, "F4") - values).max() < np.abs(values).max() / 4
    assert dense_store.decode(dense_store.encode(values, "F32"), "F32").tobytes() == values.tobytes()


@pytest.mark.slow
def test_rounds_through_a_store_take_what_goes_up_and_down() -> None:
    found = dense_store.measure(f"memory://{uuid.uuid4().hex}", 200_000, 2, 0, lambda _: None)
    for name, rounds in found.items():
        up, down = rounds[-1]["up"], rounds[-1]["down"]
        if name.startswith("gain"):
            assert down == pytest.approx(3 * up, rel=0.05)
        else:
            assert up == pytest.approx(down * 5 / 8, rel=0.05)
    assert found["gain 1"][-1]["up"] < found["F4"][-1]["up"] < found["F32"][-1]["up"]
