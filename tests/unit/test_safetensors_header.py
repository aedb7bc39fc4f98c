"""The head of a safetensors file: the same bytes for the same document, and nothing but errors for what is none."""

from __future__ import annotations

import json
import struct

import pytest

from pulse_registry.safetensors_header import header_bytes, split_header, tensor_entry

DOCUMENT = {"__metadata__": {"é": "x"}, "w": tensor_entry("BF16", (2, 3), 0, 12)}


def with_length(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def test_a_document_comes_back_and_its_end_is_where_the_data_begin():
    data = header_bytes(DOCUMENT)
    assert split_header(data) == (DOCUMENT, len(data))
    assert split_header(data + b"data") == (DOCUMENT, len(data))
    assert len(data) % 8 == 0


def test_every_length_is_filled_up_to_eight_bytes():
    for length in range(20):
        data = header_bytes({"a" * length: 1})
        assert len(data) % 8 == 0
        assert json.loads(data[8:]) == {"a" * length: 1}
        assert struct.unpack_from("<Q", data)[0] == len(data) - 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        with_length(b"{}", 3),
        with_length(b"{}", 2**64 - 1),
        with_length(b"{}", 2**63),
        with_length(b""),
        with_length(b"{"),
        with_length(b"[]"),
        with_length(b"null"),
        with_length(b'"text"'),
        with_length(b"\xff\xfe{}"),
        with_length(b'{"a":' * 100_000),
        with_length(b"[" * 100_000),
    ],
    ids=lambda data: f"{bytes(data[:12])!r} ({len(data)})",
)
def test_what_is_no_header_is_a_value_error(data: bytes):
    with pytest.raises(ValueError, match=r"."):
        split_header(data)
