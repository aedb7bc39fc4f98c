"""An engine of the demo whose server has died is told of as such, whatever is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pulse_registry.demo.bucket import Bucket
from pulse_registry.demo.ending import DemoFailed
from pulse_registry.demo.program import Start
from pulse_registry.demo.vllm.engine import Engine
from pulse_registry.demo.vllm.settings import Settings


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Return an engine at whose address nobody listens."""
    settings = Settings("model", 1, tmp_path, Path("python"), Path("python"), 1e-6)
    (tmp_path / "models").mkdir()
    made = Engine("engine-1", settings, Bucket("http://127.0.0.1:1", {}), 0, cast("Start", lambda *_: None))
    yield made
    made.close()


ASKED: dict[str, Callable[[Engine], Any]] = {
    "/weight_info": Engine.labelled,
    "/collective_rpc": Engine.held,
    "/reset_prefix_cache": lambda engine: engine.answers([[1]], 1),
    "/inference/v1/generate": lambda engine: list(engine.stream([1], 1, 0)),
}


@pytest.mark.parametrize("path", ASKED)
def test_a_server_that_has_died_fails_the_demo_by_name(engine: Engine, path: str) -> None:
    with pytest.raises(DemoFailed, match=f"engine-1 does not answer {path}: ConnectError"):
        ASKED[path](engine)
