"""The seal of a signed document: it covers the signature, and an unsigned document has the bytes that it always had."""

from __future__ import annotations

import json

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_schemas import Head, SchemaError, Sealed, Signature, open_sealed, unseal_record
from pulse_schemas.base import canonical_json
from tests.security.signing.actors import STRANGER, TRAINER
from tests.support.records import chain

RECORD = chain(2).records[-1]


def test_an_unsigned_document_is_its_hash_and_its_body():
    body = RECORD.canonical()
    assert RECORD.seal() == b'{"blake3":"' + blake3(body).hexdigest().encode() + b'","body":' + body + b"}"
    assert open_sealed(RECORD.seal()) == Sealed(body)


def test_a_signed_document_is_canonical_and_says_who_signed_what():
    sealed = RECORD.seal(TRAINER)
    document = json.loads(sealed)
    assert canonical_json(document) == sealed
    assert list(document) == ["blake3", "body", "signature"]
    assert document["signature"]["key"] == TRAINER.public
    assert open_sealed(sealed) == Sealed(RECORD.canonical(), TRAINER.sign(RECORD.canonical()))
    assert open_sealed(sealed).to_bytes() == sealed
    assert unseal_record(sealed) == RECORD


def test_every_flipped_bit_of_a_signed_record_is_seen_by_readers_without_keys_too():
    sealed = RECORD.seal(TRAINER)
    for at in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(SchemaError):
            unseal_record(flipped)


def test_a_cut_or_longer_signed_record_is_refused():
    sealed = RECORD.seal(TRAINER)
    for damaged in (sealed[:-1], sealed + b" ", sealed + b"}", sealed[1:]):
        with pytest.raises(SchemaError, match="seal"):
            unseal_record(damaged)


@pytest.mark.parametrize(
    "content",
    [
        b',"signature":{"key":"ed25519:' + b"A" * 64 + b'","value":"' + b"0" * 128 + b'"}',
        b',"signature":{"key":"ed25519:' + b"a" * 63 + b'","value":"' + b"0" * 128 + b'"}',
        b',"signature":{"key":"ed25519:' + b"a" * 64 + b'","value":"' + b"0" * 130 + b'"}',
        b',"signature":{"key":"rsa:' + b"a" * 64 + b'","value":"' + b"0" * 128 + b'"}',
        b',"signature": {"key":"ed25519:' + b"a" * 64 + b'","value":"' + b"0" * 128 + b'"}',
        b',"signature":null',
        b',"signature":{}',
    ],
)
def test_what_is_no_signature_in_the_one_form_is_no_part_of_a_document(content):
    with pytest.raises(SchemaError, match="not JSON"):
        unseal_record(Sealed(RECORD.canonical() + content).to_bytes())


def test_two_signatures_are_none():
    twice = Sealed(open_sealed(RECORD.seal(TRAINER)).body + RECORD.seal(STRANGER)[-235:-1], TRAINER.sign(b""))
    with pytest.raises(SchemaError, match="not JSON"):
        unseal_record(twice.to_bytes())


_SIGNATURE_TEXT = Sealed(b"{}", Signature(bytes(32), bytes(64))).to_bytes().decode()[86:-1]
_VALUES = st.recursive(
    st.none() | st.text(max_size=5) | st.just(_SIGNATURE_TEXT) | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["signature", "key", "value", _SIGNATURE_TEXT]), _VALUES, max_size=3))
def test_nothing_that_metadata_holds_is_taken_for_a_signature(metadata):
    record = RECORD.model_copy(update={"metadata": metadata})
    for document in (record.canonical(), canonical_json(metadata)):
        assert open_sealed(Sealed(document).to_bytes()) == Sealed(document)
        signed = Sealed(document, TRAINER.sign(document))
        assert open_sealed(signed.to_bytes()) == signed


def test_a_head_can_be_signed_as_well():
    head = Head(seq=3, snapshot=None)
    assert Head.unseal(head.seal(TRAINER)) == head
