"""The head of a safetensors file: the same bytes for the same document; and what is read as one is what the library
takes, for whatever is written."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from pulse_registry.format.safetensors import (
    BITS,
    HEADER_LIMIT,
    HeaderFault,
    TensorPlace,
    head_of,
    header_bytes,
    parse_head,
    tensor_entry,
)
from tests.security.fuzz.heads import UNKNOWN, by_library, by_us, compare, file_of, head_target

DOCUMENT = {"__metadata__": {"é": "x"}, "w": tensor_entry("BF16", (2, 3), 0, 12)}


def test_a_document_comes_back_and_its_end_is_where_the_data_begin():
    data = header_bytes(DOCUMENT)
    head = parse_head(data, len(data) + 12)
    assert head.metadata == {"é": "x"}
    assert head.tensors == {"w": TensorPlace("BF16", (2, 3), 0, 12)}
    assert head.nbytes == len(data)
    assert len(data) % 8 == 0


def test_every_length_is_filled_up_to_eight_bytes():
    for length in range(20):
        data = header_bytes({"a" * length: 1})
        assert len(data) % 8 == 0
        assert json.loads(data[8:]) == {"a" * length: 1}
        assert struct.unpack_from("<Q", data)[0] == len(data) - 8


def test_the_dtypes_are_those_that_the_newest_library_knows():
    newest = {"C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
    assert newest >= UNKNOWN, "the lowest one that we allow knows all others"


# -- what the library takes, and no more -------------------------------------------------------------------


def entry(dtype: str = '"U8"', shape: str = "[4]", offsets: str = "[0,4]", more: str = "", *, name: str = "a") -> str:
    return f'"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'


def header(*members: str) -> str:
    return f"{{{','.join(members)}}}"


def tensor(*args: str, name: str = "a") -> str:
    return header(entry(*args, name=name))


def unused(value: str) -> str:
    return tensor('"U8"', "[4]", "[0,4]", f',"x":{value}')


TAKEN: dict[str, str | bytes] = {
    "a tensor": tensor(),
    "spaces before it": "   " + tensor(),
    "white space behind it": tensor() + " \n\t\r",
    "fields that are not known": unused('[1,{"y":[null,true,1.5]}]'),
    "a field that is not known twice": unused('1,"x":2'),
    "a name twice, of which the last counts": header(entry(shape="[9]", offsets="[0,9]"), entry()),
    "no metadata": header('"__metadata__":null', entry()),
    "metadata behind it": header(entry(), '"__metadata__":{"a":"1","a":"2"}'),
    "an escaped name of metadata": header('"__meta\\u0064ata__":{"a":"1"}', entry()),
    "its three values in a list": '{"a":["U8",[4],[0,4]]}',
    "a dtype as a variant": tensor('{"U8":null}'),
    "an escaped dtype": tensor('"\\u00558"'),
    "65 dimensions": tensor('"U8"', f"[{'1,' * 64}4]"),
    "a tensor of nothing between others": (
        header(entry(), entry('"F64"', "[0,5]", "[4,4]", name="z"), entry('"F64"', "[0]", "[0,0]", name="y"))
    ),
    "no name": tensor(name=""),
    "NUL in a name": tensor(name="\\u0000"),
    "a letter of two halves": tensor(name="\\ud83d\\ude00"),
    "JSON nested 127 deep": unused("[" * 125 + "]" * 125),
    "a number of 300 digits that says nothing": unused("9" * 300),
    "a number too small": unused("1e-999"),
}
REFUSED: dict[str, str | bytes] = {
    "no JSON": "{",
    "no bytes": "",
    "a list": "[]",
    "null": "null",
    "text": '"text"',
    "UTF-16": tensor().encode("utf-16"),
    "UTF-32": tensor().encode("utf-32-le"),
    "a byte order mark": "\ufeff" + tensor(),
    "bytes that are no UTF-8": tensor().encode()[:-1] + b"\xff}",
    "something behind it": tensor() + "\0",
    "a form feed before it": "\f" + tensor(),
    "a comma too many": tensor()[:-1] + ",}",
    "metadata that are no object": header('"__metadata__":[]', entry()),
    "metadata that are no text": header('"__metadata__":{"a":1}', entry()),
    "metadata twice": header('"__metadata__":null', '"__metadata__":null', entry()),
    "an entry that is null": '{"a":null}',
    "an entry of four values": '{"a":["U8",[4],[0,4],1]}',
    "a field twice": tensor('"U8"', "[4]", "[0,4]", ',"dtype":"U8"'),
    "no offsets": '{"a":{"dtype":"U8","shape":[4]}}',
    "a name twice, of which the first is none": header(entry('"X"'), entry()),
    "a dtype of no library": tensor('"C128"'),
    "a dtype in small letters": tensor('"u8"'),
    "a dtype that is a number": tensor("4"),
    "a dtype of two variants": tensor('{"U8":null,"I8":null}'),
    "a dtype that is a list": tensor('[["U8",null]]'),
    "a size as text": tensor('"U8"', '["4"]'),
    "a size of 4.0": tensor('"U8"', "[4.0]"),
    "a size of 4.9": tensor('"U8"', "[4.9]"),
    "a size of 4e0": tensor('"U8"', "[4e0]"),
    "a size that is true": tensor('"U8"', "[4,true]"),
    "a size below nothing": tensor('"U8"', "[-4]"),
    "a shape that is null": tensor('"U8"', "null"),
    "a shape that is an object": tensor('"U8"', '{"0":4}'),
    "offsets that are fractions": tensor('"U8"', "[4]", "[0.0,4]"),
    "an offset of -0": tensor('"U8"', "[4]", "[-0,4]"),
    "three offsets": tensor('"U8"', "[4]", "[0,4,4]"),
    "offsets that are an object": tensor('"U8"', "[4]", '{"0":0,"1":4}'),
    "offsets that fall": tensor('"U8"', "[4]", "[4,0]"),
    "a hole": tensor('"U8"', "[2]", "[2,4]"),
    "bytes that no tensor has": tensor('"U8"', "[3]", "[0,3]"),
    "a tensor behind the file": tensor('"U8"', "[5]", "[0,5]"),
    "tensors over one another": header(entry(), entry(name="b")),
    "a tensor of nothing within another": header(entry(), entry('"U8"', "[0]", "[2,2]", name="b")),
    "another size than its shape": tensor('"U16"'),
    "half a byte": tensor('"F4"', "[7]", "[0,4]"),
    "2^64 elements, and then none": tensor('"U8"', "[9223372036854775808,2,0]", "[0,0]"),
    "a size of 2^64": tensor('"U8"', "[0,18446744073709551616]", "[0,0]"),
    "2^64 bits": tensor('"U8"', "[2305843009213693952]", "[0,2305843009213693952]"),
    "NaN": unused("NaN"),
    "Infinity": unused("-Infinity"),
    "a number too large": unused("1e400"),
    "a number of 400 digits": unused("9" * 400),
    "a number of 5,000 digits": unused("9" * 5000),
    "half a letter in a name": tensor(name="a\\ud800"),
    "the other half": tensor(name="a\\uDC00"),
    "half a letter that says nothing": unused('"\\uD800"'),
    "a line's end in a name": tensor(name="\n"),
    "JSON nested 128 deep": unused("[" * 126 + "]" * 126),
    "objects nested 128 deep": unused('{"x":' * 126 + "1" + "}" * 126),
    "JSON nested 100,000 deep": unused("[" * 100_000),
}


def as_file(text: str | bytes, size: int = 4) -> bytes:
    return file_of(text.encode() if isinstance(text, str) else text, bytes(range(size)))


@pytest.mark.parametrize("what", TAKEN)
def test_what_the_library_takes_is_taken(what: str):
    assert by_library(as_file(TAKEN[what])) is not None
    assert compare(as_file(TAKEN[what]))


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_library_refuses_is_refused_and_said_in_a_line(what: str):
    data = as_file(REFUSED[what])
    assert not compare(data)
    with pytest.raises(HeaderFault) as refused:
        parse_head(data, len(data))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 3) + b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        struct.pack("<Q", HEADER_LIMIT + 1) + b"{}",
        struct.pack("<Q", 0),
    ],
    ids=lambda data: repr(bytes(data)),
)
def test_a_length_that_the_file_does_not_have_is_refused(data: bytes):
    assert by_us(data) is by_library(data) is None


def test_no_file_without_tensors_holds_anything():
    assert compare(file_of(b"{}"))
    assert not compare(file_of(b"{}", b"x"))


def test_no_more_than_the_limit_is_read_whatever_the_length_claims():
    read: list[tuple[int, int]] = []

    def reader(start: int, stop: int) -> bytes:
        read.append((start, stop))
        return struct.pack("<Q", HEADER_LIMIT + 1)[start:stop]

    with pytest.raises(HeaderFault, match=f"may have {HEADER_LIMIT}"):
        parse_head(head_of(reader, 1 << 40), 1 << 40)
    assert read == [(0, 8)]


def test_refusing_a_name_or_a_shape_of_a_megabyte_takes_no_more_than_reading_it():
    for text in (tensor('"X"', name="n" * (1 << 20)), tensor('"U8"', f"[{'1,' * (1 << 19)}-1]")):
        data = as_file(text)
        tracemalloc.start()
        try:
            with pytest.raises(HeaderFault) as refused:
                parse_head(data, len(data))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(str(refused.value)) < 1000
        assert peak < 20 * len(data)


# -- whatever is written ------------------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 12, 2**32, 2**63, 2**64 - 1, 2**64])
NUMBERS = st.one_of(SIZES.map(str), st.sampled_from(["-0", "-1", "4.0", "1e0", '"4"', "true", "null", "NaN", "1e400"]))
NAMES = st.one_of(st.sampled_from(["", "a", "b", "__metadata__", "é", "\\ud800", "\\ud83d\\ude00"]), st.just("w"))
TEXTS = NAMES.map(lambda name: f'"{name}"')
VALUES = st.recursive(
    NUMBERS | TEXTS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(st.tuples(TEXTS, inner), max_size=3).map(
            lambda pairs: f"{{{','.join(f'{name}:{value}' for name, value in pairs)}}}"
        ),
    ),
    max_leaves=6,
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Return a file that is right, but for one or two things."""
    parts, at = [], 0
    for name in draw(st.lists(NAMES, max_size=4)):
        dtype = draw(st.sampled_from(sorted(BITS)))
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=3))
        bits = BITS[dtype]
        for size in shape:
            bits *= size
        fields: dict[str, Any] = {
            "dtype": json.dumps(dtype),
            "shape": json.dumps(shape),
            "data_offsets": json.dumps([at, at + bits // 8]),
        }
        at += bits // 8
        if draw(st.integers(0, 5)) == 0:
            fields[draw(st.sampled_from([*fields, "more"]))] = draw(VALUES)
        parts.append(f'"{name}":{{{",".join(f"{json.dumps(key)}:{value}" for key, value in fields.items())}}}')
    if draw(st.integers(0, 9)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), f"{draw(TEXTS)}:{draw(VALUES)}")
    parts = draw(st.permutations(parts))
    space = draw(st.sampled_from(["", "", " ", "\n", "\ufeff"]))
    size = max(0, at + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    return file_of(f"{space}{{{','.join(parts)}}}{space}".encode(), bytes(range(256))[:size])


@pytest.mark.slow
@given(files())
@settings(max_examples=400)
def test_of_whatever_is_written_the_library_and_we_take_the_same(file: bytes):
    compare(file)


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=400)
def test_of_whatever_is_changed_the_library_and_we_take_the_same(rng: random.Random):
    target = head_target()
    data = rng.choice(target.seeds)
    for _ in range(3):
        data = target.mutate(data, rng)
        compare(data)


def test_metadata_and_order_are_those_of_the_library(tmp_path: Path):
    about = '"__metadata__":{"k":"1","k":"2","é":"\\u0007"}'
    text = header(entry(offsets="[4,8]", name="b"), entry(), about)
    path = tmp_path / "x.safetensors"
    path.write_bytes(as_file(text, 8))
    head = parse_head(path.read_bytes(), path.stat().st_size)
    with safe_open(path, framework="np") as file:
        assert head.metadata == file.metadata()
        assert list(head.tensors) == file.offset_keys() == ["a", "b"]
