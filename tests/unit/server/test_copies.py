"""Copies over the service: a mirror that holds a token alone writes what it would in a bucket, and nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pulse_registry.client.copies import CopyStore
from pulse_registry.client.store import ServiceStore
from pulse_registry.compaction import CompactOptions
from pulse_registry.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    CorruptObject,
    Forked,
    InvalidArgument,
    Mirrored,
    NotFound,
)
from pulse_registry.format import keys
from pulse_registry.log.mirror_mark import drop_mark, read_mark
from pulse_registry.mirror.rights import Right, right_of
from pulse_registry.retention import RetentionPolicy
from pulse_registry.signing import SigningKey, Trust
from pulse_registry.store import FileStore, PrefixStore, Store
from pulse_registry.testing import CountingStore, FaultStore
from pulse_registry.testing.fault import Fault
from pulse_schemas import Countersignature, MirrorMark, unseal_record
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import app_over, running
from tests.support.bases import LENDER, lend, opened
from tests.support.mirrors import copy, mirror, tree
from tests.support.outer_rounds import make_rounds
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model, without_pauses
from tests.unit.server.edges import NOW as MADE
from tests.unit.server.test_objects import SigningStore

NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
TOKENS = {scope: new_token(scope, scope, (f"{RUN}*",), now=MADE) for scope in ("read", "publish", "mirror", "admin")}
SET = TokenSet(tokens=tuple(entry for _, entry in TOKENS.values()))
RECORD = f"{RUN}/{keys.record_key(0)}"


def trained(versions: int, store: Store | None = None, first: int = 0) -> Any:
    """Push so many versions, with files, and let half of them be merged; return the store."""
    store, model = store or DictStore(), small_model()
    with without_pauses(snapshot_every=3), quick(store, keyframe_every=4) as registry:
        for step in range(first, first + versions):
            change(model, step)
            registry.push(step, model, files={"config.json": str(step // 3).encode()})
        compactor = registry.compactor(CompactOptions())
        while compactor.step() is not None:
            pass
        compactor.close()
        registry.tag("best", first)
    return store


@pytest.fixture
def there() -> DictStore:
    """The store in which the service has its copies."""
    return DictStore()


@pytest.fixture
def url(there: DictStore) -> Iterator[str]:
    with running(app_over(there, insecure_open=False, tokens=SET)) as served:
        yield served.url


@pytest.fixture
def copies(url: str) -> Iterator[CopyStore]:
    store = CopyStore(url, TOKENS["mirror"][0])
    yield store
    store.close()


@pytest.mark.slow
def test_a_copy_through_the_service_is_the_source_byte_for_byte(copies: CopyStore, there: DictStore) -> None:
    source = trained(7)
    source.objects[f"{RUN}/{keys.countersignature_key(2)}"] = Countersignature(run=RUN, seq=2, record="a" * 64).seal()
    copy(source, copies, policy=NOW)
    assert tree(there) == tree(source)
    assert read_mark(PrefixStore(there, RUN)) is not None
    with quick(source) as registry:
        registry.gc(NOW, dry_run=False)
    trained(2, source, first=7)
    for _ in range(2):
        with quick(source) as registry:
            registry.gc(NOW, dry_run=False)
    for _ in range(2):
        copy(source, copies, policy=NOW)
    assert tree(there) == tree(source), "what was retired is deleted at the copy as well"
    mine, theirs = small_model(1), small_model(2)
    with quick(source) as one, quick(there) as two:
        assert one.pull("latest", into=mine).digest == two.pull("latest", into=theirs).digest


@pytest.mark.slow
def test_outer_rounds_are_copied_through_the_service(tmp_path: Path) -> None:
    source, far = tmp_path / "a", tmp_path / "b"
    make_rounds(str(source), RUN, 2)
    with running(app_over(FileStore(far), insecure_open=False, tokens=SET)) as served:
        store = CopyStore(served.url, TOKENS["mirror"][0])
        copy(FileStore(source), store)
        store.close()
    assert _files(far) == _files(source)


def _files(root: Path) -> dict[str, bytes]:
    own = (f"{RUN}/{name}" for name in (keys.MIRROR, keys.CLOCK, keys.LEASES, f"{keys.OUTER}{keys.CLOCK}"))
    store, own = FileStore(root), tuple(own)
    return {key: store.get(key) for key in store.list("") if not key.startswith(own)}


def test_objects_go_to_the_bucket_itself_where_the_store_signs() -> None:
    store, key = SigningStore(), keys.layout_key("a" * 64)
    with TestClient(app_over(store)) as client:
        uploads = f"/v1/runs/{RUN}/copy/uploads"
        wanted = {"key": key, "size": 70 << 20}
        assert client.post(uploads, json=wanted).status_code == 409, "the run is no copy"
        client.put(f"/v1/runs/{RUN}/copy/keys/mirror", content=MirrorMark(run=RUN, source="a").seal())
        whole = client.post(uploads, json=wanted | {"size": 5, "sha256": "d" * 64}).json()
        assert (whole["kind"], whole["request"]["url"]) == ("put", f"https://bucket.example/{RUN}/{key}?put")
        begun = client.post(uploads, json=wanted).json()
        assert begun["kind"] == "parts"
        path = f"{uploads}/{begun['upload_id']}"
        part = {"key": key, "number": 1, "size": 64 << 20, "sha256": "d" * 64}
        assert client.post(f"{path}/parts", json=part).json()["url"] == f"https://bucket.example/{RUN}/{key}?part=1"
        done = {"key": key, "parts": [{"number": 1, "etag": "x", "sha256": "d" * 64}]}
        assert client.post(f"{path}/complete", json=done).status_code == 201
        assert store.objects[f"{RUN}/{key}"] == b"x"
        assert client.request("DELETE", path, params={"key": key}).status_code == 204
        for other in (keys.record_key(0), keys.HEAD, keys.HOME, f"_bases/{'a' * 64}-0000/x.json"):
            assert client.post(uploads, json=wanted | {"key": other}).status_code == 400
            assert client.post(f"{path}/parts", json=part | {"key": other}).status_code == 400
            assert client.post(f"{path}/complete", json=done | {"key": other}).status_code == 400
            assert client.request("DELETE", path, params={"key": other}).status_code == 400


@pytest.mark.slow
def test_what_is_damaged_at_the_copy_is_sent_again(copies: CopyStore, there: DictStore) -> None:
    source = trained(3)
    copy(source, copies)
    for key in [key for key in there.objects if "/objects/" in key or "/layouts/" in key]:
        there.objects[key] = b"damaged"
    copy(source, copies, verify=True)
    assert tree(there) == tree(source)


@pytest.mark.slow
def test_a_record_that_a_copy_has_lost_is_put_into_the_bucket_itself(copies: CopyStore, there: DictStore) -> None:
    source = trained(6)
    copy(source, copies)
    lost = f"{RUN}/{keys.record_key(2)}"
    del there.objects[lost]
    with pytest.raises(CorruptObject, match="is gone, and a service takes none but the next"):
        copy(source, copies, verify=True)
    copy(source, there, verify=True)
    assert there.objects[lost] == source.objects[lost]


@pytest.mark.slow
def test_killed_at_some_requests_a_mirror_is_gone_on_with() -> None:
    source = trained(4)
    for nth in itertools.count(1, 23):
        there = DictStore()
        with running(app_over(there)) as served:
            copies = CopyStore(served.url)
            dying = FaultStore(copies, [Fault("fail_after", nth=nth, error=lambda verb, key: Killed(key))])
            counted = CountingStore(dying)
            one = mirror(source, counted)
            with suppress(Killed):
                one.catch_up()
            with suppress(Killed):
                one.close()
            copy(source, copies)
            copies.close()
        assert tree(there) == tree(source)
        if len(counted.ledger) < nth:
            assert nth > 23
            return


class Killed(BaseException):
    """The process is dead."""


# -- what it may not do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["read", "publish"])
def test_other_tokens_write_no_copies(url: str, there: DictStore, scope: str) -> None:
    store = CopyStore(url, TOKENS[scope][0])
    with pytest.raises(AccessDenied, match="mirror"):
        copy(trained(1), store)
    store.close()
    assert not there.objects


def test_a_token_of_a_mirror_reads_and_takes_leases_but_writes_to_no_run_that_lives_here(
    url: str, copies: CopyStore, there: DictStore
) -> None:
    trained(2, there)
    before = {key: data for key, data in there.objects.items() if "/leases/" not in key}
    service = ServiceStore(url, TOKENS["mirror"][0])
    copied = DictStore()
    copy(service, copied)
    assert tree(copied) == tree(there), "as a source it is read, and takes leases"
    with quick(service) as registry, pytest.raises(AccessDenied):
        registry.tag("mine", 1)
    with quick(service) as registry, pytest.raises(AccessDenied):
        registry.push(9, small_model(9))
    service.close()
    with pytest.raises(Conflict, match="no copy"):
        copy(trained(1), copies)
    mark = MirrorMark(run=RUN, source="elsewhere").seal()
    record = there.objects[f"{RUN}/{keys.record_key(1)}"]
    last = max(key for key in there.objects if keys.record_seq(key.removeprefix(f"{RUN}/")) is not None)
    following = f"{RUN}/{keys.record_key(keys.record_seq(last.removeprefix(f'{RUN}/')) + 1)}"  # type: ignore[operator]
    a_patch = next(key for key in there.objects if "/objects/patch/" in key)
    for key, data, absent in (
        (f"{RUN}/{keys.MIRROR}", mark, True),
        (following, _next(there.objects[last]), True),
        (f"{RUN}/{keys.HEAD}", b"{}", False),
        (f"{RUN}/{keys.CLOCK}", b"x", False),
        (f"{RUN}/{keys.countersignature_key(0)}", b"{}", False),
        (f"{RUN}/{keys.snapshot_key(1)}", record, False),
        (a_patch.replace("patch/", "patch/0"), b"x", True),
    ):
        with pytest.raises((Conflict, InvalidArgument)):
            copies.put(key, data, if_absent=absent)
    for key in (a_patch, f"{RUN}/{keys.snapshot_key(2)}"):
        with pytest.raises(Conflict, match="no copy"):
            copies.delete(key)
    assert {key: data for key, data in there.objects.items() if "/leases/" not in key} == before


def _next(sealed: bytes) -> bytes:
    """Return a record that goes on with the log that ends with another one."""
    from pulse_registry.log import sealed_hash

    record = unseal_record(sealed)
    return record.model_copy(
        update={"seq": record.seq + 1, "previous": sealed_hash(sealed), "write_id": "b" * 32}
    ).seal()


@pytest.mark.slow
def test_once_a_copy_has_become_the_home_a_mirror_writes_to_it_no_more(copies: CopyStore, there: DictStore) -> None:
    source = trained(2)
    copy(source, copies)
    drop_mark(PrefixStore(there, RUN))
    before = dict(there.objects)
    trained(1, source, first=2)
    with pytest.raises(Conflict, match="no copy"):
        copy(source, copies)
    assert there.objects == before


def test_a_record_that_does_not_go_on_with_the_chain_is_refused(copies: CopyStore, there: DictStore) -> None:
    source, other = trained(3), DictStore()
    copy(source, copies)
    before = dict(there.objects)
    last = max(key for key in there.objects if keys.record_seq(key.removeprefix(f"{RUN}/")) is not None)
    seq = keys.record_seq(last.removeprefix(f"{RUN}/")) or 0
    good = _next(there.objects[last])
    record = unseal_record(good)
    forged = record.model_copy(update={"previous": "0" * 64}).seal()
    for key, sealed, error in (
        (keys.record_key(seq + 1), forged, InvalidArgument),
        (keys.record_key(seq + 1), record.model_copy(update={"run": "run2"}).seal(), InvalidArgument),
        (keys.record_key(seq + 2), record.model_copy(update={"seq": seq + 2}).seal(), Conflict),
        (keys.record_key(seq + 2), good, InvalidArgument),
        (keys.record_key(seq), record.model_copy(update={"seq": seq}).seal(), AlreadyExists),
        (keys.record_key(seq + 1), b"no record", InvalidArgument),
    ):
        with pytest.raises(error):
            copies.put(f"{RUN}/{key}", sealed, if_absent=True)
    assert there.objects == before
    trained(3, other)
    with pytest.raises(Forked):
        copy(other, copies)
    assert there.objects == before | {key: there.objects[key] for key in (f"{RUN}/{keys.CLOCK}",) if key in before}


def test_a_service_that_pins_keys_takes_no_record_that_they_did_not_sign(there: DictStore) -> None:
    key = SigningKey.generate()
    source = trained(2)
    with running(app_over(there, insecure_open=False, tokens=SET, trust=key.public)) as served:
        store = CopyStore(served.url, TOKENS["mirror"][0])
        with pytest.raises(InvalidArgument, match="sign"):
            copy(source, store)
        store.close()
    assert RECORD not in there.objects
    assert Trust([key.public])


@pytest.mark.parametrize(
    "key",
    [
        f"{RUN}/{keys.HOME}",
        f"{RUN}/reports/1.json",
        f"{RUN}/log/x.json",
        f"{RUN}/leases/x.json",
        f"{RUN}/bases/{'a' * 64}-0000",
        f"{RUN}/layouts/x.json",
    ],
)
def test_a_mirror_writes_nothing_but_what_copies_have(copies: CopyStore, there: DictStore, key: str) -> None:
    copy(trained(1), copies)
    before = dict(there.objects)
    for absent in (True, False):
        with pytest.raises(InvalidArgument):
            copies.put(key, b"x", if_absent=absent)
    for small in (keys.HEAD, keys.CLOCK, keys.countersignature_key(0)):
        with pytest.raises(InvalidArgument, match="65,536 bytes at most"):
            copies.put(f"{RUN}/{small}", b"x" * (1 << 17))
    assert there.objects == before


def test_records_and_the_mark_are_never_deleted(copies: CopyStore, there: DictStore) -> None:
    copy(trained(1), copies)
    before = dict(there.objects)
    for key in (RECORD, f"{RUN}/{keys.MIRROR}", f"{RUN}/{keys.HEAD}", f"{RUN}/{keys.HOME}"):
        with pytest.raises(InvalidArgument):
            copies.delete(key)
    assert there.objects == before


def test_a_run_on_a_shared_base_is_not_copied_through_a_service(copies: CopyStore, there: DictStore) -> None:
    source = DictStore()
    model = lend(source)
    with opened(source, RUN, base=LENDER) as registry:
        change(model, 1)
        registry.push(0, model)
    with pytest.raises(InvalidArgument, match="shared base belongs to no run"):
        copy(source, copies)
    assert RECORD not in there.objects


def test_a_mark_must_be_one_of_the_run(copies: CopyStore, there: DictStore) -> None:
    for body in (b"{}", MirrorMark(run="run2", source="x").seal()):
        with pytest.raises(InvalidArgument):
            copies.put(f"{RUN}/{keys.MIRROR}", body, if_absent=True)
    assert not there.objects
    with pytest.raises(NotFound):
        copies.get(f"{RUN}/{keys.MIRROR}")


def test_keys_are_listed_by_pages_and_of_one_run_alone(
    copies: CopyStore, there: DictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse_server.routes.copies._MOST_LISTED", 3)
    names = [f"{RUN}/{keys.LEASES}reader-{n}.json" for n in range(8)]
    there.objects |= dict.fromkeys([*names, f"{RUN}-2/{keys.LEASES}x.json", "other/log/a"], b"x")
    assert [*copies.list(f"{RUN}/{keys.LEASES}")] == names
    assert [*copies.list(f"{RUN}/{keys.LEASES}", names[3])] == names[4:]
    assert [*copies.list(f"{RUN}/", f"{RUN}0")] == []
    assert [*copies.list(f"{RUN}/", "a")] == names
    with pytest.raises(InvalidArgument):
        copies.list("")
    with pytest.raises(AccessDenied):
        [*copies.list("other/")]


def test_trainers_and_admins_write_no_versions_to_a_copy(url: str, copies: CopyStore) -> None:
    copy(trained(2), copies)
    service = ServiceStore(url, TOKENS["admin"][0])
    with quick(service) as registry, pytest.raises(Mirrored):
        registry.tag("mine", 1)
    service.close()


def test_a_mirrors_rights_are_those_of_its_policy_for_a_bucket() -> None:
    statements = json.loads((Path(__file__).parents[3] / "deploy/iam/mirror.json").read_text())["Statement"]
    told = {statement["Sid"]: statement["Resource"] for statement in statements if "Resource" in statement}
    number = f"{7:012d}"
    examples = {
        "log/????????????.json": keys.record_key(7),
        "objects/*": keys.patch_key(1, 2, "a" * 32),
        "layouts/*": keys.layout_key("a" * 64),
        "mirror": keys.MIRROR,
        "head": keys.HEAD,
        "log/snapshots/*": keys.snapshot_key(7),
        "log/segments/*": f"log/segments/{number}-{'a' * 64}.safetensors",
        "log/countersigned/*": keys.countersignature_key(7),
        "clock": keys.CLOCK,
        "leases/*": keys.lease_key("reader"),
    }
    of_sid = {
        "CreateWhatStays": Right.CREATE,
        "KeepHintSnapshotsCountersignaturesAndReferencesAndAskTheTime": Right.CREATE | Right.REPLACE,
        "DeleteWhatTheSourceRetiredAndWhatIsDamaged": Right.DELETE,
    }
    for sid, right in of_sid.items():
        patterns = [resource.partition("policies/*/")[2] for resource in told[sid] if "policies/*/" in resource]
        patterns = [pattern for pattern in patterns if pattern != "bases/*"]  # those of a bucket alone
        assert {key for key in examples.values() if right_of(key) & right} >= {examples[p] for p in patterns}, sid
    assert not right_of(keys.HOME) | right_of("reports/x.json") | right_of(f"bases/{'a' * 64}-0000")


def test_a_source_that_can_not_give_an_object_stops_before_its_record(copies: CopyStore, there: DictStore) -> None:
    source = trained(3)
    key = next(key for key in source.objects if "/patch/000000000001-" in key)
    source.objects[key] = b"\0" * len(source.objects[key])
    with pytest.raises(CorruptObject):
        copy(source, copies)
    assert key not in there.objects
