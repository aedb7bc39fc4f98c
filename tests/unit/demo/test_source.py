"""Finding the demo's model by a folder, a file or a package's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse_registry.demo.source import Source, SourceNotFound, locate


def test_tiny_needs_no_files() -> None:
    assert locate("tiny") == Source("tiny", "tiny")


def test_a_folder_with_a_config_is_a_hugging_face_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path)) == Source(tmp_path.name, "huggingface", tmp_path)


def test_a_gguf_file_is_found_by_itself_and_by_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4.gguf"
    file.touch()
    assert locate(str(file)) == Source("model.Q4", "gguf", tmp_path, "model.Q4.gguf")
    assert locate(str(tmp_path)) == Source(tmp_path.name, "gguf", tmp_path, "model.Q4.gguf")


def test_a_package_that_ships_a_gguf_file_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "weights.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("some-model") == Source("some-model", "gguf", package, "weights.gguf")


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf")])
def test_a_folder_without_exactly_one_model_is_refused(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(SourceNotFound, match=r"holds (no|2) \.gguf files"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["no-such-package", "no/such/folder", "json"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(SourceNotFound):
        locate(name)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(SourceNotFound, match="by its folder"):
        locate(str(file))
