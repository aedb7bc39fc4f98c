"""The target of whole patch objects: every hash and size is made to fit, so that what is refused is the content.

Read whole, read by ranges, and looked at alone: three readers that must say the same.
"""

from __future__ import annotations

import json
import random
import struct
from functools import partial
from typing import Any

from blake3 import blake3

from pulse_kernels import Backend
from pulse_registry.errors import BaseMismatch, CorruptObject, PulseError, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import CoderChoice
from pulse_registry.format.patch_head import read_head
from pulse_schemas import ObjectRef, PatchRef
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect
from tests.support.patches import encode_patch
from tests.support.records import write_id
from tests.unit.format.forge import States, two_states

_ENTRY = struct.Struct("<IIII32s4Q")
_BASE, _TARGET = 4, 5
KEY = keys.patch_key(_BASE, _TARGET, write_id(1))
_MOST = 2**63 - 1


def patch_target(reference: Backend, compiled: Backend) -> Target:
    """Return the target of patch objects."""
    states = two_states()
    geometry, weights = states.geometry, states.weights("old")

    def check(data: bytes) -> bool:
        signed, ref = fitted(data)
        whole = _read(lambda: Patch.parse(geometry, ref, signed))
        by_range = _read(
            lambda: Patch.parse(geometry, ref, signed[: ref.head_size], lambda _, place: signed[slice(*place)])
        )
        alone = _read(lambda: read_head(KEY, signed[: ref.head_size], len(signed)))
        expect(type(whole) is type(by_range), f"whole it is {whole!r}, by ranges {by_range!r}")
        if isinstance(whole, PulseError):
            return False
        expect(not isinstance(alone, PulseError), f"it can be read, but not looked at alone: {alone!r}")
        accepted = True
        for number in whole.entries:
            group, base = geometry.groups[number], weights.spans(geometry.groups[number])
            for run in by_range.missing(1, [number]):
                by_range.fetch(run)
            one = _read(partial(whole.decode, reference, group, base))
            other = _read(partial(by_range.decode, compiled, group, base))
            expect(type(one) is type(other), f"group {number}: the reference says {one!r}, the compiled {other!r}")
            accepted &= not isinstance(one, PulseError)
            if not isinstance(one, PulseError):
                expect(one.index.tobytes() == other.index.tobytes(), "both decode the same places")
                expect(one.distance.tobytes() == other.distance.tobytes(), "both decode the same distances")
        return accepted

    return Target("patch", check, seeds(states, reference), mutate_patch, max_len=4096)


def seeds(states: States, backend: Backend) -> tuple[bytes, ...]:
    """Return patch objects of both coders, of all groups and of one."""
    made, changes = [], states.changes(backend)
    coders: tuple[CoderChoice, ...] = ("gap", "class")
    for coder in coders:
        for some in (changes, changes[:1], changes[-2:]):
            base_cells = states.weights("old").spans
            file = encode_patch(backend, states.geometry, _BASE, _TARGET, some, coder=coder, base_cells=base_cells)
            made.append(b"".join((file.head, *file.groups)))
    return tuple(made)


def fitted(data: bytes) -> tuple[bytes, PatchRef]:
    """Return the object with the hashes of its groups right, and what a record would say of it."""
    head, groups, document = rehashed(data)
    pulse = _pulse(document)
    base, target, changed = (_number(pulse.get(name)) for name in ("base", "target", "changed"))
    data = head + groups
    ref = PatchRef(
        base=base if base < target else 0,
        target=max(target, 1),
        coder="gap",
        changed=changed,
        object=ObjectRef(key=KEY, size=len(data), blake3=blake3(data).hexdigest()),
        head_size=len(head),
        head_blake3=blake3(head).hexdigest(),
    )
    return data, ref


def rehashed(data: bytes) -> tuple[bytes, bytes, Any]:
    """Return (head, groups, what the JSON says) of a container, the hashes of whose groups are made right."""
    header, directory, groups, document = _parts(data)
    at, entries = 0, []
    for fields in _ENTRY.iter_unpack(directory[: len(directory) // _ENTRY.size * _ENTRY.size]):
        size = fields[2]
        entries.append(_ENTRY.pack(*fields[:4], blake3(groups[at : at + size]).digest(), *fields[5:]))
        at += size
    return header + b"".join(entries) + directory[len(entries) * _ENTRY.size :], groups, document


def _parts(data: bytes) -> tuple[bytes, bytes, bytes, Any]:
    """Return (length and JSON, directory, groups, what the JSON says), as far as that can be told."""
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8) if len(data) >= 8 else 0
    try:
        document = json.loads(data[8 : 8 + length])
        size = _number(document["directory"]["data_offsets"][1])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        document, size = None, 0
    at = 8 + length + min(size, len(data))
    return data[: 8 + length], data[8 + length : at], data[at:], document


def _pulse(document: Any) -> dict[str, Any]:
    try:
        found = json.loads(document["__metadata__"]["pulse"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else 0


def _read(call: Any) -> Any:
    try:
        return call()
    except (CorruptObject, BaseMismatch, UnsupportedFormat) as error:
        return error


def mutate_patch(data: bytes, rng: random.Random) -> bytes:
    """Change the metadata, an entry or the groups, and make the header fit; or any bytes."""
    header, directory, groups, document = _parts(data)
    if document is None or rng.randrange(5) == 0:
        return mutate_bytes(data, rng)
    match rng.randrange(4):
        case 0:
            text = mutate_document(json.dumps(_pulse(document), separators=(",", ":"), sort_keys=True).encode(), rng)
            document["__metadata__"] = {"pulse": text.decode("utf-8", "replace")}
        case 1:
            directory = _changed_entries(directory, rng)
        case 2:
            groups = mutate_bytes(groups, rng)
            entry = bytearray(directory)
            if len(entry) >= _ENTRY.size:  # the last group takes what came or went
                size = (
                    int.from_bytes(entry[-72:-68], "little") + len(groups) - (len(data) - len(header) - len(directory))
                )
                entry[-72:-68] = (size % 2**32).to_bytes(4, "little")
                directory = bytes(entry)
        case _:
            changed = mutate_document(json.dumps(document, separators=(",", ":")).encode(), rng)
            changed += b" " * (-len(changed) % 8)
            return struct.pack("<Q", len(changed)) + changed + directory + groups
    ends = len(directory), len(directory) + len(groups)
    if isinstance(document.get("directory"), dict) and isinstance(document.get("groups"), dict):
        document["directory"] |= {"shape": [ends[0]], "data_offsets": [0, ends[0]]}
        document["groups"] |= {"shape": [len(groups)], "data_offsets": list(ends)}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + directory + groups


def _changed_entries(directory: bytes, rng: random.Random) -> bytes:
    entries = [list(fields) for fields in _ENTRY.iter_unpack(directory[: len(directory) // _ENTRY.size * _ENTRY.size])]
    if not entries:
        return directory
    entry = rng.choice(entries)
    match rng.randrange(4):
        case 0:
            entries.insert(rng.randrange(len(entries) + 1), list(entry))
        case 1:
            entries.remove(entry)
        case 2:
            rng.shuffle(entries)
        case _:
            field = rng.choice((0, 1, 2, 3))
            entry[field] = rng.choice((0, 1, 2, entry[field] + 1, entry[field] - 1, 2**31, 2**32 - 1)) % 2**32
    return b"".join(_ENTRY.pack(*one) for one in entries)
