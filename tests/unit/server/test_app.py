"""The application as a whole: a factory, its runs, its errors on the wire, and what it does not load."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import pytest
from blake3 import blake3
from fastapi.testclient import TestClient

from pulse_registry import errors
from pulse_registry.client.problems import STATUS, TYPE_PREFIX, error_of, problem_of
from pulse_registry.errors import InvalidArgument, PulseError
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_schemas import Layout, Tensor
from pulse_server import Settings, create_app
from tests.support.apps import LAYOUT, app_over, fill, run_of
from tests.support.records import DictStore, Script, keyframe, patch
from tests.support.waiting import HANG_S

KINDS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PulseError)),
    key=lambda kind: kind.__name__,
)


@pytest.fixture
def store() -> DictStore:
    store = DictStore()
    fill(store, run_of(2, "math-7b"))
    fill(store, run_of(1, "math-1b"))
    return store


@pytest.fixture
def client(store: DictStore) -> Iterator[TestClient]:
    with TestClient(app_over(store)) as client:
        yield client


def test_each_app_has_its_own_store_and_nothing_is_asked_of_it_before_it_starts(store: DictStore) -> None:
    class Untouched(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            raise AssertionError(key)

    app_over(Untouched())
    with TestClient(app_over(store)) as one, TestClient(app_over(DictStore())) as other:
        assert one.get("/v1/runs/math-7b").status_code == 200
        assert other.get("/v1/runs/math-7b").status_code == 404


def test_an_app_that_nobody_could_use_is_not_made() -> None:
    with pytest.raises(InvalidArgument, match="tokens"):
        create_app(Settings.read(root="memory://unused"))
    with pytest.raises(InvalidArgument, match="no store for the scheme"):
        create_app(Settings.read(root="gopher://x", insecure_open=True))


@pytest.mark.slow
def test_the_service_loads_no_torch_and_compiles_no_kernel() -> None:
    code = """
import sys
from fastapi.testclient import TestClient
from tests.support.records import DictStore
from tests.support.apps import app_over, fill, run_of
store = DictStore()
fill(store, run_of(3))
with TestClient(app_over(store)) as client:
    for path in ("", "/versions", "/route?from=0", "/chain", "/log", "/workers"):
        assert client.get(f"/v1/runs/math{path}").status_code == 200, path
print(sorted({"torch", "numba", "llvmlite", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_runs_are_listed_by_name_in_pages(client: TestClient) -> None:
    body = client.get("/v1/runs").json()
    assert [(run["run"], run["versions"], run["seq"]) for run in body["runs"]] == [("math-1b", 1, 1), ("math-7b", 2, 2)]
    assert body["next"] is None
    first = client.get("/v1/runs?limit=1").json()
    assert ([run["run"] for run in first["runs"]], first["next"]) == (["math-1b"], "math-1b")
    last = client.get("/v1/runs?limit=1&after=math-1b").json()
    assert ([run["run"] for run in last["runs"]], last["next"]) == (["math-7b"], None)


def test_a_page_of_runs_ends_where_their_versions_say_a_lot() -> None:
    store = DictStore()
    for name in ("a", "b", "c", "d"):
        fill(store, Script(name).epoch().commit(layout=LAYOUT.id, metadata={"note": "x" * (400 << 10)}))
    with TestClient(app_over(store)) as client:
        first = client.get("/v1/runs").json()
        rest = client.get(f"/v1/runs?after={first['next']}").json()
    assert [[run["run"] for run in body["runs"]] for body in (first, rest)] == [["a", "b", "c"], ["d"]]
    assert rest["next"] is None


def test_a_run_is_told_with_its_newest_version_and_the_size_of_all_cells(client: TestClient) -> None:
    body = client.get("/v1/runs/math-7b").json()
    assert (body["epoch"], body["versions"], body["latest"]["version"]) == (1, 2, 1)
    assert body["full_nbytes"] == 200


def test_a_run_whose_layout_can_not_be_read_has_no_size(store: DictStore) -> None:
    store.put(f"math-7b/layouts/{LAYOUT.id}.json", b"junk")
    with TestClient(app_over(store)) as client:
        assert client.get("/v1/runs/math-7b").json()["full_nbytes"] is None


HOSTILE_LAYOUT = (
    b'{"format":"pulse-layout/1","tensors":[{"dtype":"BF16","name":"w",'
    b'"shape":[9223372036854775807,9223372036854775807]}],"tied":{}}'
)
LARGEST_LAYOUT = Layout(tensors=(Tensor(name="w", dtype="F64", shape=(2**42,)),))


@pytest.mark.parametrize(("data", "nbytes"), [(HOSTILE_LAYOUT, None), (LARGEST_LAYOUT.canonical(), 2**45)])
def test_a_layout_costs_the_service_no_more_for_the_cells_that_it_claims(data: bytes, nbytes: int | None) -> None:
    store, layout_id = DictStore(), blake3(data).hexdigest()
    script = Script("math-7b").epoch().commit(layout=layout_id)
    fill(store, script)
    store.put(f"math-7b/layouts/{layout_id}.json", data)
    with TestClient(app_over(store)) as client:
        client.get("/v1/token")
        tracemalloc.start()
        try:
            found = [client.get("/v1/runs/math-7b").json()["full_nbytes"] for _ in range(3)]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert found == [nbytes] * 3
    assert peak < 16 << 20


def test_a_run_that_can_not_be_read_does_not_hide_the_others(store: DictStore) -> None:
    store.put("math-1b/log/000000000000.json", b"junk")
    with TestClient(app_over(store)) as client:
        listed = client.get("/v1/runs").json()["runs"]
        assert [(run["run"], run["seq"]) for run in listed] == [("math-1b", -1), ("math-7b", 2)]
        assert client.get("/v1/runs/math-1b").status_code == 502


def test_the_chain_is_what_is_live(client: TestClient, store: DictStore) -> None:
    run = run_of(3, "other").attach(patches=(patch(0, 2, tag=3),))
    run.retire(keys=(patch(0, 1).object.key,))
    fill(store, run)
    assert client.get("/v1/runs/other/chain").json() == {
        "run": "other",
        "keyframes": [{"version": 0, "nbytes": keyframe(0).size}],
        "patches": [{"base": 1, "target": 2, "nbytes": 100}, {"base": 0, "target": 2, "nbytes": 100}],
        "next": None,
        "totals": {"keyframes": 1, "patches": 2, "merged": 1, "longest": 2, "nbytes": keyframe(0).size + 200},
    }


def test_the_token_of_an_open_service_allows_all(client: TestClient) -> None:
    assert client.get("/v1/token").json() == {
        "name": "anybody",
        "scopes": ["read", "publish", "mirror", "admin"],
        "runs": ["*"],
        "expires_at": None,
    }


@pytest.mark.parametrize(
    "path", ["", "/chain", "/versions", "/versions/latest", "/versions/0", "/route", "/log", "/log/0", "/workers"]
)
def test_every_json_answer_carries_its_digest_and_says_its_length(client: TestClient, path: str) -> None:
    for answer in (client.get(f"/v1/runs/math-7b{path}"), client.get(f"/v1/runs/none{path}")):
        digest = base64.b64encode(hashlib.sha256(answer.content).digest()).decode()
        assert answer.headers["content-digest"] == f"sha-256=:{digest}:"
        assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(
    "path", ["/v1/runs/none", "/v1/runs/none/versions/latest", "/v1/runs/math-7b/versions/7", "/no"]
)
def test_what_is_not_there_is_a_404_problem(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    body = answer.json()
    assert (body["status"], body["title"], body["instance"]) == (404, "Not Found", path)


def test_an_address_that_is_none_says_where_the_api_is(client: TestClient) -> None:
    assert "the API is below /v1/" in client.get("/v1/v1/token").json()["detail"]


def test_a_method_that_an_address_does_not_take_is_a_405_that_names_those_it_takes(client: TestClient) -> None:
    answer = client.delete("/v1/runs/math-7b/log")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert answer.json()["type"] == f"{TYPE_PREFIX}InvalidRequest"
    assert client.head("/v1/runs/math-7b/versions/latest").content == b""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_library_goes_over_the_wire_and_keeps_the_stores_words(kind: type[PulseError]) -> None:
    secret = "s3://secret-bucket: access denied for AKIA..."

    class Failing(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if "/layouts/" in key:
                raise kind(secret)
            return super().get(key, byte_range, max_bytes=max_bytes)

    with TestClient(app_over(Failing())) as client:
        answer = client.get(f"/v1/runs/math-7b/layouts/{LAYOUT.id}")
    # What the service itself may not do is no fault of the caller's token; that a version is gone, a store can't know.
    told = {errors.AccessDenied: errors.StoreUnavailable, errors.Gone: errors.NotFound}.get(kind, kind)
    problem_type, status = problem_of(told(secret))
    body = answer.json()
    assert (answer.status_code, body["type"], body["status"]) == (status, problem_type, status)
    assert (status >= 500 or told is errors.NotFound) == ("secret" not in answer.text)
    back = error_of(body["type"], answer.status_code, body["detail"])
    assert type(back) is next(k for k in told.__mro__ if k in STATUS)


def test_a_defect_is_a_500_that_says_nothing_of_itself() -> None:
    class Broken(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if "/layouts/" in key:
                raise ZeroDivisionError("secret")
            return super().get(key, byte_range, max_bytes=max_bytes)

    with TestClient(app_over(Broken()), raise_server_exceptions=False) as client:
        answer = client.get(f"/v1/runs/math-7b/layouts/{LAYOUT.id}")
    assert (answer.status_code, answer.json()["type"]) == (500, f"{TYPE_PREFIX}PulseError")
    assert "secret" not in answer.text


def test_what_the_store_says_of_itself_stays_here(store: DictStore) -> None:
    class Talking(DictStore):
        def _talk(self, key: str) -> None:
            if "objects" in key or key.endswith(("head", "ffff.json")):
                raise errors.NotFound(f"no {key} in s3://secret-bucket")

        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            self._talk(key)
            return super().get(key, byte_range, max_bytes=max_bytes)

        def size(self, key: str) -> int:
            self._talk(key)
            return super().size(key)

    talking = Talking()
    talking.objects = store.objects
    with TestClient(app_over(talking)) as client:
        for path in ("head", f"layouts/{'f' * 64}", patch(0, 1).object.key, "snapshots/9"):
            answer = client.get(f"/v1/runs/math-7b/{path}")
            assert (answer.status_code, "secret" in answer.text) == (404, False)
