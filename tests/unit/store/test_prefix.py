from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from pulse_registry.errors import CorruptObject, InvalidArgument
from pulse_registry.store import (
    MemoryStore,
    PrefixStore,
    Presigner,
    RetryStore,
    SignedPut,
    UploadedPart,
    WrapperStore,
)
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_registry.testing import Fault, FaultStore

_names = (f"test-prefix-{number}" for number in itertools.count())


def test_a_view_of_a_view_joins_the_prefixes() -> None:
    below = MemoryStore(next(_names))
    view = PrefixStore(PrefixStore(below, "runs"), "math/7b")
    view.put("head", b"1")
    assert [*below.list("")] == ["runs/math/7b/head"]
    assert [*view.list("", after="hea")] == ["head"]
    assert view.url == f"{below.url}/runs/math/7b"


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "..", "a/../b"])
def test_a_prefix_that_is_no_key_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgument):
        PrefixStore(MemoryStore(next(_names)), prefix)


class _SigningStore(MemoryStore):
    def presigner(self) -> Presigner:
        return self

    def presign(self, key: str, expires_s: int) -> str:
        return f"https://host/{key}?expires={expires_s}"

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        return SignedPut(f"https://host/{key}?expires={expires_s}", {"Content-Length": str(size), "sha256": sha256})

    def begin_parts(self, key: str) -> str:
        return f"upload of {key}"

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        return SignedPut(f"https://host/{key}?upload={upload_id}&part={number}", {"Content-Length": str(size)})

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        self.put(key, f"{upload_id}: {len(parts)}".encode(), if_absent=True)

    def abort_parts(self, key: str, upload_id: str) -> None:
        self.delete(key)


def test_urls_are_signed_for_the_whole_key_through_any_wrappers() -> None:
    signer = WrapperStore(PrefixStore(WrapperStore(_SigningStore(next(_names))), "runs/a")).presigner()
    assert signer is not None
    assert signer.presign("head", 60) == "https://host/runs/a/head?expires=60"
    put = signer.presign_put("head", 5, "ab", 60)
    assert put == SignedPut("https://host/runs/a/head?expires=60", {"Content-Length": "5", "sha256": "ab"})
    with pytest.raises(InvalidArgument):
        signer.presign("../b/head", 60)
    with pytest.raises(InvalidArgument):
        signer.presign_put("../b/head", 5, "ab", 60)


def test_an_upload_in_parts_is_of_the_whole_key() -> None:
    below = _SigningStore(next(_names))
    signer = PrefixStore(below, "runs/a").presigner()
    assert signer is not None
    upload = signer.begin_parts("b")
    assert upload == "upload of runs/a/b"
    assert signer.presign_part("b", upload, 3, 5, "ab", 60).url == f"https://host/runs/a/b?upload={upload}&part=3"
    signer.finish_parts("b", upload, [UploadedPart(1, "etag", "ab")])
    assert below.get("runs/a/b") == b"upload of runs/a/b: 1"
    signer.abort_parts("b", upload)
    assert not below.exists("runs/a/b")


def test_a_range_is_read_into_a_buffer_through_any_wrappers() -> None:
    below = MemoryStore(next(_names))
    below.put("runs/a/b", b"0123456789")
    faults = FaultStore(below, [Fault("fail_before", verb="get", times=2)])
    store = PrefixStore(RetryStore(PrefixStore(faults, "runs"), RetryPolicy(first_pause_s=0.001)), "a")
    buffer = bytearray(b"------")
    store.get_into("b", (2, 6), memoryview(buffer)[1:5])
    assert buffer == b"-2345-"
    with pytest.raises(InvalidArgument, match="buffer"):
        store.get_into("b", (2, 6), buffer)
    with pytest.raises(CorruptObject):
        store.get_into("b", (8, 14), buffer)


def test_a_store_that_can_not_sign_has_no_presigner() -> None:
    assert PrefixStore(MemoryStore(next(_names)), "a").presigner() is None
