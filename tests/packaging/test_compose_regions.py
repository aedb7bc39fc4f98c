"""docker-compose.regions.yml: valid beside docker-compose.yml, in step with it, and its mirror a real command."""

from __future__ import annotations

from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

import pulse_registry
from pulse_registry.cli import main
from pulse_registry.store import open_store
from pulse_server.settings import Settings
from tests.packaging.test_compose import ROOT, env_file, filled, schema
from tests.support.command_line import options_of
from tests.support.servers import S3Server

OURS = ("far-bucket", "mirror", "far-service")


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = filled(yaml.safe_load((ROOT / name).read_text()), env_file())
    return document


@pytest.fixture(scope="module")
def home() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("docker-compose.yml")["services"]
    return found


@pytest.fixture(scope="module")
def far() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("docker-compose.regions.yml")["services"]
    return found


def mirror_roots(far: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    mirror = far["mirror"]
    values = options_of([*mirror["entrypoint"], *mirror["command"]], {}, monkeypatch)
    assert values["follow"]
    source, destination, *others = mirror["command"]
    assert others == ["--follow"]
    return source, destination


def test_the_file_is_valid_by_itself_and_adds_services_alone() -> None:
    document, other = read("docker-compose.regions.yml"), read("docker-compose.yml")
    jsonschema.validate(document, schema())
    assert document["name"] == other["name"]
    assert not set(document["services"]) & set(other["services"])
    assert not set(document["volumes"]) & set(other["volumes"])


def test_the_mirror_copies_the_home_bucket_into_the_far_one(
    home: dict[str, dict[str, Any]], far: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in far["mirror"]["environment"].items():
        monkeypatch.setenv(name, value)
    source, destination = mirror_roots(far, monkeypatch)
    values = env_file()
    assert source.startswith(home["service"]["environment"]["PULSE_ROOT"] + "?")
    assert destination.startswith(far["far-service"]["environment"]["PULSE_ROOT"] + "?")
    assert f"endpoint_url=http://minio:{values['MINIO_PORT']}&" in source
    assert f"endpoint_url={far['far-service']['environment']['AWS_ENDPOINT_URL_S3']}&" in destination
    for root in (source, destination):
        assert open_store(root).url.startswith("s3://")


@pytest.mark.slow
def test_the_mirror_s_command_copies_what_the_home_service_has(
    home: dict[str, dict[str, Any]], far: dict[str, dict[str, Any]], moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command, once and not for ever, where both servers are one."""
    values, servers = env_file(), [f"http://{host}" for host in ("minio", "127.0.0.1")]
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    for bucket in (values["S3_BUCKET"], values["FAR_BUCKET"]):
        moto.client().create_bucket(Bucket=bucket)
    roots = [
        root.replace(f"{server}:{values[port]}", moto.endpoint)
        for root, server, port in zip(
            mirror_roots(far, monkeypatch), servers, ("MINIO_PORT", "FAR_MINIO_PORT"), strict=True
        )
    ]
    with pulse_registry.open(roots[0], run="example") as trainer:
        pushed = trainer.push(0, {"w": np.arange(64, dtype=np.uint16)})
    assert main(["mirror", *roots]) == 0
    with pulse_registry.open(roots[1], run="example", create=False) as reader:
        assert reader.version().digest == pushed.digest


def test_what_the_far_service_is_given_are_settings(
    far: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in far["far-service"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = Settings.read()
    assert settings.root == f"s3://{env_file()['FAR_BUCKET']}/policies"
    assert not settings.insecure_open


def test_the_regions_differ_in_ports_and_buckets_and_share_identity_and_tokens(
    home: dict[str, dict[str, Any]], far: dict[str, dict[str, Any]]
) -> None:
    values = env_file()
    ports = [values[name] for name in values if name.endswith("_PORT")]
    assert len(set(ports)) == len(ports)
    assert values["S3_BUCKET"] != values["FAR_BUCKET"]
    assert far["far-bucket"]["command"] == [values["FAR_BUCKET"]]
    assert f":{values['FAR_MINIO_PORT']}" in far["far-minio"]["command"]
    assert far["far-minio"]["ports"] == [
        f"127.0.0.1:{values['FAR_MINIO_PORT']}:{values['FAR_MINIO_PORT']}",
        f"127.0.0.1:{values['FAR_PULSE_PORT']}:8080",
    ]
    assert far["far-minio"]["image"] == home["minio"]["image"]
    assert far["far-service"]["volumes"] == home["service"]["volumes"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert far["far-service"]["environment"][name] == home["service"]["environment"][name]
        assert far["mirror"]["environment"][name] == home["service"]["environment"][name]


def test_each_start_waits_for_what_it_needs(far: dict[str, dict[str, Any]]) -> None:
    done = {"condition": "service_completed_successfully"}
    assert far["far-bucket"]["depends_on"] == {"far-minio": {"condition": "service_healthy"}}
    assert far["mirror"]["depends_on"] == {"bucket": done, "far-bucket": done}
    assert far["far-service"]["depends_on"] == {"far-bucket": done}
    assert {far[name]["network_mode"] for name in OURS} == {"service:far-minio"}


def test_our_containers_have_no_rights_and_a_read_only_root(far: dict[str, dict[str, Any]]) -> None:
    assert set(far) == {"far-minio", *OURS}
    for name in OURS:
        assert far[name]["read_only"], name
        assert far[name]["cap_drop"] == ["ALL"], name
        assert far[name]["image"] == env_file()["PULSE_IMAGE"], name


def test_the_documentation_says_the_same_command() -> None:
    text = (ROOT / "docker-compose.regions.yml").read_text()
    [command] = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    assert command in (ROOT / "docs/how-to/deploy-the-service.md").read_text()
