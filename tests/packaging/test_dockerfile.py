"""The service's image, as far as it can be looked at without building it; its installation runs in the sweep."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulse_registry.cli.serve import serve
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numba", "torch", "transformers", "triton", "accelerate", "matplotlib")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions in order, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the stages by name, in order, each with the instructions of the stage that it begins with."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            parent, _, name = rest.partition(" AS ")
            found[name] = [*found.get(parent, ())]
        elif found:
            found[[*found][-1]].append((word, rest))
    return found


def of_stage(stage: str, name: str) -> list[str]:
    return [rest for word, rest in stages()[stage] if word == name]


def requirements(*, kernels: bool = False) -> list[str]:
    module = runpy.run_path(str(ROOT / "deploy" / "requirements.py"))
    found: list[str] = module["requirements"](ROOT / "pyproject.toml", kernels=kernels)
    return found


def test_the_image_that_is_built_without_a_target_is_the_service() -> None:
    assert [*stages()] == ["build", "build-tools", "runtime", "tools", "service"]


def test_the_image_with_tools_starts_any_command_with_the_kernels_and_as_the_same_user() -> None:
    assert [json.loads(entry) for entry in of_stage("tools", "ENTRYPOINT")] == [["pulse"]]
    assert of_stage("tools", "USER") == of_stage("service", "USER")
    assert of_stage("tools", "COPY") == ["--from=build-tools /opt/pulse /opt/pulse"]
    assert [re.split(r"[^a-z]", line)[0] for line in requirements(kernels=True)] == ["numba"]


def test_the_image_starts_the_service_and_listens_where_it_says() -> None:
    (entry,), (command,) = of_stage("service", "ENTRYPOINT"), of_stage("service", "CMD")
    assert json.loads(entry) == ["pulse", "serve"]
    arguments = json.loads(command)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options == {"--host": "0.0.0.0", "--port": "8080"}
    assert {name.removeprefix("--") for name in options} <= set(serve.__annotations__)
    assert of_stage("service", "EXPOSE") == [options["--port"]]


def test_the_image_runs_as_a_numbered_user_who_is_not_root() -> None:
    (user,) = of_stage("service", "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    copies = [copy for copy in of_stage("service", "COPY") if "/var/lib/pulse" in copy]
    assert [f"--chown={user}" in copy for copy in copies] == [True]


def test_the_health_check_asks_a_route_of_the_service() -> None:
    (check,) = of_stage("service", "HEALTHCHECK")
    words = json.loads(check.partition("CMD ")[2])
    (url,) = re.findall(r"http://127\.0\.0\.1:8080(/[a-z]+)", words[2])
    documented = (ROOT / "docs" / "http.md").read_text()
    assert url == "/healthz"
    assert f"| `GET {url}` | none |" in documented
    compile(words[2], "HEALTHCHECK", "exec")


def test_the_image_is_given_nothing_that_only_training_needs() -> None:
    names = [re.split(r"[^A-Za-z0-9_-]", line)[0] for line in requirements()]
    assert not set(names) & set(HEAVY)
    assert {"boto3", "fastapi", "httpx", "numpy", "pydantic", "uvicorn"} <= set(names)
    assert len(names) == len(set(names))


def test_what_is_copied_is_there_and_passes_the_ignore_file() -> None:
    allowed = {
        line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert set(copied) == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_no_secret_is_written_into_the_image() -> None:
    assert not re.search(r"(?i)(secret|password|access_key|token)\s*=", (ROOT / "Dockerfile").read_text())


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def serving(program: Path, root: Path) -> Iterator[str]:
    command = [program, "serve", "--root", root, "--port", "0", "--insecure-open", "--json"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield json.loads(child.stdout.readline())["url"]
        finally:
            child.terminate()
    assert child.returncode == 0


@pytest.mark.sweep
def test_the_image_s_own_steps_make_an_environment_that_serves(tmp_path: Path) -> None:
    home, tree = tmp_path / "pulse", tmp_path / "tree"
    tree.mkdir()
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    run("cp", "-r", *(source for sources in copied for source in sources), tree, cwd=ROOT)
    venv.create(home, with_pip=True)
    installs = [shlex.split(step) for _, rest in instructions() for step in rest.split("&&") if "pip install" in step]
    assert [install[:2] for install in installs] == [["/opt/pulse/bin/pip", "install"]] * 2
    (tree / "requirements.txt").write_text("\n".join(requirements()))
    run(home / "bin" / "pip", *installs[0][1:], cwd=tree)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "wheels", ".", cwd=tree)
    run(home / "bin" / "pip", *installs[1][1:-1], *(tree / "wheels").glob("*.whl"), cwd=tree)
    installed = run(home / "bin" / "pip", "list", "--format=freeze", cwd=tree).lower()
    assert not [name for name in HEAVY if re.search(rf"^{name}==", installed, re.M)]
    (tmp_path / "registry").mkdir()
    kernels = [shlex.split(step) for rest in of_stage("build-tools", "RUN") for step in rest.split("&&")][-1]
    assert kernels[:6] == ["python", "-m", "pip", "--python", "/opt/pulse/bin/python", "install"]
    with serving(home / "bin" / "pulse", tmp_path / "registry") as url:
        for path in ("/healthz", "/readyz", "/metrics", "/", "/v1/runs"):
            with urllib.request.urlopen(url + path, timeout=HANG_S) as answer:
                assert answer.status == 200, path
    run(home / "bin" / "pulse", "token", "new", "--name", "me", "--scope", "read", cwd=tmp_path)
    run(home / "bin" / "pulse", "doctor", "--root", tmp_path / "registry", "--rounds", "2", cwd=tmp_path)
    (tree / "kernels.txt").write_text("\n".join(requirements(kernels=True)))
    run(sys.executable, "-m", "pip", "--python", home / "bin" / "python", *kernels[5:], cwd=tree)
    run(home / "bin" / "pulse", "warm-up", "--to", tmp_path / "kernels", cwd=tmp_path)
