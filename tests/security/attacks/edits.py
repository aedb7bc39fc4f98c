"""What an attacker changes: each function returns what does one thing to a store, with every hash then in order."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from pulse_schemas import canonical_json
from tests.security.attacks.forge import GroupParts, PatchParts, edit_record, key_of, last_commit
from tests.security.attacks.row import Forge
from tests.support.records import DictStore


def group(edit: Callable[[GroupParts, PatchParts], None]) -> Forge:
    """Change the coded group, and sign the patch."""

    def forge(store: DictStore) -> None:
        patch = PatchParts(store)
        parts = GroupParts(patch.groups[0])
        edit(parts, patch)
        patch.groups[0] = parts.pack()
        patch.sign()

    return forge


def patch(edit: Callable[[PatchParts], None], **said: Any) -> Forge:
    """Change the directory or the header, and what its record says of it besides, and sign the patch."""

    def forge(store: DictStore) -> None:
        parts = PatchParts(store)
        edit(parts)
        parts.sign(ref=lambda ref: ref.update(said))

    return forge


def commit(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Change the record of version 1, and sign it."""
    return lambda store: edit_record(store, last_commit(store), edit)


def first_commit(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Change the record of version 0, which names the keyframe, and sign all from there on."""
    return lambda store: edit_record(store, 1, edit)


def put(target: Any, **values: Any) -> None:
    """Set attributes of parts."""
    for name, value in values.items():
        assert hasattr(target, name), name
        setattr(target, name, value)


def claim(changed: int) -> Callable[[GroupParts, PatchParts], None]:
    """Claim so many changed cells wherever there is a place to do so."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        patch.entries[0][1] = patch.pulse["changed"] = changed
        if parts.classes:
            parts.classes[0][0] += changed - sum(count for count, _ in parts.classes)

    return edit


def words(make: Callable[[list[int]], list[int]]) -> Forge:
    """Replace the words of the chunk, and say how many there are."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        parts.words = make(parts.words)
        parts.sizes = [len(parts.words)]

    return group(edit)


def table(number: int, data: bytes) -> Forge:
    """Replace a table; the byte after them all is there where it must be."""

    def edit(parts: GroupParts, patch: PatchParts) -> None:
        parts.tables[number] = data
        parts.padding = bytes((5 * len(parts.classes) + sum(map(len, parts.tables))) % 2)

    return group(edit)


def levels(first: int, *values: int) -> bytes:
    """Return the bytes of a table."""
    packed = sum(level << (5 * k) for k, level in enumerate(values))
    return bytes((first, len(values))) + packed.to_bytes((5 * len(values) + 7) // 8, "little")


def header(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the JSON header of the patch by any bytes."""

    def edit(parts: PatchParts) -> None:
        honest = PatchParts(parts.store)
        length = struct.unpack_from("<Q", honest.store.objects[honest.key])[0]
        parts.raw_header = make(honest.store.objects[honest.key][8 : 8 + length].rstrip())

    return patch(edit)


def sealed_bytes(content: bytes) -> bytes:
    return b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"


def shard(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the bytes of the keyframe's shard, and the hashes of its pieces."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "model-00001")
        data = make(store.objects[key])
        store.objects[key] = data
        shard_ref(store, data)
        size = 8 << 20
        hashes = [blake3(data[at : at + size]).hexdigest() for at in range(0, len(data), size)]
        pieces(lambda p: p["blake3"].update({key.rpartition("/")[2]: hashes}))(store)

    return forge


def shard_ref(store: DictStore, data: bytes) -> None:
    """Make the record say of the keyframe's shard that it is these bytes."""
    said = {"size": len(data), "blake3": blake3(data).hexdigest()}
    edit_record(store, 1, lambda record: record["keyframe"]["shards"][0].update(said))


def index(make: Callable[[bytes], bytes]) -> Forge:
    """Replace the bytes of the keyframe's index."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "index")
        data = make(store.objects[key])
        store.objects[key] = data
        edit_record(store, 1, lambda r: r["keyframe"]["index"].update(size=len(data), blake3=blake3(data).hexdigest()))

    return forge


def pieces(edit: Callable[[dict[str, Any]], Any]) -> Forge:
    """Change what the index says of the shards' pieces."""

    def remade(data: bytes) -> bytes:
        document = json.loads(data)
        edit(document["metadata"]["pulse"]["pieces"])
        return canonical_json(document)

    return index(remade)


def hashes(make: Callable[[list[str]], Any]) -> Forge:
    """Change the list of a shard's pieces."""
    return pieces(lambda p: p.update(blake3={name: make(listed) for name, listed in p["blake3"].items()}))


def shard_header(make: Callable[[dict[str, Any]], Any]) -> Forge:
    """Replace the shard's JSON header."""

    def remade(data: bytes) -> bytes:
        (length,) = struct.unpack_from("<Q", data)
        changed = json.dumps(make(json.loads(data[8 : 8 + length])), separators=(",", ":")).encode()
        changed += b" " * (-len(changed) % 8)
        return struct.pack("<Q", len(changed)) + changed + data[8 + length :]

    return shard(remade)


def layout(edit: Callable[[dict[str, Any]], None]) -> Forge:
    """Replace the layout by another one, which both records name."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "layouts/")
        document = json.loads(store.objects.pop(key))
        edit(document)
        data = canonical_json(document)
        name = blake3(data).hexdigest()
        store.objects[f"run/layouts/{name}.json"] = data
        for seq in (1, 2):
            edit_record(store, seq, lambda record: record.update(layout=name))

    return forge


def tensor(**values: Any) -> Forge:
    return layout(lambda document: document["tensors"][0].update(values))
