"""Bad days between client and service: answers that are lost, bytes that are damaged, a service that is gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from pulse_registry import Registry, StoreUnavailable
from pulse_registry.client.store import ServiceStore
from pulse_registry.client.transport import Timeouts
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.store import RetryStore
from pulse_registry.store.wrappers.retry import RetryPolicy
from tests.scenarios.service.policies import blank, equal, opened, policy
from tests.support.scripted_http import Asked, Reply, Server, forward, serving
from tests.support.service import Service
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

OPTIONS = PushOptions(dtype="keep", keyframe_share=1e9, keyframe_every=4)
PATIENCE = Timeouts(silence_s=HANG_S)


class Mischief:
    """A proxy before the service that does harm to requests of its choice, after the service has acted."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self.count = 0
        self.harmed = 0
        self.harm: dict[int, str] = {}
        self.only: str | None = None

    def script(self, asked: Asked) -> Reply:
        reply = forward(asked, self._service.url)
        if self.only is not None and not (asked.method == "POST" and asked.path.endswith(self.only)):
            return reply
        with self._lock:
            how = self.harm.get(self.count)
            self.count += 1
            self.harmed += how is not None
        if how == "lost":
            return Reply(lost=True)
        if how == "damaged" and reply.body:
            at = len(reply.body) // 2
            return Reply(reply.status, reply.headers, reply.body[:at] + b"\0" + reply.body[at + 1 :])
        if how == "cut" and reply.body:
            return Reply(reply.status, reply.headers, reply.body[: len(reply.body) // 2], length=len(reply.body))
        return Reply(503) if how == "busy" else reply


@pytest.fixture
def mischief(file_service: Service) -> Mischief:
    return Mischief(file_service)


@pytest.fixture
def proxy(mischief: Mischief) -> Iterator[Server]:
    with serving(mischief.script) as server:
        yield server


def through(proxy: Server, service: Service, run: str) -> Registry:
    store = ServiceStore(proxy.url, service.token, timeouts=PATIENCE)
    return Registry(store, run, Options(push=OPTIONS, owns_store=True, compute=ComputeOptions(backend="reference")))


@pytest.mark.parametrize("path", ["/log", "/uploads", "/urls"])
@pytest.mark.parametrize("how", ["lost", "damaged", "busy"])
def test_whatever_answer_is_lost_a_push_is_committed_once(
    proxy: Server, mischief: Mischief, file_service: Service, run: str, path: str, how: str
) -> None:
    mischief.only, mischief.harm = path, {0: how, 2: how, 3: how}
    with through(proxy, file_service, run) as trainer:
        for number in range(3):
            assert trainer.push(number, policy(number)).version == number
        weights = blank(policy(0))
        trainer.pull("latest", into=weights)
    assert mischief.harmed
    assert equal(weights, policy(2))
    with opened(file_service, run) as registry:
        assert [version.step for version in registry.versions()] == [0, 1, 2]
        assert registry.state().epoch == 1


@pytest.mark.parametrize("seed", range(3))
def test_with_a_tenth_of_all_answers_harmed_all_arrives(
    proxy: Server, mischief: Mischief, file_service: Service, run: str, seed: int
) -> None:
    rng = random.Random(seed)
    kinds = ("lost", "damaged", "cut", "busy")
    mischief.harm = {number: rng.choice(kinds) for number in range(2_000) if rng.random() < 0.1}
    with through(proxy, file_service, run) as trainer, through(proxy, file_service, run) as worker:
        weights = blank(policy(0))
        for number in range(6):
            trainer.push(number, policy(number))
            assert worker.pull("latest", into=weights).version == number
            assert equal(weights, policy(number))
    assert mischief.harmed


def test_a_service_that_is_gone_is_a_typed_error_and_nothing_is_half_applied(own_service: Service, run: str) -> None:
    with opened(own_service, run, retry_s=0.2) as trainer:
        trainer.push(0, policy(0))
        weights = blank(policy(0))
        trainer.pull("latest", into=weights)
        own_service.stop()
        with pytest.raises(StoreUnavailable):
            trainer.pull("latest", into=weights)
        with pytest.raises(StoreUnavailable):
            trainer.push(1, policy(1))
        assert equal(weights, policy(0))
        own_service.start()
        assert trainer.push(1, policy(1)).version == 1
        trainer.pull("latest", into=weights)
        assert equal(weights, policy(1))


def test_a_service_that_accepts_and_says_nothing_is_given_up(run: str) -> None:
    brief = Timeouts(silence_s=0.1)
    with serving(lambda _: Reply(pieces=[b"never"], pause_s=HANG_S)) as silent:
        store = RetryStore(ServiceStore(silent.url, timeouts=brief), RetryPolicy(total_s=0.1, first_pause_s=0.01))
        registry = Registry(store, run, Options(compute=ComputeOptions(backend="reference")))
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            registry.versions()
