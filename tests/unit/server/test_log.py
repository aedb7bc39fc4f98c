"""The log over HTTP: records as stored, appended by writers without keys, through one replica or several."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from blake3 import blake3
from fastapi.testclient import TestClient

from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_registry.store import PrefixStore
from pulse_schemas import Record
from tests.support.apps import LAYOUT, app_over, fill, run_of, store_objects, store_record
from tests.support.records import LAYOUT as STRANGE_LAYOUT
from tests.support.records import RUN, DictStore, Script, keyframe, write_id

URL = f"/v1/runs/{RUN}"
JSON = {"content-type": "application/json"}


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def script(store: DictStore) -> Script:
    return fill(store, run_of(4))


@pytest.fixture
def client(store: DictStore, script: Script) -> Iterator[TestClient]:
    with TestClient(app_over(store)) as client:
        yield client


def test_records_are_answered_as_they_are_stored(client: TestClient, script: Script) -> None:
    for record in script.records:
        assert client.get(f"{URL}/log/{record.seq}").content == record.seal()
    body = client.get(f"{URL}/log").json()
    assert (body["run"], body["since"]) == (RUN, 0)
    assert [text.encode() for text in body["records"]] == [record.seal() for record in script.records]


@pytest.mark.parametrize(
    ("query", "seqs"), [("?since=3", [3, 4]), ("?since=1&limit=2", [1, 2]), ("?since=5", []), ("?since=999999", [])]
)
def test_a_page_of_the_log_begins_and_ends_where_it_is_asked_to(
    client: TestClient, script: Script, query: str, seqs: list[int]
) -> None:
    expected = [script.records[seq].seal().decode() for seq in seqs]
    assert client.get(f"{URL}/log{query}").json()["records"] == expected


def test_a_page_of_long_records_is_cut(client: TestClient, script: Script, store: DictStore) -> None:
    for number in range(2):
        script.commit(layout=LAYOUT.id, metadata={"note": "x" * (7 << 20)})
        store_record(store, script.records[-1])
        assert client.get(f"{URL}/log?since={5 + number}&wait=10").json()["records"]
    assert len(client.get(f"{URL}/log?since=5").json()["records"]) == 1
    assert len(client.get(f"{URL}/log?since=4").json()["records"]) == 2


def test_a_record_that_is_not_there_yet_is_a_404_until_it_is(
    client: TestClient, script: Script, store: DictStore
) -> None:
    assert client.get(f"{URL}/log/5").status_code == 404
    store_record(store, script.commit(layout=LAYOUT.id).records[-1])
    assert client.get(f"{URL}/log/5").content == script.records[5].seal()


def test_a_record_behind_one_that_is_missing_is_there_for_who_knows_of_it(
    client: TestClient, script: Script, store: DictStore, caplog: pytest.LogCaptureFixture
) -> None:
    kept = store.objects.pop(f"{RUN}/{keys.record_key(2)}")
    assert client.get(f"{URL}/log/2").status_code == 404
    assert client.get(f"{URL}/log/4").content == script.records[4].seal()
    assert client.get(f"{URL}/log/9").json()["detail"].endswith("has no record 9; the newest is 1")
    answer = client.post(f"{URL}/log", content=script.make_tag(name="best", version=0).seal(), headers=JSON)
    assert answer.json()["type"].endswith("CorruptObject")
    assert "record 2 is missing: the log ends at record 1, and record 3 is there" in caplog.text
    store.objects[f"{RUN}/{keys.record_key(2)}"] = kept
    assert client.get(f"{URL}/log/2").content == kept


def test_a_run_that_another_replica_began_is_found_though_it_was_missing_a_moment_ago() -> None:
    store, script = DictStore(), Script(RUN).epoch()
    with TestClient(app_over(store)) as one, TestClient(app_over(store, poll_seconds=600)) as two:
        assert two.get(f"{URL}/log/0").status_code == 404
        assert one.post(f"{URL}/log", content=script.records[0].seal(), headers=JSON).status_code == 201
        assert two.get(f"{URL}/chain").status_code == 404  # the others may be late for a moment
        assert two.get(f"{URL}/log/0").content == script.records[0].seal()
    with TestClient(app_over(DictStore(), poll_seconds=600)) as one:
        assert one.get(f"{URL}/log").status_code == 404
        assert one.post(f"{URL}/log", content=script.records[0].seal(), headers=JSON).status_code == 201
        assert len(one.get(f"{URL}/log").json()["records"]) == 1


@pytest.mark.parametrize("path", ["/log", "/log/0", "/log?since=3&wait=5", "/chain", "/route", "/workers", "/events"])
def test_a_run_that_does_not_exist_is_a_404_at_once(client: TestClient, path: str) -> None:
    assert client.get(f"/v1/runs/ghost{path}").status_code == 404


def test_a_run_that_does_not_exist_has_no_hint_no_snapshot_and_no_layout(client: TestClient) -> None:
    assert client.get("/v1/runs/ghost/snapshots").json() == {"snapshots": []}
    for path in ("head", "snapshots/63", f"layouts/{LAYOUT.id}"):
        assert client.get(f"/v1/runs/ghost/{path}").status_code == 404


def append(client: TestClient, store: DictStore, record: Record, *, objects: bool = True) -> int:
    if objects:
        store_objects(store, record)
    return client.post(f"/v1/runs/{record.run}/log", content=record.seal(), headers=JSON).status_code


def test_a_whole_run_is_made_through_the_service(store: DictStore) -> None:
    script = run_of(70, "new")
    with TestClient(app_over(store)) as client:
        assert client.get("/v1/runs/new/log/0").status_code == 404
        for record in script.records:
            assert append(client, store, record) == 201
            assert client.get(f"/v1/runs/new/log/{record.seq}").content == record.seal()
        assert client.get("/v1/runs/new/versions/latest").json()["version"] == 69
        assert client.get("/v1/runs/new/snapshots").json() == {"snapshots": [63]}
        assert client.get("/v1/runs/new/head").content == store.get("new/head")
        assert client.get("/v1/runs/new/snapshots/63").content == store.get(f"new/{keys.snapshot_key(63)}")
    assert LogReader(PrefixStore(store, "new"), "new").refresh().last == script.state.last


def test_the_answer_to_an_append_says_where_the_record_is_also_the_second_time(
    client: TestClient, store: DictStore, script: Script
) -> None:
    record = script.make_commit(layout=LAYOUT.id)
    store_objects(store, record)
    for _ in range(2):
        answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON)
        assert (answer.status_code, answer.json()) == (201, {"run": RUN, "seq": 5})


@pytest.mark.parametrize(
    ("change", "status", "problem"),
    [
        ({"write_id": write_id(5), "seq": 4}, 409, "AlreadyExists"),
        ({"seq": 9}, 409, "Conflict"),
        ({"epoch": 2}, 400, "InvalidArgument"),
        ({"run": "other"}, 400, "InvalidArgument"),
    ],
    ids=["taken", "too-early", "rule-broken", "other-run"],
)
def test_a_record_that_can_not_be_appended_is_a_problem_that_says_why(
    client: TestClient, store: DictStore, script: Script, change: dict[str, object], status: int, problem: str
) -> None:
    record = script.make_commit(**{"layout": LAYOUT.id, **change})
    store_objects(store, record)
    before = dict(store.objects)
    answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (status, problem)
    assert store.objects == before


def test_a_writer_that_was_fenced_hears_so(client: TestClient, store: DictStore, script: Script) -> None:
    assert append(client, store, script.epoch().records[-1]) == 201
    record = script.make_commit(layout=LAYOUT.id, epoch=1)
    store_objects(store, record)
    answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (409, "Fenced")


def test_a_record_that_names_what_is_not_there_is_refused_and_named(
    client: TestClient, store: DictStore, script: Script
) -> None:
    record = script.make_commit(layout=LAYOUT.id)
    answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON)
    assert answer.status_code == 400
    assert record.patch is not None
    assert record.patch.object.key in answer.json()["detail"]


def test_a_damaged_body_is_refused_before_it_is_looked_at(client: TestClient, store: DictStore, script: Script) -> None:
    record = script.make_commit(layout=LAYOUT.id)
    store_objects(store, record)
    sealed = record.seal()
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(sealed).digest()).decode()}:"
    answer = client.post(f"{URL}/log", content=sealed[:-1] + b"~", headers={**JSON, "content-digest": digest})
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (400, "DamagedRequest")
    assert client.post(f"{URL}/log", content=sealed, headers={**JSON, "content-digest": digest}).status_code == 201


def test_of_many_writers_at_two_replicas_one_wins_each_number(store: DictStore) -> None:
    script = fill(store, run_of(1))
    with TestClient(app_over(store)) as one, TestClient(app_over(store)) as two, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            rivals = [script.make_commit(layout=LAYOUT.id, write_id=write_id(number)) for number in range(8)]
            store_objects(store, rivals[0])
            found = [
                pool.submit(append, (one, two)[number % 2], store, rival, objects=False)
                for number, rival in enumerate(rivals)
            ]
            statuses = [future.result() for future in found]
            assert sorted(statuses) == [201] + [409] * 7
            won = rivals[statuses.index(201)]
            assert store.get(f"{RUN}/{keys.record_key(won.seq)}") == won.seal()
            script.add(won)
        for client in (one, two):
            assert client.get(f"{URL}/log/{script.state.seq}").content == script.records[-1].seal()


def test_a_layout_is_stored_once_it_hashes_to_its_id(client: TestClient, store: DictStore) -> None:
    path = f"/v1/runs/fresh/layouts/{LAYOUT.id}"
    for _ in range(2):
        assert client.put(path, content=LAYOUT.canonical(), headers=JSON).status_code == 201
    assert client.get(path).content == store.get(f"fresh/{keys.layout_key(LAYOUT.id)}") == LAYOUT.canonical()
    for where, body in ((f"/v1/runs/fresh/layouts/{STRANGE_LAYOUT}", LAYOUT.canonical()), (path, b"{}"), (path, b"")):
        answer = client.put(where, content=body, headers=JSON)
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (400, "InvalidArgument")
    assert client.get(f"/v1/runs/fresh/layouts/{STRANGE_LAYOUT}").status_code == 404


def test_a_layout_that_claims_too_many_cells_is_not_stored(client: TestClient, store: DictStore) -> None:
    data = LAYOUT.canonical().replace(b"[10,10]", b"[4294967296,1025]")
    layout_id = blake3(data).hexdigest()
    answer = client.put(f"/v1/runs/fresh/layouts/{layout_id}", content=data, headers=JSON)
    assert (answer.status_code, "more than 4398046511104 cells" in answer.json()["detail"]) == (400, True)
    assert not any("fresh" in key for key in store.objects)


def test_a_new_layout_comes_with_a_keyframe(client: TestClient, store: DictStore, script: Script) -> None:
    record = script.make_commit(layout="c" * 64, patch=None, keyframe=keyframe(4, tag=4))
    store_objects(store, record)
    answer = client.post(f"{URL}/log", content=record.seal(), headers=JSON)
    assert (answer.status_code, "layout" in answer.json()["detail"]) == (400, True)
