"""Prefetching through a service: its answer wakes the worker, and what comes lies in the node's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulse_registry
from tests.scenarios.service.policies import blank, equal, opened, policy
from tests.support.service import Service
from tests.support.waiting import HANG_S


@pytest.mark.slow
def test_a_version_announced_by_a_service_is_ready_without_the_caller(
    file_service: Service, run: str, tmp_path: Path
) -> None:
    with opened(file_service, run) as trainer:
        trainer.push(0, policy(0))
        with pulse_registry.open(
            file_service.url,
            run=run,
            token=file_service.token,
            cache=tmp_path,
            compute=pulse_registry.ComputeOptions(backend="reference"),
        ) as worker:
            weights = blank(policy(0))
            worker.pull(into=weights)
            # Looks at a log that is in a bucket would come an hour apart.
            with worker.prefetch(into=weights, poll_seconds=3600.0) as prefetch:
                for number in (1, 2):
                    trainer.push(number, policy(number))
                    staged = prefetch.take(timeout=HANG_S)
                    assert staged is not None
                    with staged:
                        assert staged.apply().version == number
                    assert equal(weights, policy(number))
    assert len([file for file in tmp_path.iterdir() if len(file.name) == 64]) == 4
