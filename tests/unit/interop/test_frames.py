"""A tensor's frame, written and read by pieces, is the one of the plain reference; a bad one is refused."""

from __future__ import annotations

import contextlib
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.interop import frames as frames_module
from pulse_registry.interop.checksum import Bytes, Checksum, hasher_of
from pulse_registry.interop.frames import Encoding, FrameFault, Frames, differ, xor
from tests.unit.interop import reference

PIECES = [8, 100, 4096]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Bytes, Bytes]:
    """Draw two tensors' bytes that lie anywhere in their memory."""
    size, shift = draw(st.integers(0, 700)), draw(st.integers(0, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    old = rng.integers(0, 256, size + shift, np.uint8)[shift:]
    new = np.empty(size + 3, np.uint8)[3:]
    new[:] = old
    how = draw(st.sampled_from(["none", "one", "ends", "few", "all"]))
    at = {"none": [], "one": [0], "ends": [0, -1], "few": rng.integers(0, size, 9) if size else [], "all": slice(None)}
    if size:
        new[at[how]] ^= np.uint8(draw(st.integers(1, 255)))
    return old, new


def plain(encoding: Encoding, old: Bytes, new: Bytes) -> bytes:
    return reference.frame(encoding, old.tobytes(), new.tobytes())


@given(pairs(), st.sampled_from(Encoding), st.sampled_from(PIECES))
def test_what_is_written_by_pieces_reads_as_the_reference_reads_it(
    pair: tuple[Bytes, Bytes], encoding: Encoding, piece: int
) -> None:
    old, new = pair
    seen = bytearray()
    frame = Frames(piece).write(encoding, old, new, lambda part: seen.extend(part.tobytes()))
    assert reference.applied(encoding, frame, old.tobytes()) == new.tobytes()
    assert seen == new.tobytes()
    assert differ(old, new, piece) == (old.tobytes() != new.tobytes())
    decompress = zstandard.ZstdDecompressor().decompress
    assert decompress(frame) == decompress(plain(encoding, old, new))


@given(pairs(), st.sampled_from(Encoding), st.sampled_from(PIECES))
def test_what_the_reference_writes_is_read_by_pieces(pair: tuple[Bytes, Bytes], encoding: Encoding, piece: int) -> None:
    old, new = pair
    cells, seen = old.copy(), bytearray()
    frame = memoryview(plain(encoding, old, new))
    Frames(piece).read(encoding, frame, cells, lambda part: seen.extend(part.tobytes()))
    assert cells.tobytes() == seen == new.tobytes()


def test_one_object_writes_and_reads_tensors_of_any_size_one_after_the_other() -> None:
    frames, rng = Frames(64), np.random.default_rng(0)
    for size in (1, 5000, 63, 64, 65, 0, 9000):
        old, new = rng.integers(0, 256, (2, size), np.uint8)
        cells = old.copy()
        for encoding in Encoding:
            cells[:] = old
            frames.read(encoding, memoryview(frames.write(encoding, old, new)), cells)
            assert cells.tobytes() == new.tobytes()


@given(st.integers(0, 40), st.integers(0, 7), st.integers(0, 7))
def test_xor_is_that_of_single_bytes_wherever_they_lie(size: int, first: int, second: int) -> None:
    rng = np.random.default_rng(size)
    a, b = (rng.integers(0, 256, size + shift, np.uint8)[shift:] for shift in (first, second))
    out = np.empty(size, np.uint8)
    xor(a, b, out)
    assert out.tolist() == [x ^ y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    xor(a, b, a)
    assert a.tobytes() == out.tobytes()


@pytest.mark.parametrize("checksum", Checksum)
def test_a_checksum_of_pieces_is_the_one_of_all_bytes(checksum: Checksum) -> None:
    data = np.random.default_rng(1).integers(0, 256, 10_000, np.uint8)
    hasher = hasher_of(checksum)()
    for at in range(0, len(data), 777):
        hasher.update(data[at : at + 777])
    assert hasher.hexdigest() == reference.CHECKSUMS[checksum](data.tobytes())
    assert len(hasher.hexdigest()) == checksum.digits


def wide(data: bytes) -> bytes:
    """Return a frame that asks for a window of 128 MiB."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


def compressed(data: bytes, *, sized: bool = True) -> bytes:
    if sized:
        return zstandard.ZstdCompressor(level=1).compress(data)
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return stream.compress(data) + stream.flush()


def zeros(size: int) -> bytes:
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(stream.compress(bytes(1 << 20)) for _ in range(0, size, 1 << 20)) + stream.flush()


def overwrite(count: int, places: list[int], values: bytes) -> bytes:
    return np.array([count, *places], "<u4").tobytes() + values


XOR = {
    "empty": b"",
    "no zstd": b"\0" * 40,
    "cut off": compressed(bytes(100))[:-1],
    "too short": compressed(bytes(99)),
    "too long": compressed(bytes(101)),
    "too short, and says nothing of its size": compressed(bytes(99), sized=False),
    "too long, and says nothing of its size": compressed(bytes(101), sized=False),
    "256 MiB of zeros": zeros(1 << 28),
    "a window of 128 MiB": wide(bytes(100)),
    "two frames": compressed(bytes(100)) * 2,
    "junk after it": compressed(bytes(100)) + b"junk",
}
OVERWRITE = {
    "empty": b"",
    "cut off": compressed(overwrite(1, [4], b"x"))[:-1],
    "no count": compressed(b"\1\0"),
    "more places than bytes": compressed(overwrite(101, list(range(101)), bytes(101))),
    "a count of 2^32 - 1": compressed(overwrite(2**32 - 1, [1], b"x"), sized=False),
    "a count that the frame has no room for": compressed(overwrite(2, [1], b"x")),
    "a place past the end": compressed(overwrite(1, [100], b"x")),
    "the last of two places past the end": compressed(overwrite(2, [1, 100], b"xy")),
    "a place twice": compressed(overwrite(2, [7, 7], b"xy")),
    "places that fall": compressed(overwrite(2, [8, 7], b"xy")),
    "a value too few": compressed(overwrite(2, [7, 8], b"x"), sized=False),
    "a value too many": compressed(overwrite(2, [7, 8], b"xyz"), sized=False),
    "junk after it": compressed(overwrite(2, [7, 8], b"xy")) + b"junk",
}


@pytest.mark.parametrize(
    ("encoding", "frame"),
    [*((Encoding.XOR, f) for f in XOR.values()), *((Encoding.OVERWRITE, f) for f in OVERWRITE.values())],
    ids=[*(f"xor: {name}" for name in XOR), *(f"overwrite: {name}" for name in OVERWRITE)],
)
def test_a_frame_that_is_no_delta_of_the_tensor_is_refused(encoding: Encoding, frame: bytes) -> None:
    with pytest.raises(FrameFault):
        Frames(64).read(encoding, memoryview(frame), np.zeros(100, np.uint8))


def test_a_frame_that_claims_more_than_the_tensor_has_is_refused_before_it_is_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 2^50 bytes, says the header of sixteen.
    frame = bytes.fromhex("28b52ffd") + bytes([0xC0, 0x50]) + (1 << 50).to_bytes(8, "little") + b"\1\0"
    assert zstandard.get_frame_parameters(frame).content_size == 1 << 50
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda **_: pytest.fail("it was read"))
    with pytest.raises(FrameFault, match="claims"):
        Frames().read(Encoding.XOR, memoryview(frame), np.zeros(100, np.uint8))


@given(st.binary(max_size=60), st.sampled_from(Encoding))
def test_any_bytes_are_refused_or_read_within_the_tensor(data: bytes, encoding: Encoding) -> None:
    for frame in (data, compressed(data), compressed(data, sized=False)):
        cells = np.zeros(30, np.uint8)
        with contextlib.suppress(FrameFault):
            Frames(8).read(encoding, memoryview(frame), cells[5:25])
        assert not cells[:5].any()
        assert not cells[25:].any()


def test_overwrite_is_not_written_where_its_positions_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "POSITIONS", 10)
    with pytest.raises(FrameFault, match="positions reach 10 bytes"):
        Frames().write(Encoding.OVERWRITE, np.zeros(11, np.uint8), np.ones(11, np.uint8))


def test_adler32_of_nothing_is_one() -> None:
    assert hasher_of(Checksum.ADLER32)().hexdigest() == f"{zlib.adler32(b''):08x}" == "00000001"
