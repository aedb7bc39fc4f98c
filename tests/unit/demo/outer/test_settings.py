"""Settings of the demo of outer rounds travel to its processes, and the last round is said once it is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse_registry.demo.outer.settings import Settings
from pulse_registry.demo.settings import NotPossible
from tests.support.installed import needs

needs("torch", "transformers", "accelerate", "gguf", "matplotlib", "boto3", "s3fs")

SAID = {"layers": 10, "inner_steps": 2, "learning_rate": 1e-3, "gain": 7.0, "grace": 1.0}


def test_settings_are_the_same_in_another_process(tmp_path: Path) -> None:
    settings = Settings.of(model="tiny", rounds=9, out=tmp_path, **SAID)  # type: ignore[arg-type]
    assert Settings.from_json(settings.to_json()) == settings
    assert settings.last is None
    settings.end_at(12)
    assert Settings.from_json(settings.to_json()).last == 12


def test_a_model_that_is_nowhere_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="--model nothing-there"):
        Settings.of(model="nothing-there", rounds=9, out=tmp_path, **SAID)  # type: ignore[arg-type]
