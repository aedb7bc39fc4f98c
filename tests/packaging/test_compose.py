"""docker-compose.yml: valid by the specification's own schema, and in step with settings, image and routes."""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from pulse_server.settings import Settings
from tests.support.servers import S3Server

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)(?::\?[^}]*)?\}")


def env_file() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled(node: Any, values: dict[str, str]) -> Any:
    """Put the variables' values in, as docker compose does; a variable without one is an error."""
    if isinstance(node, str):
        return VARIABLE.sub(lambda match: values[match[1]], node)
    if isinstance(node, list):
        return [filled(entry, values) for entry in node]
    return {key: filled(value, values) for key, value in node.items()} if isinstance(node, dict) else node


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = filled(yaml.safe_load((ROOT / "docker-compose.yml").read_text()), env_file())
    return document


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def schema() -> dict[str, Any]:
    """The Compose specification's schema, as check-jsonschema carries it."""
    files = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    document: dict[str, Any] = json.loads(files.read_text())
    return document


def make_bucket() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_bucket", ROOT / "deploy" / "make_bucket.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_valid_by_the_compose_specification(compose: dict[str, Any]) -> None:
    jsonschema.validate(compose, schema())


def test_the_schema_refuses_what_compose_would(compose: dict[str, Any]) -> None:
    broken = json.loads(json.dumps(compose))
    broken["services"]["service"]["imagee"] = "typo"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema())


def test_every_variable_is_set_by_the_example_and_none_is_set_in_vain() -> None:
    texts = [(ROOT / name).read_text() for name in ("docker-compose.yml", "docker-compose.regions.yml")]
    assert {match[1] for text in texts for match in VARIABLE.finditer(text)} == set(env_file())


def test_what_the_service_is_given_are_settings_of_its_own_or_of_the_aws_sdks(
    services: dict[str, dict[str, Any]],
) -> None:
    aws = {"AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    given = services["service"]["environment"]
    assert aws <= set(given)
    assert {name.removeprefix("PULSE_").lower() for name in set(given) - aws} <= set(Settings.model_fields)


def test_the_service_reads_its_settings(services: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in services["service"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = Settings.read()
    assert settings.root == f"s3://{env_file()['S3_BUCKET']}/policies"
    assert settings.open_metrics
    assert not settings.insecure_open


def test_keys_and_ports_agree(services: dict[str, dict[str, Any]]) -> None:
    minio, service = services["minio"], services["service"]
    values = env_file()
    assert service["environment"]["AWS_ACCESS_KEY_ID"] == minio["environment"]["MINIO_ROOT_USER"]
    assert service["environment"]["AWS_SECRET_ACCESS_KEY"] == minio["environment"]["MINIO_ROOT_PASSWORD"]
    assert service["environment"]["AWS_ENDPOINT_URL_S3"] == f"http://127.0.0.1:{values['MINIO_PORT']}"
    assert f":{values['MINIO_PORT']}" in minio["command"]
    # The service listens where the image says, in MinIO's network.
    inside = re.search(r"^EXPOSE (\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert inside is not None
    assert minio["ports"] == [
        f"127.0.0.1:{values['MINIO_PORT']}:{values['MINIO_PORT']}",
        f"127.0.0.1:{values['PULSE_PORT']}:{inside[1]}",
    ]
    assert service["network_mode"] == services["bucket"]["network_mode"] == "service:minio"
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    assert [target for job in scraped for entry in job["static_configs"] for target in entry["targets"]] == [
        f"minio:{inside[1]}"
    ]


def test_no_port_is_open_to_other_machines(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned_and_secrets_say_that_they_are_examples() -> None:
    values = env_file()
    for name in ("MINIO_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE"):
        assert re.fullmatch(r"[a-z0-9.]+/[a-z0-9/-]+:(RELEASE|v?\d)[A-Za-z0-9.-]+", values[name]), name
    assert all("example" in value for name, value in values.items() if name.endswith("_KEY"))


def test_each_start_waits_for_what_it_needs(services: dict[str, dict[str, Any]]) -> None:
    assert services["bucket"]["depends_on"] == {"minio": {"condition": "service_healthy"}}
    assert services["service"]["depends_on"] == {"bucket": {"condition": "service_completed_successfully"}}
    assert services["minio"]["healthcheck"]["test"][0] == "CMD"
    assert {name for name, service in services.items() if service.get("profiles")} == {"prometheus", "grafana", "token"}


def test_grafana_shows_the_prometheus_beside_it_and_its_dashboards(services: dict[str, dict[str, Any]]) -> None:
    grafana = services["grafana"]
    inside = {volume.split(":")[1]: ROOT / volume.split(":")[0] for volume in grafana["volumes"]}
    (source,) = yaml.safe_load(inside["/etc/grafana/provisioning/datasources/prometheus.yml"].read_text())[
        "datasources"
    ]
    assert source["url"] == f"http://prometheus:{services['prometheus']['ports'][0].rpartition(':')[2]}"
    (provider,) = yaml.safe_load(inside["/etc/grafana/provisioning/dashboards/pulse.yml"].read_text())["providers"]
    shown = [path for path in inside if Path(path).parent == Path(provider["options"]["path"])]
    assert shown == [grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]]
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape  # what $__rate_interval is made of


def test_nobody_is_an_admin_of_grafana_by_a_password_that_all_know(services: dict[str, dict[str, Any]]) -> None:
    given = services["grafana"]["environment"]
    assert (given["GF_AUTH_DISABLE_LOGIN_FORM"], given["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")
    assert given["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_our_containers_have_no_rights_and_a_read_only_root(services: dict[str, dict[str, Any]]) -> None:
    for name in ("bucket", "service", "token"):
        merged = services[name]
        assert merged["read_only"], name
        assert merged["cap_drop"] == ["ALL"], name
        assert merged["image"] == env_file()["PULSE_IMAGE"], name


def test_files_that_are_mounted_are_there(services: dict[str, dict[str, Any]], compose: dict[str, Any]) -> None:
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith(".") else source in compose["volumes"]


def test_the_documentation_says_the_same_commands() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    commands = [
        line.removeprefix("#   ").split("  #")[0].strip() for line in text.splitlines() if line.startswith("#   ")
    ]
    assert len(commands) == 3
    page = (ROOT / "docs/how-to/deploy-the-service.md").read_text()
    assert all(command in page for command in commands)


def test_the_bucket_is_made_once(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**moto.environment, "AWS_ENDPOINT_URL_S3": moto.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    module = make_bucket()
    assert module.make_bucket("compose-test") == "bucket compose-test is made"
    assert module.make_bucket("compose-test").startswith("bucket compose-test is")
    assert "compose-test" in [bucket["Name"] for bucket in moto.client().list_buckets()["Buckets"]]
