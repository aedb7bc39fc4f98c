"""What a pull checks of the weights that it changes: the cells that change, or all of them if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pulse_registry
from pulse_registry import PullOptions, Registry
from pulse_registry.errors import BaseMismatch, InvalidArgument
from tests.support.registries import Model, bits, copy_of
from tests.support.waiting import until

Pull = Callable[[Registry, Model], object]


def staged_by_prefetch(worker: Registry, into: Model) -> None:
    with worker.prefetch(into=into, poll_seconds=0.01, check="all") as prefetch:
        until(lambda: prefetch.error is not None)
        assert prefetch.error is not None
        raise prefetch.error


SEEN: dict[str, tuple[dict[str, Any], Pull]] = {
    "pull": ({}, lambda worker, into: worker.pull(into=into, check="all")),
    "stage": ({}, lambda worker, into: worker.stage(into=into, check="all")),
    "prefetch": ({}, staged_by_prefetch),
    "open": ({"pull": PullOptions(check="all")}, lambda worker, into: worker.pull(into=into)),
    "a pull that changes nothing": ({}, lambda worker, into: worker.pull(0, into=into, check="all")),
    "every pull": ({"pull": PullOptions(check=1)}, lambda worker, into: worker.pull(into=into)),
}


class Site:
    """A run of versions that change cell 0 alone, and a worker at the first of them."""

    def __init__(self, name: str, **options: Any) -> None:
        self.model = {"w": np.arange(1000, dtype=np.uint16)}
        self.into = copy_of(self.model)
        url = f"memory://base-check-{name}"
        self.trainer = pulse_registry.open(
            url,
            run="run",
            push=pulse_registry.PushOptions(keyframe_share=1e9),
            compute=pulse_registry.ComputeOptions(backend="reference"),
        )
        self.worker = pulse_registry.open(
            url, run="run", compute=pulse_registry.ComputeOptions(backend="reference"), **options
        )
        self.push()
        self.worker.pull(into=self.into)

    def push(self) -> None:
        self.model["w"][0] += 1
        self.trainer.push(0, self.model)

    def close(self) -> None:
        self.worker.close()
        self.trainer.close()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(request.node.name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_by_default_a_worker_s_own_change_of_cells_that_no_patch_touches_is_not_seen(site: Callable[..., Site]) -> None:
    at = site()
    at.push()
    at.into["w"][500] ^= 1
    at.worker.pull(into=at.into)
    assert np.flatnonzero(at.into["w"] != at.model["w"]).tolist() == [500]


@pytest.mark.parametrize("way", SEEN)
def test_if_all_cells_are_checked_it_is_seen_before_a_cell_changes(site: Callable[..., Site], way: str) -> None:
    options, pull = SEEN[way]
    at = site(**options)
    at.push()
    at.into["w"][500] ^= 1
    before = bits(at.into)
    with pytest.raises(BaseMismatch, match=r"not version 0: .*replace=True"):
        pull(at.worker, at.into)
    assert bits(at.into) == before
    at.worker.pull(into=at.into, replace=True, check="all")
    assert bits(at.into) == bits(at.model)


def test_weights_that_are_as_they_were_pulled_pass(site: Callable[..., Site]) -> None:
    at = site(pull=PullOptions(check="all"))
    for _ in range(3):
        at.push()
        at.worker.pull(into=at.into)
        assert bits(at.into) == bits(at.model)
    with at.worker.stage(1, into=at.into) as back:  # by what the worker keeps to go back
        back.apply()
    assert at.into["w"][0] == 2


def test_every_third_pull_checks_all_cells(site: Callable[..., Site]) -> None:
    at = site(pull=PullOptions(check=3))
    at.into["w"][500] ^= 1
    at.push()
    assert at.worker.pull(into=at.into).version == 1  # the second one
    at.push()
    for _ in range(2):
        with pytest.raises(BaseMismatch):
            at.worker.pull(into=at.into)
    at.worker.pull(into=at.into, replace=True)
    assert bits(at.into) == bits(at.model)
    at.into["w"][500] ^= 1
    at.push()
    assert at.worker.pull(into=at.into).version == 3
    assert at.worker.pull(into=at.into, check="touched").version == 3
    at.worker.pull(into=at.into, check="touched")
    with pytest.raises(BaseMismatch):
        at.worker.pull(into=at.into, check="all")


@pytest.mark.parametrize("check", ["some", "", 0, -1, True, 1.5, None, "2"])
def test_there_is_no_other_way_to_check(site: Callable[..., Site], check: Any) -> None:
    with pytest.raises(InvalidArgument, match="check is "):
        pulse_registry.open("memory://base-check", run="run", pull=pulse_registry.PullOptions(check=check))
    at = site(pull=PullOptions(check=np.int64(2)))
    if check is not None:
        for refusing in (at.worker.pull, at.worker.stage, at.worker.prefetch):
            with pytest.raises(InvalidArgument, match="check is "):
                refusing(into=at.into, check=check)
