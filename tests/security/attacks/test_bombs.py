"""Bytes that claim, or unpack to, more than they are: memory stays in what the layout or their own length allows."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest

from pulse_kernels import CoderName, get_backend
from pulse_registry.client.http_body import content_digest
from pulse_registry.client.presigned import PresignedRequests
from pulse_registry.client.store import ServiceStore
from pulse_registry.client.transport import Timeouts
from pulse_registry.errors import CorruptObject, InvalidArgument, PulseError, StoreUnavailable, UnsupportedFormat
from pulse_registry.store.s3.listing import Listing
from pulse_schemas import SchemaError, canonical_json, unseal_record
from pulse_schemas.layout import MAX_CELLS
from tests.security.attacks.edits import layout, sealed_bytes
from tests.security.attacks.make import honest_run
from tests.security.attacks.peak import peak_of
from tests.security.fuzz.targets import TARGETS
from tests.support.mock_http import answered_by
from tests.support.records import DictStore
from tests.support.registries import Model, copied, garbage, quick

CELLS = 1 << 20
LAYOUT_BYTES = 2 * CELLS
FACTOR: dict[CoderName, int] = {"gap": 6, "class": 12}
"""Times the layout's bytes that a valid patch of all cells takes: 4 for what changes, the rest to decode a group."""
OVERHEAD = 3 << 20
"""Bytes that any pull takes."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    get_backend("numba").warm_up(2)


@pytest.mark.parametrize("coder", FACTOR)
def test_a_patch_of_a_few_kilobytes_that_changes_every_cell_takes_what_the_layout_bounds(coder: CoderName) -> None:
    model: Model = {"w": np.random.default_rng(1).normal(0, 0.02, CELLS).astype(ml_dtypes.bfloat16)}
    store = DictStore()
    with quick(store, backend="numba", coder=coder, keyframe_share=1e9) as trainer:
        trainer.push(0, model)
        model["w"].view(np.uint16)[:] += 1
        trainer.push(1, model)
    (patch,) = [data for key, data in store.objects.items() if "/patch/" in key]
    assert len(patch) < LAYOUT_BYTES / 10
    into = garbage(model)
    with quick(store, backend="numba") as worker:
        worker.pull(0, into=into)
        assert peak_of(lambda: worker.pull(1, into=into)) < FACTOR[coder] * LAYOUT_BYTES + OVERHEAD
    assert into["w"].tobytes() == model["w"].tobytes()


def test_a_layout_of_more_cells_than_memory_holds_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    store = copied(honest_run("gap").store)
    layout(lambda document: document["tensors"][0].update(shape=[MAX_CELLS // 2]))(store)

    empty = np.empty

    def full(shape: Any, dtype: Any = float) -> Any:
        if shape == (MAX_CELLS // 2,):  # as it is but on machines that promise more memory than they have
            raise MemoryError(f"Unable to allocate {shape}")
        return empty(shape, dtype)

    monkeypatch.setattr(np, "empty", full)
    with quick(store) as worker, pytest.raises(InvalidArgument, match="this process can't have as much memory"):
        worker.load("latest")


SIZE = 30_000
"""Bytes of a bomb of JSON, about."""
AMPLIFIED = 240
"""Bytes that a reader takes for one of JSON, at most. An empty list is two bytes, and 56 in Python's memory; there are
four copies of metadata for a moment. A field that is not known has a message."""
DEEP = SIZE // 2
JSON = {
    "lists in lists": b"[" * DEEP + b"]" * DEEP,
    "objects in objects": b'{"a":' * (SIZE // 6) + b"1" + b"}" * (SIZE // 6),
    "lists that do not end": b"[" * SIZE,
    "a number of all digits": b"9" * SIZE,
    "a fraction of all digits": b"0." + b"9" * SIZE,
    "a text without end": b'"' + b"a" * SIZE + b'"',
    "a text of escapes": b'"' + b"\\u0000" * (SIZE // 6) + b'"',
    "empty lists": b"[" + b"[]," * (SIZE // 3) + b"[]]",
    "empty objects": b"[" + b"{}," * (SIZE // 3) + b"{}]",
    "numbers": b"[" + b"1," * (SIZE // 2) + b"1]",
    "many keys": b"{" + b",".join(b'"%d":1' % n for n in range(SIZE // 10)) + b"}",
    "one key, many times": b"{" + b",".join([b'"a":1'] * (SIZE // 6)) + b"}",
}
READERS = ("record", "snapshot", "head", "layout", "lease", "patch-head", "index", "shard", "delta-index")


@pytest.mark.parametrize("name", READERS)
def test_json_takes_memory_by_its_own_length_alone(name: str) -> None:
    target = TARGETS[name]()
    for seed in target.seeds[:1]:
        target.check(seed)
    for bomb in (*JSON.values(), *(within(target.seeds[0], bomb) for bomb in JSON.values())):

        def check(data: bytes = bomb) -> None:
            target.check(data)

        assert peak_of(check) < AMPLIFIED * len(bomb) + (1 << 20)


def within(document: bytes, bomb: bytes) -> bytes:
    """Return a document with the bomb in the place of its first value."""
    head, colon, rest = document.partition(b":")
    return head + colon + bomb + b"," + rest.partition(b",")[2]


@pytest.mark.slow
def test_metadata_may_be_large_but_not_deep() -> None:
    target = TARGETS["record"]()
    (commit,) = [seed for seed in target.seeds if b'"reward"' in seed]
    for name, bomb in JSON.items():
        value = bomb if bomb.startswith(b"{") else b'{"a":' + bomb + b"}"
        document = commit.partition(b'"metadata":')[0] + b'"metadata":' + value + b',"patch":null}'
        assert peak_of(lambda data=document: refused(data)) < AMPLIFIED * len(document) + (1 << 20), name


def refused(content: bytes) -> None:
    with suppress(SchemaError):
        unseal_record(sealed_bytes(content))


@pytest.mark.parametrize("field", ["kind", "format", "extra" * 2_000])
def test_who_writes_a_record_does_not_choose_how_long_the_message_is(field: str) -> None:
    long = canonical_json(json.loads(TARGETS["record"]().seeds[0]) | {field: "pulse-record/" + "9" * 50_000})
    with pytest.raises(SchemaError) as refusal:
        unseal_record(sealed_bytes(long))
    assert len(str(refusal.value)) < 1000


# -- answers without end -----------------------------------------------------------------------------------------------


class Endless(httpx.SyncByteStream):
    """A body that goes on and on; how much of it was read."""

    def __init__(self) -> None:
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.sent += 1 << 16
            yield bytes(1 << 16)


KEY = "run/objects/patch/000000000000-000000000001-0.safetensors"
URL = "http://bucket/x"
MOST = 4 << 20
ASKED: dict[str, tuple[int, Callable[[ServiceStore], Any]]] = {
    "a record": (200, lambda store: store.get("run/log/000000000000.json", max_bytes=MOST)),
    "a layout": (200, lambda store: store.get("run/layouts/" + "a" * 64 + ".json", max_bytes=MOST)),
    "a list of snapshots": (200, lambda store: list(store.list("run/log/snapshots/"))),
    "a refusal": (503, lambda store: store.get("run/head")),
    "an object": (200, lambda store: PresignedRequests(Timeouts()).get(URL, KEY, None, MOST)),
    "a part of an object": (206, lambda store: PresignedRequests(Timeouts()).get(URL, KEY, (0, 10), 0)),
    "a part of an object into memory": (
        206,
        lambda store: PresignedRequests(Timeouts()).get_into(URL, KEY, (0, 10), memoryview(bytearray(10))),
    ),
    "an object's size": (206, lambda store: PresignedRequests(Timeouts()).size(URL, KEY)),
    "a bucket's refusal": (403, lambda store: PresignedRequests(Timeouts()).get(URL, KEY, None, MOST)),
}


@pytest.mark.parametrize("what", ASKED)
def test_an_answer_without_end_is_given_up(what: str) -> None:
    status, call = ASKED[what]
    body = Endless()
    headers = {"content-range": "bytes 0-9/100" if "size" not in what else "bytes 0-0/100"}

    def ask() -> None:
        with pytest.raises((CorruptObject, StoreUnavailable), match="longer than"):
            call(store)

    with answered_by(lambda request: httpx.Response(status, headers=headers, stream=body)):
        store = ServiceStore("http://service", None, timeouts=Timeouts())
        assert peak_of(ask) < 2 * MOST + OVERHEAD
    assert body.sent <= MOST + (1 << 17), "no more is read than may be kept"
    store.close()


def answering(document: object) -> ServiceStore:
    """Return a service's client whose every request gets the same JSON."""
    return answering_with(json.dumps(document).encode())


def answering_with(body: bytes) -> ServiceStore:
    """Return a service's client whose every request gets these bytes."""
    headers = {"content-digest": content_digest(hashlib.sha256(body).digest())}
    with answered_by(lambda request: httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))):
        return ServiceStore("http://service", None, timeouts=Timeouts())


LISTS: dict[str, tuple[bytes, Callable[[ServiceStore], Any]]] = {
    "records": (b'"",', lambda store: store.wait_for_record("run", 1, 0)),
    "more records than were asked for": (b'"",' * 101, lambda store: store.wait_for_record("run", 1, 0)),
    "lists": (b"[],", lambda store: store.wait_for_record("run", 1, 0)),
    "objects in a field that is not known": (b"{},", lambda store: store.wait_for_record("run", 1, 0)),
    "texts that are urls": (b'"",', lambda store: store.expect("run", ["objects/a"])),
}


@pytest.mark.parametrize("what", LISTS)
def test_an_answer_takes_no_memory_for_more_values_than_were_asked_for(what: str) -> None:
    entry, call = LISTS[what]
    field = b"urls" if "urls" in what else b"news" if "not known" in what else b"records"
    times = 1 if "asked" in what else 2_000_000
    rest = b"" if field == b"records" else b',"records":[]'
    body = b'{"run":"run","since":1,"' + field + b'":[' + (entry * times)[:-1] + b"]" + rest + b"}"
    store = answering_with(body)

    def ask() -> None:
        with pytest.raises(UnsupportedFormat, match=r"which it can't be|were asked for"):
            call(store)

    assert peak_of(ask) < 2 * len(body) + OVERHEAD
    store.close()


def test_snapshots_of_numbers_that_no_record_has_are_left_out() -> None:
    store = answering({"snapshots": [2**62, 63, 10**12, 63]})
    assert list(store.list("run/log/snapshots/")) == ["run/log/snapshots/000000000063.json"]
    store.close()


@pytest.mark.parametrize("part_size", [1, 2])
def test_an_upload_in_more_parts_than_there_may_be_is_refused_at_once(part_size: int) -> None:
    store = answering({"kind": "parts", "upload_id": "u", "part_size": part_size})
    with pytest.raises(UnsupportedFormat, match="in parts of"):
        store.put(KEY, bytes(30_000), if_absent=True)
    store.close()


def test_an_upload_in_parts_of_any_size_takes_no_memory_for_more_than_there_is() -> None:
    store = answering({"kind": "parts", "upload_id": "u", "part_size": 2**40, "url": "/v1/x", "headers": {}})

    def put() -> None:
        with pytest.raises(UnsupportedFormat):
            store.put(KEY, bytes(1000), if_absent=True)

    assert peak_of(put) < OVERHEAD
    store.close()


def pages_of(*entries: str) -> Any:
    """Return a bucket's client that lists these keys again and again, and says each time that there are more."""
    numbers = itertools.count()

    class Client:
        def list_objects_v2(self, **_: Any) -> dict[str, Any]:
            contents = [{"Key": entry} for entry in entries]
            return {"Contents": contents, "IsTruncated": True, "NextContinuationToken": str(next(numbers))}

    return Client()


@pytest.mark.parametrize("entries", [(), ("run/a",), ("run/a", "run/b"), ("other",)])
def test_a_listing_that_goes_on_and_never_further_is_given_up(entries: tuple[str, ...]) -> None:
    listing = Listing(pages_of(*entries), "bucket", "s3://bucket")

    def list_all() -> None:
        with pytest.raises(PulseError, match="does not go on"):
            list(listing.keys("run/", ""))

    assert peak_of(list_all) < OVERHEAD
