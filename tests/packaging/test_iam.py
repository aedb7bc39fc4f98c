"""The IAM policies allow what each role does to the store, as recorded while it does it, and nothing else."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
import uvicorn

import pulse_registry
from pulse_registry.bases.collector import BaseCollector
from pulse_registry.compaction import CompactOptions
from pulse_registry.mirror import Mirror
from pulse_registry.options import Options, PushOptions
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, MemoryStore, Store, WrapperStore
from pulse_server.app import create_app
from pulse_server.settings import Settings
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "arn:aws:s3:::example-bucket"
Role = Literal["reader", "trainer", "service", "collector", "compactor", "mirror"]
ROLES: tuple[Role, ...] = ("reader", "trainer", "service", "collector", "compactor", "mirror")


@dataclass(frozen=True, slots=True)
class Request:
    """What S3 asks a policy: an action, on the bucket or a key below the root, with or without If-None-Match.

    ``creates``: whether an object is there afterwards; the steps of an upload in parts before its last one make none.
    """

    action: str
    key: str | None = None
    conditional: bool = False
    creates: bool = True

    @property
    def resource(self) -> str:
        return BUCKET if self.key is None else f"{BUCKET}/policies/{self.key}"


class RecordingStore(WrapperStore):
    """Notes each call as the S3 requests that it takes."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.requests: set[Request] = set()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        # Without s3:ListBucket, S3 answers 403 for a key that is not there.
        self.requests |= {Request("s3:GetObject", key), Request("s3:ListBucket")}
        return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        self.requests.add(Request("s3:PutObject", key, if_absent))
        if key.split("/")[1] == "objects" or (key.startswith("_bases/") and key.endswith(".safetensors")):
            self.requests |= {Request("s3:AbortMultipartUpload", key), Request("s3:PutObject", key, creates=False)}
        super().put(key, data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        self.requests |= {Request("s3:GetObject", key), Request("s3:ListBucket")}
        return super().exists(key)

    def size(self, key: str) -> int:
        self.requests |= {Request("s3:GetObject", key), Request("s3:ListBucket")}
        return super().size(key)

    def modified(self, key: str) -> datetime:
        self.requests |= {Request("s3:GetObject", key), Request("s3:ListBucket")}
        return super().modified(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self.requests.add(Request("s3:ListBucket"))
        return super().list(prefix, after)

    def delete(self, key: str) -> None:
        self.requests.add(Request("s3:DeleteObject", key))
        super().delete(key)


def policy(role: Role) -> list[dict[str, Any]]:
    document = json.loads((ROOT / "deploy" / "iam" / f"{role}.json").read_text())
    assert document["Version"] == "2012-10-17"
    statements: list[dict[str, Any]] = document["Statement"]
    return statements


def as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def matches(patterns: Any, text: str) -> bool:
    """Tell whether one of IAM's patterns fits: `*` is any text, `?` any character, slashes included."""
    return any(
        re.fullmatch("".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in pattern), text)
        for pattern in as_list(patterns)
    )


def applies(statement: dict[str, Any], request: Request) -> bool:
    assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "NotResource", "Condition"}
    if not matches(statement["Action"], request.action):
        return False
    named = matches(statement.get("Resource", []), request.resource)
    others = "NotResource" in statement and not matches(statement["NotResource"], request.resource)
    condition = statement.get("Condition", {})
    assert set(condition) <= {"Null", "Bool"}
    assert set(condition.get("Null", {})) <= {"s3:if-none-match"}
    assert set(condition.get("Bool", {})) <= {"s3:ObjectCreationOperation"}
    absent = condition.get("Null", {}).get("s3:if-none-match")
    creates = condition.get("Bool", {}).get("s3:ObjectCreationOperation")
    return (
        (named or others)
        and (absent is None or (absent == "true") is not request.conditional)
        and (creates is None or (creates == "true") is request.creates)
    )


def allowed(role: Role, request: Request) -> bool:
    effects = {statement["Effect"] for statement in policy(role) if applies(statement, request)}
    return effects == {"Allow"}


@contextmanager
def serving(store: Store) -> Iterator[str]:
    app = create_app(Settings(root="memory://iam", insecure_open=True, report_seconds=0.01), store)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none"))
    started = threading.Event()
    startup = server.startup

    async def start(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(HANG_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def weights() -> dict[str, Any]:
    return {"w": np.zeros(64, ml_dtypes.bfloat16)}


def push(registry: Registry, versions: int) -> None:
    model = weights()
    for step in range(versions):
        model["w"].view(np.uint16)[step % 64] += 1
        registry.push(step, model)


@pytest.fixture(scope="module")
def recorded() -> dict[Role, set[Request]]:
    """What each role asks of the store; enough versions for snapshots, and for old ones to be deleted."""
    inner = MemoryStore("iam")
    stores = {role: RecordingStore(MemoryStore("iam-copy") if role == "mirror" else inner) for role in ROLES}
    with Registry(stores["trainer"], "math") as trainer:
        push(trainer, 200)
    with Registry(stores["reader"], "math", Options(name="w")) as reader:
        reader.pull("latest", into=weights())
        reader.pull(3, into=weights())
    for verify in (False, True):
        with Mirror(stores["reader"], stores["mirror"], "math", verify=verify) as mirror:
            mirror.catch_up()
        copy = MemoryStore("iam-copy")
        damaged = next(copy.list("math/objects/"))
        copy.put(damaged, bytes(copy.size(damaged)))
    with Registry(stores["trainer"], "tuned", Options(push=PushOptions(base="math@3"))) as trainer:
        push(trainer, 1)
    with Registry(stores["reader"], "tuned", Options(name="w")) as reader:
        reader.pull("latest", into=weights())
    with serving(stores["service"]) as url, pulse_registry.open(url, run="chat", name="w") as registry:
        push(registry, 70)
        registry.pull("latest", into=weights())
    with Registry(stores["compactor"], "math") as registry:
        compactor = registry.compactor(CompactOptions(keyframe_every=60))
        while compactor.step() is not None:
            pass
        compactor.close()
    with Registry(stores["collector"], "chat") as collector:
        policy = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0)
        for _ in range(2):
            collector.gc(policy, dry_run=False)
        push(collector, 0)
    with Registry(inner, "tuned", Options(push=PushOptions(keyframe_every=1))) as registry:
        push(registry, 2)
    with Registry(inner, "math", Options(push=PushOptions(keyframe_every=1))) as registry:
        push(registry, 2)
    for run in ("tuned", "math"):
        with Registry(stores["collector"], run) as collector:
            for _ in range(2):
                collector.gc(policy, dry_run=False)
    for _ in range(2):
        BaseCollector(stores["collector"]).collect(-1.0, dry_run=False)
    assert not [key for key in inner.list("_bases/") if key.endswith(".safetensors")]
    return {role: store.requests for role, store in stores.items()}


@pytest.mark.slow
def test_what_was_recorded_covers_every_kind_of_key(recorded: dict[Role, set[Request]]) -> None:
    for role in ("trainer", "service"):
        puts = {
            re.sub(r"^[^/]+/|[^/]+$", "", request.key or "") for request in recorded[role] if "Put" in request.action
        }
        assert puts >= {"log/", "log/snapshots/", "layouts/", "objects/patch/"}, role


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_all_that_it_does(recorded: dict[Role, set[Request]], role: Role) -> None:
    assert recorded[role]
    assert [request for request in recorded[role] if not allowed(role, request)] == []


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_granted_no_action_that_it_never_uses(recorded: dict[Role, set[Request]], role: Role) -> None:
    granted = {action for one in policy(role) if one["Effect"] == "Allow" for action in as_list(one["Action"])}
    used = {request.action for request in recorded[role]}
    assert granted == used & granted


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_replace_or_delete_what_a_run_needs(role: Role) -> None:
    keys = (
        "math/log/000000000007.json",
        "math/objects/patch/x",
        "math/objects/patch/x/patch-head",
        "math/layouts/x.json",
        "math/head",
        "math/log/snapshots/0",
        "math/log/segments/0",
        "math/bases/x",
        "_bases/x/model.safetensors",
        "_bases/x/model.safetensors.index.json",
    )
    for key in (*keys[:4], *keys[8:]):
        assert not allowed(role, Request("s3:PutObject", key, conditional=False)), key
    collects = {"reader": (), "collector": (*keys[1:3], *keys[5:]), "mirror": (*keys[1:4], *keys[5:])}
    collected = collects.get(role, keys[5:7])
    for key in keys:
        assert allowed(role, Request("s3:DeleteObject", key)) == (key in collected), key
        assert not allowed(role, Request("s3:DeleteObjectVersion", key)), key


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reaches_another_prefix_or_the_bucket_s_own_settings(role: Role) -> None:
    for action in ("s3:PutBucketPolicy", "s3:PutLifecycleConfiguration", "s3:DeleteBucket", "s3:PutObjectAcl"):
        assert not allowed(role, Request(action))
        assert not allowed(role, Request(action, "math/head"))
    for statement in policy(role):
        assert "*" not in as_list(statement["Action"])
        resources = as_list(statement.get("Resource", statement.get("NotResource")))
        assert all(resource == BUCKET or resource.startswith(f"{BUCKET}/policies/") for resource in resources)


def test_a_compactor_makes_objects_and_records_and_deletes_nothing() -> None:
    assert allowed("compactor", Request("s3:PutObject", "math/objects/patch/x", conditional=True))
    for key in ("math/layouts/x.json", "math/reports/x", "math/leases/x.json"):
        assert not allowed("compactor", Request("s3:PutObject", key, conditional=True))
        assert not allowed("compactor", Request("s3:DeleteObject", key))


def test_a_reader_writes_nothing_but_leases() -> None:
    actions = ("s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject")
    keys = ("math/head", "math/log/000000000001.json", "math/objects/patch/x", "math/reports/x")
    assert not any(
        allowed("reader", Request(action, key, conditional))
        for action in actions
        for key in keys
        for conditional in (False, True)
    )
    assert allowed("reader", Request("s3:PutObject", "math/leases/w-1.json"))
    assert allowed("reader", Request("s3:DeleteObject", "math/leases/w-1.json"))


def test_a_collector_makes_records_and_no_objects() -> None:
    assert allowed("collector", Request("s3:PutObject", "math/log/000000000001.json", conditional=True))
    for key in ("math/objects/patch/x", "math/layouts/x.json", "math/reports/x", "math/leases/x.json"):
        assert not allowed("collector", Request("s3:PutObject", key, conditional=True))


def test_a_mirror_marks_a_copy_once_and_writes_no_reports() -> None:
    assert allowed("mirror", Request("s3:PutObject", "math/mirror", conditional=True))
    assert allowed("mirror", Request("s3:PutObject", "math/log/countersigned/000000000001.json"))
    assert not allowed("mirror", Request("s3:DeleteObject", "math/mirror"))
    assert not allowed("mirror", Request("s3:PutObject", "math/mirror"))
    assert not allowed("mirror", Request("s3:PutObject", "math/reports/x"))


def test_a_trainer_creates_records_and_leaves_reports_alone() -> None:
    assert allowed("trainer", Request("s3:PutObject", "math/log/000000000001.json", conditional=True))
    assert not allowed("trainer", Request("s3:PutObject", "math/reports/x"))
    assert allowed("service", Request("s3:DeleteObject", "math/reports/x"))
