"""What the targets of servers' answers share.

An input is one answer, given to every request: a byte for the status, a byte for the headers, a byte for the call that
is made, and the body.
"""

from __future__ import annotations

import random

from pulse_registry.format import keys
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.support.records import write_id

STATUS = (200, 200, 200, 206, 416, 404, 403, 412, 409, 400, 500, 503, 301, 204, 429, 401)
KEY = keys.patch_key(0, 1, write_id(1))


def mutate_answer(data: bytes, rng: random.Random) -> bytes:
    """Change the status, the headers, the call or the body."""
    if len(data) < 3 or rng.randrange(8) == 0:
        return mutate_bytes(data, rng)
    head = bytearray(data[:3])
    if rng.randrange(3) == 0:
        head[rng.randrange(3)] = rng.randrange(256)
    body = mutate_document(data[3:], rng) if data[3:4] == b"{" else mutate_bytes(data[3:], rng)
    return bytes(head) + body
