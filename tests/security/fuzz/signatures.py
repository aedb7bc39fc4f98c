"""The target of signed records: whatever is made of one, no body is believed that the key did not sign.

An input is what a seal covers: the body, and the signature behind it.
"""

from __future__ import annotations

import random

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pulse_registry.errors import Untrusted
from pulse_registry.signing import PinGuard, SigningKey, Trust
from pulse_schemas import SchemaError, open_sealed, unseal_record
from tests.security.fuzz.documents import WORDS
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect
from tests.support.records import RUN, every_kind

_OPENING = len(b'{"blake3":"') + 64 + len(b'","body":')


def signed_target() -> Target:
    """Return the target of signed records."""
    trusted, other = (SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2))
    guard = PinGuard(Trust([trusted.public]), "memory://", RUN)
    records = every_kind().records
    bodies = {record.canonical() for record in records}

    def check(data: bytes) -> bool:
        sealed = b'{"blake3":"' + blake3(data).hexdigest().encode() + b'","body":' + data + b"}"
        try:
            parts, record = open_sealed(sealed), unseal_record(sealed)
            expect(parts.to_bytes() == sealed, "an accepted document encodes back to its bytes")
            guard.check_signature(record, sealed)
        except (SchemaError, Untrusted):
            return False
        expect(parts.body in bodies, "a body is believed that the key did not sign")
        return True

    seeds = [record.seal(trusted)[_OPENING:-1] for record in records]
    seeds += [records[0].seal(other)[_OPENING:-1], records[0].seal()[_OPENING:-1]]
    return Target("signed", check, tuple(seeds), _mutate, (*WORDS, b',"signature":{"key":"ed25519:', b'","value":"'))


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Change the body, the signature, or both as bytes."""
    body, joint, signature = data.partition(b',"signature":')
    match rng.randrange(3):
        case 0:
            return mutate_document(body, rng) + joint + signature
        case 1:
            return body + joint + mutate_bytes(signature, rng)
    return mutate_bytes(data, rng)
