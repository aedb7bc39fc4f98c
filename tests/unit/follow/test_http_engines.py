"""vLLM and SGLang over HTTP: the calls, their order and bodies, and what fails on the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.follow import Changed, EngineFailed, EngineRefused, Failed, Follower, Pace, SglangEngine, VllmEngine
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.registry import Registry
from tests.support.checkpoints import Tensors, bf16_model, bits, held, step_of
from tests.support.clock import Clock
from tests.support.engines import SglangStub, VllmStub, engine_at
from tests.support.records import DictStore
from tests.support.registries import change, quick, small_model
from tests.support.scripted_http import PATIENT, Asked, Reply, serving
from tests.support.waiting import until

CHANGE = ["pulse_stage", "/pause", "pulse_apply", "/update_weight_version"]


@pytest.fixture(scope="module")
def registry() -> Registry:
    store, model = DictStore(), small_model()
    with quick(store) as trainer:
        for step in range(4):
            change(model, step)
            trainer.push(step, model)
    return quick(store)


def followed(registry: Registry, engine: VllmEngine | SglangEngine, versions: list[int]) -> list[str]:
    """Bring an engine to versions, in turn; return the failures on the way."""
    return [failure for version in versions for failure in brought(registry, engine, version)]


def brought(registry: Registry, engine: VllmEngine | SglangEngine, version: int) -> list[str]:
    failures: list[str] = []
    clock = Clock()

    def wait(after: int, seconds: float) -> None:
        follower.stop()

    def tell(told: Changed | Failed) -> None:
        failures.extend([told.message] if isinstance(told, Failed) else [])

    follower = Follower(registry, engine, Pace(version), tell, clock=clock, sleep=clock.sleep, wait=wait)
    follower.run()
    return failures


def vllm(url: str) -> VllmEngine:
    return VllmEngine(EngineApi(url, timeouts=PATIENT), "/registry", "run", sleep=lambda seconds: None)


def test_vllm_is_opened_once_and_each_change_is_staged_before_the_pause(registry: Registry) -> None:
    stub = VllmStub()
    with engine_at(stub) as server:
        assert followed(registry, vllm(server.url), [3, 1]) == []
    opened = ["/init_weight_transfer_engine", "/update_weight_version"]
    assert stub.calls == [*opened, *CHANGE, "/resume", *CHANGE, "/resume"]
    assert stub.bodies["/init_weight_transfer_engine"]["init_info"] == {
        "url": "/registry",
        "run": "run",
        "version": 0,
        "name": None,
    }
    assert stub.bodies["/pause"]["query"] == {"mode": ["keep"]}
    assert stub.bodies["pulse_apply"]["args"] == [1]
    assert (stub.held, stub.told, stub.cached, stub.paused) == (1, "1", {1}, False)


@pytest.mark.parametrize("how", ["fails", "breaks"])
@pytest.mark.parametrize("step", [*CHANGE, "/resume"])
def test_whatever_fails_vllm_goes_on_with_its_old_version(registry: Registry, step: str, how: str) -> None:
    stub = VllmStub(loaded=1)
    seen: list[object] = []
    with engine_at(stub) as server:
        engine = vllm(server.url)
        stub.held, stub.told = 1, "1"
        getattr(stub, how).append(step)

        def sleep(seconds: float) -> None:
            seen.append((stub.held, stub.told, stub.paused))

        def wait(after: int, seconds: float) -> None:
            follower.stop()

        follower = Follower(registry, engine, Pace(3), lambda told: None, clock=Clock(), sleep=sleep, wait=wait)
        follower.run()
    if step == "/resume":  # at once anew: what was paused goes on before all else
        assert seen == [(3, "3", how == "fails")]
    else:
        assert seen == [(1, "1", False)]
    assert (stub.held, stub.told, stub.cached, stub.paused) == (3, "3", {3}, False)


def test_weights_change_before_vllm_has_answered_the_pause_and_it_goes_on_after(registry: Registry) -> None:
    stub = VllmStub()
    stub.held, stub.told = 0, "0"
    stub.lasting = lambda: until(lambda: stub.told == "3")
    with engine_at(stub) as server:
        assert followed(registry, vllm(server.url), [3]) == []
    assert stub.calls == [*CHANGE, "/resume"]
    assert (stub.cached, stub.paused) == ({3}, False)


def test_engines_that_are_not_yet_all_paused_are_waited_for(registry: Registry) -> None:
    stub = VllmStub()
    stub.held, stub.told = 0, "0"

    def lasting() -> None:
        stub.fails.append("/is_paused")
        until(lambda: not stub.fails)

    stub.lasting = lasting
    with engine_at(stub) as server:
        assert followed(registry, vllm(server.url), [3]) == []
    assert stub.calls == [*CHANGE, "/resume"]
    assert (stub.held, stub.cached, stub.paused) == (3, {3}, False)


def test_vllm_goes_on_after_a_pause_that_was_given_up_while_it_was_asked_for(registry: Registry) -> None:
    stub, answers, resumed = VllmStub(), list[str](), threading.Event()
    stub.held, stub.told = 0, "0"

    def given_up(asked: Asked) -> Reply:
        if asked.path == "/pause" and "/pause" not in answers:  # it is late
            stub.breaks.append("/is_paused")
            until(lambda: not stub.breaks)
            resumed.wait(0.2)  # that is not waited for
        elif asked.path == "/resume":
            resumed.set()
        reply = stub(asked)
        answers.append(asked.path)
        return reply

    with serving(given_up) as server:
        [failure] = followed(registry, vllm(server.url), [3])
    assert "GET /is_paused" in failure
    posts = [path for path in answers if path in ("/pause", "/resume")]
    assert posts == ["/pause", "/resume"] * 2
    assert (stub.held, stub.cached, stub.paused) == (3, {3}, False)


def test_a_vllm_that_was_left_paused_or_started_anew_is_found_so(registry: Registry) -> None:
    stub = VllmStub(loaded=2)
    stub.told, stub.paused = "2", True
    with engine_at(stub) as server:
        engine = vllm(server.url)
        assert engine.version() == 2  # what it says of itself counts, and not what it was started with
        assert stub.calls[0] == "/resume"
        stub.held, stub.told, stub.loaded = None, "default", 0
        assert engine.version() == 0
        stub.held, stub.loaded = None, 3
        with pytest.raises(EngineRefused, match="the live cells are not that version's"):
            engine.version()


def test_ranks_that_hold_different_versions_are_no_version(registry: Registry) -> None:
    def disagree(asked: Asked) -> Reply:
        return Reply(200, body=b'{"results": ["1", "2"], "is_paused": false}')

    with serving(disagree) as server, pytest.raises(EngineFailed, match="they hold 1, 2"):
        vllm(server.url).version()


def states() -> list[Tensors]:
    states = [bf16_model()]
    for step in range(2):
        states.append(step_of(states[-1], step))
    return states


@pytest.fixture(scope="module")
def checkpoints() -> Registry:
    store = DictStore()
    with quick(store) as trainer:
        for step, state in enumerate(states()):
            trainer.push(step, state)
    return quick(store)


def test_sglang_loads_one_of_two_folders_while_it_is_paused(checkpoints: Registry, tmp_path: Path) -> None:
    stub = SglangStub()
    with engine_at(stub) as server:
        engine = SglangEngine(EngineApi(server.url, timeouts=PATIENT), checkpoints, tmp_path)
        assert followed(checkpoints, engine, [0, 2, 1]) == []
    one = ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert stub.names == ["/continue_generation", *one * 3]
    assert stub.loaded == [str(tmp_path / name) for name in "aba"]
    bodies = [body for path, body in stub.calls if path == "/update_weights_from_disk"]
    assert [body["weight_version"] for body in bodies] == ["0", "2", "1"]
    assert all(body["flush_cache"] is True for body in bodies)
    assert ("/pause_generation", {"mode": "retract"}) in stub.calls
    assert not stub.paused
    for name, version in (("a", 1), ("b", 2)):
        assert held(tmp_path / name) == bits(states()[version])


@pytest.mark.parametrize("step", ["/pause_generation", "/update_weights_from_disk", "/continue_generation"])
def test_whatever_fails_sglang_goes_on_with_its_old_folder(checkpoints: Registry, tmp_path: Path, step: str) -> None:
    stub = SglangStub()
    with engine_at(stub) as server:
        engine = SglangEngine(EngineApi(server.url, timeouts=PATIENT), checkpoints, tmp_path)
        followed(checkpoints, engine, [0])
        stub.fails.append(step)
        failures = followed(checkpoints, engine, [1])
    assert len(failures) == (0 if step == "/continue_generation" else 1)
    assert all("it is so" in failure for failure in failures)
    undone = [str(tmp_path / "a")] if step == "/update_weights_from_disk" else []
    assert stub.loaded == [str(tmp_path / "a"), *undone, str(tmp_path / "b")]
    assert (stub.told, stub.paused) == ("1", False)


def test_a_refusal_says_why_and_no_token_is_told() -> None:
    def refuse(asked: Asked) -> Reply:
        return Reply(401, body=b'{"detail": "wrong key ' + asked.headers["Authorization"].encode() + b'"}')

    with serving(refuse) as server:
        api = EngineApi(server.url, token="sesame-open", timeouts=PATIENT)
        with pytest.raises(EngineRefused, match=r"HTTP 401: wrong key Bearer \.\.\.") as raised:
            api.ask("POST", "/pause")
        assert "sesame" not in str(raised.value)
        assert server.asked[0].headers["Authorization"] == "Bearer sesame-open"
        assert server.asked[0].headers["Connection"] == "close"
    with pytest.raises(EngineFailed, match="POST /pause"):
        api.ask("POST", "/pause")


@pytest.mark.parametrize("url", ["localhost:8000", "http://u:secret@host", "http://host/?key=secret", "ftp://host"])
def test_a_url_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        EngineApi(url)
    assert "secret" not in str(raised.value)


def test_a_token_goes_in_clear_to_no_other_machine_unless_it_may() -> None:
    with pytest.raises(InvalidArgument):
        EngineApi("http://engine.example.com", token="sesame")
    EngineApi("http://engine.example.com", token="sesame", allow_http=True).close()
