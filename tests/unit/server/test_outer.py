"""Outer rounds over HTTP: what members may append and store, what is told of rounds, and who waits hears at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from fastapi.testclient import TestClient

from pulse_kernels import get_backend
from pulse_registry.format import keys
from pulse_registry.format.contribution import contribution_bytes
from pulse_registry.outer.log import OuterLog
from pulse_registry.store import PrefixStore
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import ObjectRef
from pulse_schemas.heads import ContributionHead
from pulse_schemas.outer import (
    CheckpointRecord,
    CloseRecord,
    ContributeRecord,
    JoinRecord,
    LeaveRecord,
    MoveRoundsRecord,
    OuterRecord,
    Rates,
    RestartRecord,
    RetireRoundsRecord,
    StartRecord,
)
from pulse_server import Settings, create_app
from pulse_server.tokens import TokenSet, new_token
from tests.support.apps import LAYOUT, app_over, fill, run_of
from tests.support.records import RUN, DictStore
from tests.support.waiting import HANG_S

URL = f"/v1/runs/{RUN}/outer"
JSON = {"content-type": "application/json"}
DIGEST = "0" * 32
CELLS = 100


class Members:
    """Makes records as members do, behind those that are stored."""

    def __init__(self, store: DictStore) -> None:
        self._store, self._ids = store, 0
        self._log = OuterLog(PrefixStore(store, RUN), RUN)

    def make(self, kind: type[OuterRecord], **fields: Any) -> bytes:
        """Return the next record, sealed; fields that are given replace others."""
        self._ids += 1
        state = self._log.refresh()
        common = {
            "run": RUN, "seq": state.seq + 1, "write_id": f"{self._ids:032x}", "previous": state.last,
            "created_at": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip
        return kind(**{**common, **fields}).seal()

    def term(self, member: str) -> str:
        return self._log.refresh().members[member].term

    def start(self, **fields: Any) -> bytes:
        return self.make(
            StartRecord, version=0, layout=LAYOUT.id, digest=DIGEST, rates=Rates(inner_steps=8, rate=0.7, momentum=0.9),
            gain=7.0, values="levels", exponent=-20, quorum=1, patience=2, weighting="equal", **fields,
        )  # fmt: skip

    def join(self, member: str) -> bytes:
        return self.make(JoinRecord, member=member)

    def contribute(self, member: str, ref: ObjectRef | None = None, **fields: Any) -> bytes:
        state = self._log.refresh()
        term = state.members[member].term if member in state.members else "f" * 32
        entries = 0 if ref is None else 3
        given = {
            "round": state.open, "member": member, "term": term, "base": DIGEST, "steps": 8, "exponent": -20,
            "entries": entries, "object": ref,
        }  # fmt: skip
        return self.make(ContributeRecord, **(given | fields))


def levels(owner: str, **fields: Any) -> tuple[ObjectRef, bytes]:
    """Return a contribution of three levels, and what a record says of it."""
    geometry, backend = Geometry(LAYOUT), get_backend("reference")
    group, weights = geometry.groups[0], np.zeros(CELLS, np.uint16)
    said = {
        "layout": geometry.id,
        "base": DIGEST,
        "round": 1,
        "member": owner,
        "exponent": -20,
        "values": "levels",
    } | fields
    index, values = np.array([3, 50, 99], np.uint32), np.array([1, -2, 3], np.int16)
    data = contribution_bytes(
        backend,
        geometry,
        lambda changed, groups: ContributionHead(**said, changed=changed, groups=groups),
        [(group, index, values)],
        lambda _: [weights],
    )
    key = keys.contribution_key(1, owner, blake3(data).hexdigest()[:32])
    return ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest()), data


@pytest.fixture
def store() -> DictStore:
    store = DictStore()
    fill(store, run_of(1))
    return store


@pytest.fixture
def client(store: DictStore) -> Iterator[TestClient]:
    with TestClient(app_over(store)) as client:
        yield client


@pytest.fixture
def members(store: DictStore) -> Members:
    return Members(store)


def append(client: TestClient, sealed: bytes, **headers: str) -> Any:
    return client.post(f"{URL}/log", content=sealed, headers=JSON | headers)


def accept(client: TestClient, *made: bytes) -> None:
    for sealed in made:
        answer = append(client, sealed)
        assert answer.status_code == 201, answer.text


def put(client: TestClient, ref: ObjectRef, data: bytes) -> Any:
    return client.put(f"{URL}/{ref.key}", content=data)


def outer(store: DictStore) -> list[str]:
    return [key for key in store.objects if key.startswith(f"{RUN}/outer/")]


def test_a_run_without_outer_rounds_has_none_until_somebody_begins_them(client: TestClient, members: Members) -> None:
    for path in ("", "/log", "/log/0"):
        answer = client.get(URL + path)
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (404, "NotFound")
    accept(client, members.start())
    assert client.get(f"{URL}/log").json()["records"][0].encode() == client.get(f"{URL}/log/0").content
    assert client.get(f"{URL}/log/1").status_code == 404


def test_a_round_is_admitted_record_by_record_and_told(client: TestClient, members: Members) -> None:
    accept(client, members.start())
    accept(client, members.join("a"))
    accept(client, members.join("b"))
    ref, data = levels("a")
    assert put(client, ref, data).status_code == 201
    sealed = members.contribute("a", ref)
    accept(client, sealed, sealed)  # sent twice, it is there once
    assert client.get(f"{URL}/{ref.key}").content == data
    told = client.get(URL).json()
    assert [(one["member"], one["standing"]) for one in told["members"]] == [("a", "contributed"), ("b", "awaited")]
    assert (told["open"]["round"], told["open"]["late"], told["rounds"]) == (1, ["b"], [])
    accept(client, members.make(CloseRecord, round=1))
    told = client.get(URL).json()
    part = {"member": "a", "steps": 8, "entries": 3, "nbytes": len(data), "created_at": "2026-01-01T00:00:00.000Z"}
    assert told["rounds"] == [{"round": 1, "version": 1, "ended": True, "parts": [part], "late": ["b"]}]
    assert (told["open"]["round"], told["cells"], told["first"]) == (2, CELLS, 0)
    assert told["members"][1] == {
        "member": "b", "term": members.term("b"), "since": 1, "missed": 1, "standing": "awaited",
        "last_round": None, "last": None,
    }  # fmt: skip
    assert client.get(f"{URL}?rounds=0").json()["rounds"] == []
    for number in (-1, 501):
        assert client.get(f"{URL}?rounds={number}").status_code == 422


def test_who_waits_for_a_record_hears_at_once(client: TestClient, members: Members) -> None:
    accept(client, members.start())
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.append(client.get(f"{URL}/log?since=1&wait=3600").json()))
    waiting.start()
    sealed = members.join("a")
    accept(client, sealed)
    waiting.join(HANG_S)
    assert heard[0]["records"] == [sealed.decode()]


REFUSED: dict[str, Any] = {
    "a contribution of one who never joined": lambda m: (m.contribute("z"), 409, "Fenced"),
    "one of a term that has ended": lambda m: (m.contribute("a", term="e" * 32), 409, "Fenced"),
    "the end of a term that is another's": lambda m: (m.make(LeaveRecord, member="a", term="e" * 32), 409, "Fenced"),
    "one to a round that is not open": lambda m: (m.contribute("a", round=2), 400, "InvalidArgument"),
    "one from other weights": lambda m: (m.contribute("a", base="1" * 32), 400, "InvalidArgument"),
    "one whose exponent is out of the window": lambda m: (m.contribute("a", exponent=-7), 400, "InvalidArgument"),
    "the end of a round without a quorum": lambda m: (m.make(CloseRecord, round=1), 400, "InvalidArgument"),
    "a second start": lambda m: (m.start(seq=0, previous=None), 409, "AlreadyExists"),
    "one that breaks the chain": lambda m: (m.make(JoinRecord, member="c", previous="1" * 64), 400, "InvalidArgument"),
    "one of another run": lambda m: (m.make(JoinRecord, member="c", run="other"), 400, "InvalidArgument"),
    "one that comes too early": lambda m: (m.make(JoinRecord, member="c", seq=9), 409, "Conflict"),
    "one whose number is taken": lambda m: (
        m.make(JoinRecord, member="c", seq=1, previous="1" * 64),
        409,
        "AlreadyExists",
    ),
    "no record": lambda m: (b"{}", 400, "InvalidArgument"),
    "a flipped bit": lambda m: (m.join("c").replace(b'"c"', b'"d"'), 400, "InvalidArgument"),
    "one that is too long": lambda m: (b" " * (64 << 10) + b"x", 413, "InvalidRequest"),
    "a checkpoint that is not there": lambda m: (
        m.make(
            CheckpointRecord,
            round=1,
            parts=1,
            theta=DIGEST,
            momentum=DIGEST,
            object=ObjectRef(key=keys.checkpoint_head_key(1, "c" * 32), size=1, blake3="0" * 64),
        ),
        400,
        "InvalidArgument",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_count_is_refused_and_not_written(
    what: str, client: TestClient, members: Members, store: DictStore
) -> None:
    accept(client, members.start())
    accept(client, members.join("a"))
    before = outer(store)
    sealed, status, kind = REFUSED[what](members)
    answer = append(client, sealed)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (status, kind), answer.text
    assert outer(store) == before
    counted = client.get("/metrics").text
    assert status == 413 or f'pulse_outer_records_total{{outcome="{kind}"}} 1.0' in counted


LIES: dict[str, Any] = {
    "another member": {"member": "b"},
    "another round": {"round": 2},
    "other weights": {"base": "1" * 32},
    "another exponent": {"exponent": -19},
    "another layout": {"layout": "1" * 64},
}


@pytest.mark.parametrize("what", LIES)
def test_a_contribution_that_says_something_else_than_its_record_is_refused(
    what: str, client: TestClient, members: Members
) -> None:
    accept(client, members.start())
    accept(client, members.join("a"))
    _, data = levels("a", **LIES[what])
    ref = ObjectRef(key=keys.contribution_key(1, "a", "c" * 32), size=len(data), blake3=blake3(data).hexdigest())
    assert put(client, ref, data).status_code == 201
    answer = append(client, members.contribute("a", ref))
    assert (answer.status_code, "says of itself something else" in answer.text) == (400, True), answer.text


def test_a_contribution_that_is_not_there_as_it_says_is_refused(client: TestClient, members: Members) -> None:
    accept(client, members.start())
    accept(client, members.join("a"))
    ref, data = levels("a")
    for wrong, why in (
        (ref, "is not there"),
        (ref.model_copy(update={"key": keys.contribution_key(1, "b", "c" * 32)}), "is no name of a contribution"),
        (ref.model_copy(update={"key": "log/000000000000.json"}), "is no name of a contribution"),
    ):
        answer = append(client, members.contribute("a", wrong))
        assert (answer.status_code, why in answer.text) == (400, True), answer.text
    assert put(client, ref, data).status_code == 201
    for update, why in (({"size": ref.size + 1}, "and not"), ({"size": 2**42}, "and not")):
        answer = append(client, members.contribute("a", ref.model_copy(update=update)))
        assert (answer.status_code, why in answer.text) == (400, True), answer.text
    answer = append(client, members.contribute("a", ref, entries=2**42))
    assert (answer.status_code, "something else" in answer.text) == (400, True), answer.text
    junk = ObjectRef(key=keys.contribution_key(1, "a", "d" * 32), size=9, blake3="0" * 64)
    assert put(client, junk, b"x" * 9).status_code == 201
    assert append(client, members.contribute("a", junk)).status_code == 400


def test_an_object_of_outer_rounds_is_no_larger_than_one_can_be(client: TestClient) -> None:
    key = keys.contribution_key(1, "a", "c" * 32)
    most = 16 * CELLS + (1 << 20)
    answer = client.post(f"/v1/runs/{RUN}/uploads", json={"key": f"outer/{key}", "size": most + 1})
    assert (answer.status_code, "at most" in answer.text) == (400, True)
    answer = client.post(f"/v1/runs/{RUN}/uploads", json={"key": f"outer/{key}", "size": most})
    assert answer.json()["request"]["url"] == f"{URL}/{key}"
    assert client.put(f"{URL}/{key}", content=b"x" * (most + 1)).status_code == 400
    assert client.put(f"{URL}/objects/patch/x", content=b"x").status_code == 400
    for made in ("contribution/1-a", "contribution/000000000001-A-" + "c" * 32, "other/000000000001-" + "c" * 32):
        answer = client.post(f"/v1/runs/{RUN}/urls", json={"keys": [f"outer/objects/{made}.safetensors"]})
        assert answer.status_code == 400


def test_an_object_of_outer_rounds_goes_through_the_service_however_long_other_bodies_may_be(store: DictStore) -> None:
    ref, data = levels("a")
    with TestClient(app_over(store, max_body_bytes=len(data) - 1)) as client:
        assert put(client, ref, data).status_code == 201
        assert client.get(f"{URL}/{ref.key}").content == data
        assert append(client, b"x" * len(data)).status_code == 413


def test_tokens_scope_runs_and_what_may_be_taken_away(store: DictStore, members: Members) -> None:
    given, entries = {}, []
    for scope, run in (("read", "*"), ("publish", RUN), ("publish", "other"), ("admin", "*")):
        text, entry = new_token("x", scope, (run,), now=datetime.now(UTC), expires_at=None)
        given[scope, run] = {"authorization": f"Bearer {text}"}
        entries.append(entry)
    settings = Settings.read(root="memory://unused", tokens=TokenSet(tokens=tuple(entries)), rate_per_s=0)
    with TestClient(create_app(settings, store)) as client:
        begin = members.start()
        assert append(client, begin, **given["read", "*"]).status_code == 403
        assert append(client, begin, **given["publish", "other"]).status_code == 403
        assert append(client, begin, **given["publish", RUN]).status_code == 201
        assert client.get(URL, headers=given["read", "*"]).status_code == 200
        assert client.get(URL).status_code == 401
        retire = members.make(RetireRoundsRecord, round=1)
        assert append(client, retire, **given["publish", RUN]).status_code == 403
        assert append(client, retire, **given["admin", "*"]).status_code == 400  # there is no checkpoint
        restart = members.make(RestartRecord, round=1, digest=DIGEST)
        assert append(client, restart, **given["publish", RUN]).status_code == 403
        assert append(client, restart, **given["admin", "*"]).status_code == 201
        move = members.make(MoveRoundsRecord, to="s3://bucket/eu")
        assert append(client, move, **given["publish", RUN]).status_code == 403
        assert append(client, move, **given["admin", "*"]).status_code == 201


def test_a_log_with_a_record_missing_is_not_written_to(
    client: TestClient, members: Members, store: DictStore, caplog: pytest.LogCaptureFixture
) -> None:
    accept(client, members.start())
    gap = members.make(JoinRecord, member="b", seq=3, previous="1" * 64)
    store.put(f"{RUN}/outer/log/000000000003.json", gap)
    with TestClient(app_over(store)) as other:
        answer = append(other, members.join("a"))
    assert (answer.status_code, "records 1 to 2 are missing" in caplog.text) == (502, True), answer.text
    assert f"{RUN}/outer/log/000000000001.json" not in store.objects
