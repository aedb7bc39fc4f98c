"""Hostile signed records, for a reader that pins one key for all kinds, and another for attach records alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from pulse_registry.errors import CorruptObject, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import sealed_hash
from pulse_registry.signing import SigningKey
from pulse_schemas import Countersignature, canonical_json
from pulse_schemas.base import Sealed
from tests.security.attacks.forge import seal
from tests.security.attacks.row import Forge, Rows
from tests.security.attacks.runs import ATTACHER, OTHER, TRUSTED
from tests.support.records import DictStore, every_kind

_SEQ = len(every_kind().records) - 1
_KEY = f"run/{keys.record_key(_SEQ)}"


def record(edit: Callable[[dict[str, Any]], Any], signer: SigningKey | None) -> Forge:
    """Change the newest record, and sign it."""

    def forge(store: DictStore) -> None:
        body = json.loads(store.objects[_KEY])["body"]
        edit(body)
        content = canonical_json(body)
        store.objects[_KEY] = Sealed(content, None if signer is None else signer.sign(content)).to_bytes()

    return forge


def signature(change: Callable[[bytes, DictStore], bytes]) -> Forge:
    """Change the text from the signature's field on, and make the seal fit."""

    def forge(store: DictStore) -> None:
        whole = store.objects[_KEY][84:-1]
        body, joint, rest = whole.partition(b',"signature":')
        content = body + change(joint + rest, store)
        assert content != whole
        store.objects[_KEY] = b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"

    return forge


def _of(store: DictStore, seq: int) -> bytes:
    _, joint, rest = store.objects[f"run/{keys.record_key(seq)}"][84:-1].partition(b',"signature":')
    return joint + rest


def _value(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    head, joint, value = text.partition(b'"value":"')
    return head + joint + change(value[:128]) + value[128:]


def _replayed(store: DictStore) -> None:
    """Put an older record, as it was signed, in the place of the newest."""
    store.objects[_KEY] = store.objects[f"run/{keys.record_key(_SEQ - 1)}"]


def countersigned(signer: SigningKey | None, **lie: Any) -> Forge:
    """Take the newest record's signature away, and let somebody countersign what it is said to be."""

    def forge(store: DictStore) -> None:
        store.objects[_KEY] = seal(json.loads(store.objects[_KEY])["body"])
        said = {"run": "run", "seq": _SEQ, "record": sealed_hash(store.objects[_KEY])}
        document = Countersignature(**(said | lie)).seal(signer)
        store.objects[f"run/{keys.countersignature_key(_SEQ)}"] = document

    return forge


def _another_tag(signer: SigningKey) -> Forge:
    """Append a record that moves a tag, signed by a key."""

    def forge(store: DictStore) -> None:
        last = store.objects[_KEY]
        body = json.loads(last)["body"]
        kept = {name: body[name] for name in ("format", "run", "epoch", "created_at")}
        moved = {"kind": "tag", "name": "best", "version": 5, "seq": _SEQ + 1, "write_id": "9" * 32}
        content = canonical_json(kept | moved | {"previous": sealed_hash(last)})
        store.objects[f"run/{keys.record_key(_SEQ + 1)}"] = Sealed(content, signer.sign(content)).to_bytes()

    return forge


SIGNED: Rows = {
    "a record that nobody signed": (record(lambda body: None, None), Untrusted),
    "a record that another key signed": (record(lambda body: None, OTHER), Untrusted),
    "a record of a kind that the key may not sign": (record(lambda body: None, ATTACHER), Untrusted),
    "a tag that the key may not move": (_another_tag(ATTACHER), Untrusted),
    "a tag that another key moves": (_another_tag(OTHER), Untrusted),
    "another body under the signature": (
        signature(lambda text, store: _of(store, _SEQ - 1)),
        Untrusted,
    ),
    "another step under the signature": (
        lambda store: store.objects.update({_KEY: _resealed(store.objects[_KEY].replace(b'"step":50', b'"step":51'))}),
        Untrusted,
    ),
    "another digest under the signature": (
        lambda store: store.objects.update({_KEY: _resealed(store.objects[_KEY].replace(b"f" * 32, b"e" * 32, 1))}),
        Untrusted,
    ),
    "a signature of zeros": (signature(lambda text, _: _value(text, lambda value: b"0" * 128)), Untrusted),
    "a signature with a bit flipped": (
        signature(lambda text, _: _value(text, lambda v: bytes([v[0] ^ 1]) + v[1:])),
        Untrusted,
    ),
    "a signature whose number is not reduced": (
        signature(lambda text, _: _value(text, _unreduced)),
        Untrusted,
    ),
    "a signature in upper case": (signature(lambda text, _: _value(text, bytes.upper)), CorruptObject),
    "a signature of 63 bytes": (signature(lambda text, _: _value(text, lambda value: value[:126])), CorruptObject),
    "a signature of another kind of key": (
        signature(lambda text, _: text.replace(b"ed25519", b"ed448xx")),
        CorruptObject,
    ),
    "a signature with a field too many": (signature(lambda text, _: text[:-1] + b',"by":"x"}'), CorruptObject),
    "a signature twice": (signature(lambda text, _: text + text), CorruptObject),
    "a signature of nothing": (signature(lambda text, _: b',"signature":null'), CorruptObject),
    "an older record again": (_replayed, (CorruptObject, Untrusted)),
    "a record of another run, signed": (record(lambda body: body.update(run="other"), TRUSTED), Untrusted),
    "a commit of no base, signed": (record(lambda body: body.update(parent=3), TRUSTED), CorruptObject),
    "a record that another key countersigned": (countersigned(OTHER), Untrusted),
    "a record that nobody countersigned": (countersigned(None), Untrusted),
    "a record whose kind the key may not countersign": (countersigned(ATTACHER), Untrusted),
    "a countersignature of another record": (countersigned(TRUSTED, record="0" * 64), Untrusted),
    "a countersignature of another number": (countersigned(TRUSTED, seq=_SEQ - 1), Untrusted),
    "a countersignature of another run": (countersigned(TRUSTED, run="other"), Untrusted),
    "a record without its signature": (
        lambda store: store.objects.update({_KEY: seal(json.loads(store.objects[_KEY])["body"])}),
        Untrusted,
    ),
}


def _resealed(data: bytes) -> bytes:
    return b'{"blake3":"' + blake3(data[84:-1]).hexdigest().encode() + data[75:]


def _unreduced(value: bytes) -> bytes:
    """Return the signature with its second half raised by the group's order: a second text for one message."""
    order = 2**252 + 27742317777372353535851937790883648493
    raw = bytes.fromhex(value.decode())
    return (raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")).hex().encode()
