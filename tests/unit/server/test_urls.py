"""Signing URLs: once for many, anew in time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from pulse_server.transport.urls import UrlSigner, own_path
from tests.support.clock import Clock
from tests.unit.server.test_objects import PATCH, RUN, SHARD, SigningStore


def test_a_url_is_handed_out_again_until_half_its_life_has_passed() -> None:
    store, clock, counted = SigningStore(), Clock(1_000_000.0), []
    signer = UrlSigner(store, 900, clock=clock, signed=counted.append)
    assert signer.known(RUN, [PATCH]) is None
    first = signer.sign(RUN, [PATCH])
    assert first.expires_at == "1970-01-12T14:01:40.000Z"
    clock.now += 449
    assert signer.known(RUN, [PATCH]) == first == signer.sign(RUN, [PATCH])
    clock.now += 2
    assert first.fresh_until < clock.now
    assert signer.known(RUN, [PATCH]) is None
    second = signer.sign(RUN, [PATCH])
    assert second.by_key != first.by_key
    assert counted == [1, 1]


def test_urls_together_end_with_the_first_of_them() -> None:
    store, clock = SigningStore(), Clock(1_000_000.0)
    signer = UrlSigner(store, 900, clock=clock)
    old = signer.sign(RUN, [PATCH])
    clock.now += 100
    both = signer.sign(RUN, [PATCH, SHARD])
    assert (both.expires_at, both.fresh_until) == (old.expires_at, old.fresh_until)
    assert len(store.asked) == 2


def test_urls_of_runs_are_not_mixed_up() -> None:
    signer = UrlSigner(SigningStore(), 900)
    assert signer.sign("a", [PATCH]).by_key != signer.sign("b", [PATCH]).by_key


def test_many_threads_may_sign() -> None:
    signer, start = UrlSigner(SigningStore(), 900), threading.Barrier(8)

    def sign(number: int) -> int:
        start.wait()
        return len(signer.sign(RUN, [PATCH, SHARD, f"objects/{number}"]).by_key)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(sign, range(8))) == [3] * 8


def test_a_path_of_the_service_is_quoted() -> None:
    assert own_path("a.b_c-1", "objects/x y/%.z") == "/v1/runs/a.b_c-1/objects/x%20y/%25.z"
