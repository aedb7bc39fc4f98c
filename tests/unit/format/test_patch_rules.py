"""Every rule of a patch object, broken once, with all hashes made to fit: each is a typed error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3

from pulse_kernels import get_backend
from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import CoderChoice
from pulse_registry.format.patch_head import read_head
from pulse_schemas import PatchRef
from tests.unit.format.forge import ENTRY, KEY, Forged, States, forged, joined, ref_to, two_states

NUMBA = get_backend("numba")


@pytest.fixture(scope="module")
def states() -> States:
    return two_states()


@pytest.fixture(scope="module")
def good(states: States) -> Forged:
    """The patch of the states, taken apart."""
    file = states.encode("gap")
    entries = [tuple(fields) for fields in ENTRY.iter_unpack(file.head[-6 * ENTRY.size :])]
    return forged(states, file.groups, entries)


def parse(states: States, head: bytes, data: bytes, **changes: Any) -> Patch:
    total = sum(entry[1] for entry in ENTRY.iter_unpack(states.encode("gap").head[-6 * ENTRY.size :]))
    return Patch.parse(states.geometry, ref_to(head, data, **({"changed": total} | changes)), data)


def test_the_forged_patch_is_the_librarys_byte_for_byte(states: States, good: Forged):
    head, data = good.build()
    file = states.encode("gap")
    assert (head, data) == (file.head, joined(file))
    assert set(parse(states, head, data).entries) == {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize(("coder", "said"), [("gap", "class"), ("class", "gap")])
def test_a_record_that_names_another_coder_is_of_another_patch(states: States, coder: CoderChoice, said: str):
    """Routes go back over patches whose record says ``gap``, and merge them so: ``class`` has no way back."""
    file = states.encode(coder)
    ref = ref_to(file.head, joined(file), changed=file.changed, coder=said)
    with pytest.raises(CorruptObject, match="not the patch that the record names"):
        Patch.parse(states.geometry, ref, joined(file))


Break = Callable[[Forged], Forged]
OVERSIZE = 2**32 - 1
STRUCTURE: dict[str, tuple[str, Break]] = {
    "another layout": ("not the patch that the record names", lambda f: f.head(layout="0" * 64)),
    "another base": ("not the patch that the record names", lambda f: f.head(base=3)),
    "another target": ("not the patch that the record names", lambda f: f.head(target=6)),
    "another count of changed cells": ("not the patch that the record names", lambda f: f.head(changed=1)),
    "more groups than entries": ("does not fit", lambda f: f.head(groups=7)),
    "fewer groups than entries": ("does not fit", lambda f: f.head(groups=5)),
    "groups past all memory": ("does not fit", lambda f: f.head(groups=2**62)),
    "an unknown field": ("Extra inputs", lambda f: f.head(note="hello")),
    "a negative count": ("greater than or equal", lambda f: f.head(changed=-1)),
    "a count that is no integer": ("valid integer", lambda f: f.head(base="4")),
    "a group past the layout": ("not of the layout", lambda f: f.entry(5, group=7)),
    "a group far past the layout": ("not of the layout", lambda f: f.entry(5, group=OVERSIZE)),
    "groups out of order": ("out of order", lambda f: f.entry(0, group=2).entry(2, group=0)),
    "a group twice": ("out of order", lambda f: f.entry(1, group=0)),
    "an unknown coder": ("out of order|coder", lambda f: f.entry(2, coder=2)),
    "a coder past all": ("out of order|coder", lambda f: f.entry(2, coder=OVERSIZE)),
    "a group of no changed cells": ("claims 0 changed", lambda f: f.entry(0, changed=0)),
    "a group of more changed cells than it has": ("claims 33 changed", lambda f: f.entry(2, changed=33)),
    "a group of 2^32 - 1 changed cells": ("claims 4294967295 changed", lambda f: f.entry(2, changed=OVERSIZE)),
    "changed cells that do not add up": ("does not add up", lambda f: f.entry(0, changed=f.entries[0][1] + 1)),
    "a group of more bytes": ("does not add up", lambda f: f.entry(0, size=f.entries[0][2] + 1)),
    "a group of fewer bytes": ("does not add up", lambda f: f.entry(5, size=f.entries[5][2] - 1)),
    "a group of 4 GiB": ("does not add up", lambda f: f.entry(3, size=OVERSIZE)),
    "bytes after the groups": ("does not add up", lambda f: replace(f, groups=(*f.groups, b"\0"))),
    "a group missing": ("does not add up", lambda f: replace(f, groups=f.groups[:-1])),
    "an entry missing": ("does not add up", lambda f: replace(f, entries=f.entries[:-1]).head(groups=5)),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_each_rule_of_head_and_directory_is_checked(states: States, good: Forged, name: str):
    message, breaks = STRUCTURE[name]
    with pytest.raises(CorruptObject, match=message) as caught:
        parse(states, *breaks(good).build())
    assert KEY in str(caught.value)


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a tensor more": lambda d: d | {"more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}},
    "a tensor less": lambda d: {k: d[k] for k in ("__metadata__", "directory")},
    "tensors in another order": lambda d: {k: d[k] for k in ("__metadata__", "groups", "directory")},
    "no metadata": lambda d: {k: d[k] for k in ("directory", "groups")},
    "metadata of others": lambda d: d | {"__metadata__": {"format": "pt"}},
    "more metadata": lambda d: d | {"__metadata__": d["__metadata__"] | {"more": "x"}},
    "metadata that is no object": lambda d: d | {"__metadata__": ["pulse"]},
    "a head that is no string": lambda d: d | {"__metadata__": {"pulse": 5}},
    "a head that is not JSON": lambda d: d | {"__metadata__": {"pulse": "{"}},
    "a head that is not canonical": lambda d: d | {"__metadata__": {"pulse": d["__metadata__"]["pulse"] + " "}},
    "a head with a lone surrogate": lambda d: d | {"__metadata__": {"pulse": "\ud800"}},
    "another dtype": lambda d: d | {"directory": d["directory"] | {"dtype": "I8"}},
    "another shape": lambda d: d | {"groups": d["groups"] | {"shape": [1, d["groups"]["shape"][0]]}},
    "other offsets": lambda d: d | {"groups": d["groups"] | {"data_offsets": [0, 1]}},
    "a list": lambda d: [d],
    "nothing": lambda d: None,
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_not_exactly_the_formats_is_refused(states: States, good: Forged, name: str):
    text = json.dumps(HEADERS[name](good.document()), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with pytest.raises(CorruptObject, match=r"not a patch object|does not fit|PatchHead|JSON"):
        parse(states, *good.build(text))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff" * 8, b'{"a":' * 100_000],
    ids=["nothing", "half", "no text", "too deep"],
)
def test_a_header_that_is_no_json_is_refused(states: States, good: Forged, text: bytes):
    with pytest.raises(CorruptObject, match="not a patch object"):
        parse(states, *good.build(text))


def test_white_space_in_the_header_is_refused(states: States, good: Forged):
    text = json.dumps(good.document()).encode()
    with pytest.raises(CorruptObject, match="does not fit"):
        parse(states, *good.build(text + b" " * (-len(text) % 8)))
    text = json.dumps(good.document(), separators=(",", ":")).encode()
    with pytest.raises(CorruptObject, match="does not fit"):
        parse(states, *good.build(text + b" " * (-len(text) % 8 + 8)))


@pytest.mark.parametrize("version", ["pulse-patch/3", "pulse-patch/1", "pulse-patch/2.1"])
def test_another_format_version_is_told_apart_from_damage(states: States, good: Forged, version: str):
    with pytest.raises(UnsupportedFormat, match=version):
        parse(states, *good.head(format=version, new_field=1).build())


@pytest.mark.parametrize("name", ["other-patch/1", "", 5])
def test_another_format_altogether_is_damage(states: States, good: Forged, name: Any):
    with pytest.raises(CorruptObject):
        parse(states, *good.head(format=name).build())


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_a_head_size_that_cuts_the_head_is_refused(states: States, good: Forged, size: int):
    head, data = good.build()
    for cut in (size, len(head) - size - 1, min(len(head) + size + 1, len(data))):
        with pytest.raises(CorruptObject):
            parse(states, head, data, head_size=cut, head_blake3=blake3(data[:cut]).hexdigest())


def test_a_length_field_past_the_head_is_refused(states: States, good: Forged):
    head, data = good.build()
    for claimed in (len(head), 2**63, 2**64 - 1):
        broken = claimed.to_bytes(8, "little") + head[8:]
        with pytest.raises(CorruptObject, match="the header claims"):
            parse(states, broken, broken + data[len(head) :])


def test_a_head_can_be_looked_at_without_its_layout(states: States, good: Forged):
    head, data = good.build()
    parsed, entries = read_head(KEY, head, len(data))
    assert parsed.model_dump() == good.fields
    assert list(entries.values()) == list(parse(states, head, data).entries.values())


@pytest.mark.parametrize(
    "breaks",
    [
        lambda f: f.entry(2, coder=2),
        lambda f: f.entry(0, size=f.entries[0][2] + 1),
        lambda f: f.head(groups=7),
        lambda f: replace(f, groups=(*f.groups, b"x")),
    ],
    ids=["coder", "size", "groups", "bytes left over"],
)
def test_a_head_that_breaks_a_rule_is_refused_without_its_layout(good: Forged, breaks: Break):
    head, data = breaks(good).build()
    with pytest.raises(CorruptObject, match=KEY):
        read_head(KEY, head, len(data))


@pytest.mark.parametrize("change", [-1, 1, 8])
def test_an_object_of_another_size_is_refused_before_anything_else(states: States, good: Forged, change: int):
    head, data = good.build()
    ref: PatchRef = ref_to(head, data)
    with pytest.raises(CorruptObject, match=f"{len(data) + change} bytes, {len(data)} were committed"):
        Patch.parse(states.geometry, ref, (data + bytes(8))[: len(data) + change])


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_every_flipped_bit_is_refused(states: States, coder: Any):
    file = states.encode(coder)
    ref, data = file.ref(KEY), joined(file)
    weights = states.weights("old")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(CorruptObject, match=KEY):
            read_all(states, Patch.parse(states.geometry, ref, bytes(damaged)), weights)
    read_all(states, Patch.parse(states.geometry, ref, data), weights)


def read_all(states: States, patch: Patch, weights: Any) -> None:
    for number in patch.entries:
        patch.decode(NUMBA, states.geometry.groups[number], weights.spans(states.geometry.groups[number]))


def test_a_group_that_breaks_its_own_format_is_corrupt_even_where_its_hash_fits(states: States, good: Forged):
    group = bytearray(good.groups[0])
    group[0] = 1  # classes, in a gap group
    data = bytes(group)
    broken = replace(good, groups=(data, *good.groups[1:])).entry(0, blake3=blake3(data).digest())
    patch = parse(states, *broken.build())
    with pytest.raises(CorruptObject, match="group 0"):
        patch.decode(NUMBA, states.geometry.groups[0])
    assert len(patch.decode(NUMBA, states.geometry.groups[1]).index)


def test_a_group_with_another_number_of_changes_than_the_directory_says_is_corrupt(states: States, good: Forged):
    first, second = good.entries[0][1], good.entries[1][1]
    patch = parse(states, *good.entry(0, changed=first - 1).entry(1, changed=second + 1).build())
    for number in (0, 1):
        with pytest.raises(CorruptObject, match=f"group {number}"):
            patch.decode(NUMBA, states.geometry.groups[number])


def test_groups_that_change_places_are_corrupt(states: States, good: Forged):
    groups = list(good.groups)
    groups[0], groups[1] = groups[1], groups[0]
    swapped = replace(good, groups=tuple(groups)).entry(0, size=len(groups[0])).entry(1, size=len(groups[1]))
    patch = parse(states, *swapped.build())
    for number in (0, 1):
        with pytest.raises(CorruptObject, match="BLAKE3"):
            patch.decode(NUMBA, states.geometry.groups[number])
