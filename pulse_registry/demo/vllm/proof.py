"""The proof: each engine says what a fresh one says that loaded the same version from disk, and knows no registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulse_registry.demo.vllm.engine import Answer


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found.

    Attributes:
        version: that all hold.
        prompts: that were answered greedily, one after the other.
        logprobs: of the chosen tokens, that were compared; bit by bit, as 64-bit floats.
        equal: by engine, whether its tokens and log-probabilities are those of the fresh one.
        control: how many log-probabilities of the first engine's first version are those of the fresh one.
        weights: whether the store's newest version has the trainer's cells, by SHA-256.
        problems: what was not as it should be.
    """

    version: int
    prompts: int
    logprobs: int
    equal: Mapping[str, bool]
    control: int
    weights: bool
    problems: Sequence[str]


def prove(
    version: int,
    fresh: Sequence[Answer],
    answers: Mapping[str, Sequence[Answer]],
    held: Mapping[str, str],
    control: Sequence[Answer],
    *,
    weights: bool,
) -> Proof:
    """Compare what the engines have said.

    Args:
        version: the newest.
        fresh: answers of an engine that loaded it from disk.
        answers: of each engine that followed the run.
        held: the version whose cells each of these holds, as it has compared them.
        control: answers with the first version, which must differ.
        weights: whether the store holds what the trainer has.
    """
    equal = {name: list(said) == list(fresh) for name, said in answers.items()}
    problems = [f"{name} does not answer as a fresh engine of version {version}" for name in equal if not equal[name]]
    problems += [
        f"{name} holds version {found}, and not {version}" for name, found in held.items() if found != str(version)
    ]
    if not weights:
        problems.append(f"version {version} has other cells than the trainer")
    of_fresh = [logprob for _, logprobs in fresh for logprob in logprobs]
    of_control = [logprob for _, logprobs in control for logprob in logprobs]
    same = sum(a == b for a, b in zip(of_fresh, of_control, strict=True))
    if same == len(of_fresh):
        problems.append("the first version answers as the newest one: the comparison says nothing")
    return Proof(version, len(fresh), len(of_fresh), equal, same, weights, problems)
