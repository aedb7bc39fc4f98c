"""Requests under way when the weights change: with recomputed KV they go on as if the version had always been there."""

from __future__ import annotations

import pytest

from tests.engines.support.engine import Answer, Engine
from tests.engines.support.fixtures import PROMPTS, PULSE, UNPACKED, History, Start, fresh_answers
from tests.engines.support.models import LLAMA, nudged, random_weights, write_model

STEPS = 6


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Versions 0 to 2, which differ so little that their first tokens are the same: else no tails can be compared."""
    folder = tmp_path_factory.mktemp("near")
    made = History(folder / "registry", "near", folder)
    made.push(random_weights(LLAMA))
    for seed in (1, 2):
        made.push(nudged(made.states[-1], seed, 0.01))
    write_model(LLAMA, made.states[0], folder / "model")
    return made


@pytest.fixture(scope="module")
def engine(start: Start, near: History) -> Engine:
    engine = start(near.folder / "model", UNPACKED, **PULSE)
    engine.open_run(near.url, near.run, 0)
    return engine


def changed_in_flight(engine: Engine, before: int, after: int, *, recompute: bool) -> list[Answer]:
    """Return answers that begin with one version and end with another one."""
    engine.update(version=before)
    engine.rpc("pulse_stage", after)
    return engine.in_flight(PROMPTS, STEPS, after, recompute=recompute)


def parts(answers: list[Answer]) -> tuple[list[Answer], list[Answer]]:
    """Return what came before the pause, and what came after it."""
    heads = [(tokens[:STEPS], chances[:STEPS]) for tokens, chances in answers]
    return heads, [(tokens[STEPS:], chances[STEPS:]) for tokens, chances in answers]


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (2, 0)])
def test_tails_are_those_of_an_engine_that_had_the_version_all_along(engine: Engine, before: int, after: int) -> None:
    """That engine's requests are preempted at the same step, so that both compute the same batches."""
    engine.update(version=after)
    old_heads, always = parts(engine.in_flight(PROMPTS, STEPS, None, recompute=True))
    heads, tails = parts(changed_in_flight(engine, before, after, recompute=True))
    kept_heads, kept = parts(changed_in_flight(engine, before, after, recompute=False))
    assert kept_heads == heads
    comparable = [k for k in range(len(PROMPTS)) if heads[k][0] == old_heads[k][0]]
    assert comparable, "the versions are too far apart"
    for k in comparable:
        assert not set(heads[k][1]) & set(old_heads[k][1]), "the control: they began with another version"
        assert tails[k] == always[k]
        assert kept[k][1] != always[k][1], "the control: the old version's keys and values"


def test_tails_are_what_a_fresh_engine_of_the_version_makes_of_the_tokens_before(
    engine: Engine, near: History, start: Start
) -> None:
    heads, tails = parts(changed_in_flight(engine, 0, 2, recompute=True))
    longer = [[*prompt, *tokens] for prompt, (tokens, _) in zip(PROMPTS, heads, strict=True)]
    fresh = fresh_answers(start, near, 2, prompts=longer)
    assert tails == fresh
    _, kept = parts(changed_in_flight(engine, 0, 2, recompute=False))
    for (_, of_kept), (_, of_fresh) in zip(kept, fresh, strict=True):
        assert of_kept != of_fresh
