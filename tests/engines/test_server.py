"""vLLM's HTTP server follows a signed run by its own requests, and says over HTTP what it refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from pulse_registry.follow import Changed, Failed, Follower, Pace, VllmEngine
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.signing import SigningKey
from tests.engines.support.engine import Answer
from tests.engines.support.fixtures import PROMPTS, UNPACKED, History, Start, cells_of
from tests.engines.support.models import LLAMA, changed, llama_parameters, random_weights, write_model
from tests.engines.support.server import Server


@pytest.fixture(scope="module")
def keys() -> tuple[SigningKey, SigningKey]:
    """The trainer's key, which engines pin, and another's."""
    return SigningKey.generate(), SigningKey.generate()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: tuple[SigningKey, SigningKey]) -> History:
    """Versions 0 to 2, signed by the trainer."""
    folder = tmp_path_factory.mktemp("signed")
    made = History(folder / "registry", "signed", folder)
    made.push(random_weights(LLAMA), signing_key=keys[0])
    made.push(changed(made.states[-1], 1, 0.02), signing_key=keys[0])
    made.push(changed(made.states[-1], 2, 0.02), signing_key=keys[0])
    write_model(LLAMA, made.states[0], folder / "model")
    return made


@pytest.fixture(scope="module")
def server(signed: History, keys: tuple[SigningKey, SigningKey]) -> Iterator[Server]:
    """A server that was loaded from version 0, and follows the run."""
    pinned = {"PULSE_TRUST": keys[0].public, "PULSE_STATE_DIR": str(signed.folder / "seen")}
    server = Server(signed.folder / "model", signed.folder / "log", UNPACKED | pinned)
    try:
        server.start()
        init = {"url": str(signed.url), "run": signed.run, "version": 0}
        server.done("/init_weight_transfer_engine", {"init_info": init})
        yield server
    finally:
        server.close()


def answers(server: Server) -> list[Answer]:
    return [server.complete(prompt) for prompt in PROMPTS]


def holds(server: Server, run: History, version: int) -> bool:
    """Whether each live cell is the version's, by its bits."""
    cells = cells_of(llama_parameters(run.states[version]))
    return (server.rpc("probe_cells"), server.rpc("pulse_version")) == ([cells], [str(version)])


def update(server: Server, version: int, *, staged: bool) -> None:
    """Bring the server to a version by vLLM's own requests."""
    if staged:
        server.rpc("pulse_stage", version)
        while server.rpc("pulse_ready") != ["True"]:
            pass
    server.done("/pause?mode=keep")
    server.done("/start_weight_update")
    server.done("/update_weights", {"update_info": {"version": version, "staged": staged}})
    server.done("/finish_weight_update", {"weight_version": str(version)})
    server.done("/resume")


@pytest.fixture(scope="module")
def fresh(signed: History, start: Start) -> list[Answer]:
    """What a new engine says, prompt by prompt, that was loaded from version 2's checkpoint; it knows no run."""
    engine = start(signed.checkpoint(2), UNPACKED)
    try:
        return [answer for prompt in PROMPTS for answer in engine.generate([prompt])]
    finally:
        engine.close()


def test_it_goes_to_versions_by_vllms_own_requests(server: Server, signed: History, fresh: list[Answer]) -> None:
    first = answers(server)
    assert first != fresh
    for version, staged, expected in ((2, True, fresh), (0, False, first), (2, False, fresh)):
        update(server, version, staged=staged)
        assert holds(server, signed, version)
        assert server.version() == str(version)
        assert answers(server) == expected


def test_it_goes_to_versions_by_the_worker_extensions_calls(server: Server, signed: History) -> None:
    update(server, 0, staged=False)
    before = answers(server)
    server.rpc("pulse_stage", 2)
    server.done("/pause?mode=keep")
    [applied] = server.rpc("pulse_apply", 2)
    server.done("/update_weight_version", {"new_version": "2"})
    server.done("/resume")
    assert applied["version"] == 2
    assert holds(server, signed, 2)
    assert server.version() == "2"
    assert answers(server) != before
    server.done("/pause?mode=keep")
    assert server.rpc("pulse_undo") == ["0"]
    server.done("/update_weight_version", {"new_version": "0"})
    server.done("/resume")
    assert holds(server, signed, 0)
    assert answers(server) == before


def test_a_failed_update_is_answered_with_what_went_wrong_and_the_old_version_is_served(
    server: Server, signed: History, keys: tuple[SigningKey, SigningKey]
) -> None:
    update(server, 1, staged=False)
    before = answers(server)

    def refused(version: int) -> str:
        server.done("/pause?mode=keep")
        server.done("/start_weight_update")
        failed = server.ask("/update_weights", {"update_info": {"version": version}})
        server.ask("/finish_weight_update", {})
        server.done("/resume")
        assert failed.status_code == 500
        assert (holds(server, signed, 1), server.version()) == (True, "1")
        assert answers(server) == before
        return failed.text

    assert "run 'signed' has no version 99; the newest is 2" in refused(99)
    forger = History(signed.folder / "forged", signed.run, signed.folder / "forger")
    for weights in [*signed.states, changed(signed.states[-1], 9, 0.02)]:
        forger.push(weights, signing_key=keys[1])
    away = signed.url.with_name("away")
    signed.url.rename(away)
    forger.url.rename(signed.url)
    try:
        assert f"is signed by {keys[1].public}" in refused(3)
    finally:
        signed.url.rename(forger.url)
        away.rename(signed.url)
    update(server, 2, staged=True)
    assert holds(server, signed, 2)


class Uncleared(EngineApi):
    """An API whose pauses leave the caches as they are."""

    def ask(self, method: str, path: str, *, params: Mapping[str, str] | None = None, **given: Any) -> dict[str, Any]:
        return super().ask(method, path, params=params and {**params, "clear_cache": "false"}, **given)


def test_the_followers_pause_resets_the_caches_once_and_without_that_answers_are_neither_versions(
    server: Server, signed: History, fresh: list[Answer]
) -> None:
    def followed(api: EngineApi, version: int) -> list[Answer]:
        engine = VllmEngine(api, str(signed.url), signed.run)
        with (
            closing(engine),
            pulse_registry.open(str(signed.url), run=signed.run, create=False) as registry,
        ):
            told: list[Changed | Failed] = []
            follower = Follower(registry, engine, Pace(version), told.append, wait=lambda after, seconds: None)
            follower.look()
            follower.look()
        assert [one.document().get("version") for one in told] == [version]
        assert holds(server, signed, version)
        return answers(server)

    update(server, 1, staged=False)
    answers(server)  # the longest prompt's prefix is cached
    assert followed(EngineApi(server.url), 2) == fresh
    update(server, 1, staged=False)
    answers(server)
    *short, long = followed(Uncleared(server.url), 2)
    assert short == fresh[:-1]
    assert long != fresh[-1]
    update(server, 2, staged=False)
    assert answers(server) == fresh


def test_the_sidecar_brings_it_to_each_new_version(
    server: Server, signed: History, keys: tuple[SigningKey, SigningKey]
) -> None:
    command = [str(Path(sys.executable).with_name("pulse")), "follow", "--root", str(signed.url), "--run", signed.run]
    command += ["--engine", f"vllm={server.url}", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sidecar:
        try:
            assert sidecar.stdout is not None
            if server.version() != "2":
                assert_reached(json.loads(sidecar.stdout.readline()), 2)
            signed.push(changed(signed.states[-1], 3, 0.02), signing_key=keys[0])
            assert_reached(json.loads(sidecar.stdout.readline()), 3)
        finally:
            sidecar.terminate()
    assert holds(server, signed, 3)
    assert server.version() == "3"


def assert_reached(line: dict[str, Any], version: int) -> None:
    assert (line["changed"], line.get("version")) == (True, version), line
