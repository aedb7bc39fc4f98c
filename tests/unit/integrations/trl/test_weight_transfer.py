"""The weight transfer pushes what it is sent, whatever else goes wrong, and reads what others gather to its end."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pulse_registry
from pulse_registry import InvalidModel, PushResult, Registry
from pulse_registry.store import MemoryStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.registries import quick

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def transfer(*args: Any, **kwargs: Any) -> Any:
    return importlib.import_module("pulse_registry.integrations.trl").PulseWeightTransfer(*args, **kwargs)


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(8, 8) for name in ("first", "second")}


def sync(sending: Any, policy: dict[str, torch.Tensor]) -> None:
    """As AsyncGRPOTrainer does it for each version."""
    sending.pause()
    sending.send_weights(iter(policy.items()))
    sending.resume()


def test_each_sync_is_a_version_that_engines_hear_of_when_it_is_committed() -> None:
    heard: list[PushResult] = []
    with pulse_registry.open("memory://transfer", run="math") as worker:

        def notify(result: PushResult) -> None:
            assert worker.version("latest").version == result.version
            heard.append(result)

        policy, sending = weights(), transfer("memory://transfer", run="math", notify=notify)
        sending.init_weight_transfer()
        sync(sending, policy)
        policy["first"][3, 4] += 1
        sync(sending, policy)
        sending.destroy()
        assert [result.changed for result in heard] == [128, 1]
        found = worker.load("latest", framework="torch")
        assert all(torch.equal(found[name], policy[name].bfloat16()) for name in policy)


def test_a_later_training_goes_on_with_the_run_and_counts_on() -> None:
    policy = weights()
    for _ in range(2):
        sending = transfer("memory://transfer-again", run="math")
        sending.init_weight_transfer()
        sync(sending, policy)
        sending.destroy()
        sync(sending, policy)  # TRL does not set up again when a trainer trains once more
        sending.destroy()
    with pulse_registry.open("memory://transfer-again", run="math") as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2, 3]


def test_what_other_ranks_gather_is_read_to_its_end_before_an_error() -> None:
    read = []

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("first", "first", "second"):
            read.append(name)
            yield name, torch.zeros(2)

    with pytest.raises(InvalidModel, match="'first' was sent twice"):
        transfer("memory://transfer-twice", run="math").send_weights(gathered())
    assert len(read) == 3


def test_a_store_that_is_down_costs_a_version_and_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("pulse_registry.integrations.trl.weight_transfer")
    down = Fault("fail_before", "put", lambda _, key: "objects/patch/" in key, nth=1)
    store = FaultStore(MemoryStore("transfer-down"), [down])

    def opened(_: str, *, run: str) -> Registry:
        return quick(store, dtype="bf16")

    monkeypatch.setattr(module, "open_run", opened)
    heard: list[PushResult] = []
    policy, sending = weights(), transfer("-", run="-", notify=heard.append)
    sync(sending, policy)
    policy["first"][0, 0] += 1
    sync(sending, policy)
    policy["second"][0, 0] += 1
    sync(sending, policy)
    sending.destroy()
    assert [result.changed for result in heard] == [128, 2]
    with quick(store) as worker:
        found = worker.load("latest", framework="torch")
        assert all(torch.equal(found[name], policy[name].bfloat16()) for name in policy)
