from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pulse_registry.store
from pulse_registry.errors import InvalidArgument
from pulse_registry.store import FileStore, MemoryStore, open_store
from pulse_registry.store.open import SCHEMES
from tests.support.waiting import HANG_S


def test_a_memory_url_opens_a_store_in_memory() -> None:
    store = open_store("memory://test-open/below")
    assert isinstance(store, MemoryStore)
    assert store.url == "memory://test-open/below"


def test_a_file_url_is_percent_encoded_and_the_stores_url_opens_it_again(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b")
    assert isinstance(store, FileStore)
    store.put("key", b"data")
    assert (tmp_path / "a b/key").read_bytes() == b"data"
    assert open_store(store.url).get("key") == b"data"
    assert open_store(f"FILE://localhost{tmp_path}/a%20b").get("key") == b"data"


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url, file in ((f"{tmp_path}/a%20b", "a%20b/key"), ("c:d/e", "c:d/e/key"), ("~/f", "home/f/key")):
        open_store(url).put("key", b"data")
        assert (tmp_path / file).read_bytes() == b"data"


def test_an_unknown_scheme_is_named_beside_the_known_ones() -> None:
    known = ", ".join(f"{scheme}://" for scheme in sorted([*SCHEMES, "http", "https"]))
    with pytest.raises(InvalidArgument, match=f"gopher://.*known: {known} and local paths"):
        open_store("gopher://host/path")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory://",
        "memory:///a",
        "memory://a/../b",
        "memory:a",
        "file://",
        "file:///a%00b",
        "file://host/a",
        "file:/a",
        "127.0.0.1:28081",
        "localhost:8080/registry",
        "pulse.example.com:443",
        "[::1]:8080",
    ],
)
def test_a_url_that_is_not_valid_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        open_store(url)


def test_a_host_and_a_port_are_no_folder_unless_it_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=r"http://127\.0\.0\.1:80 for a service, and \./127"):
        open_store("127.0.0.1:80")
    open_store("./127.0.0.1:80").put("key", b"x")
    assert (tmp_path / "127.0.0.1:80" / "key").exists()


def test_the_public_names_are_all_there_in_order() -> None:
    names = pulse_registry.store.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(pulse_registry.store, name) for name in names)


@pytest.mark.slow
def test_importing_stores_imports_no_torch_and_no_cloud_client() -> None:
    unwanted = {"torch", "boto3", "botocore", "urllib3", "s3fs"}
    script = f"import sys, pulse_registry.store; print({unwanted} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "set()"
