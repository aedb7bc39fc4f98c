"""Every bit of every kind of record, snapshot, hint and lease flipped: none is read.

And with all hashes made to fit after the flip, as an attacker would: nothing that is signed is believed, and a pull is
refused, or gives the version bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from blake3 import blake3

from pulse_registry.errors import Untrusted
from pulse_registry.signing import PinGuard, Trust
from pulse_schemas import RECORD_KINDS, Head, Lease, SchemaError, open_sealed, unseal_record, unseal_snapshot
from tests.security.attacks.make import honest_run
from tests.security.attacks.runs import TRUSTED
from tests.security.fuzz.pulls import FILES, pull_target
from tests.support.registries import RUN

DOCUMENTS = {
    f"{run}: {key.removeprefix('run/')}": (run, key)
    for run in ("log", "signed")
    for key in sorted(honest_run(run).store.objects)
}
READERS = {"head": Head.unseal, "snapshots/": unseal_snapshot, "leases/": Lease.unseal, r"log/\d+": unseal_record}
_CONTENT = len(b'{"blake3":"') + 64 + len(b'","body":')
PULLS = pull_target()


def flipped(data: bytes, stride: int = 1, start: int = 0) -> Iterator[bytes]:
    for position in range(8 * start, 8 * len(data), stride):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        yield bytes(changed)


@pytest.mark.parametrize("run", ["log", "signed"])
def test_a_record_of_each_kind_is_among_them(run: str) -> None:
    records = [data for key, data in honest_run(run).store.objects.items() if re.search(r"log/\d+", key)]
    assert {unseal_record(data).kind for data in records} == RECORD_KINDS.keys()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_flipped_bit_of_a_sealed_document_is_read(name: str) -> None:
    run, key = DOCUMENTS[name]
    data = honest_run(run).store.objects[key]
    unseal = next(unseal for pattern, unseal in READERS.items() if re.search(pattern, key))
    unseal(data)
    for changed in flipped(data):
        with pytest.raises(SchemaError):
            unseal(changed)


SIGNED = [name for name, (run, _) in DOCUMENTS.items() if run == "signed"]


@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=pytest.mark.sweep)], ids=["one in 41", "each"])
@pytest.mark.parametrize("name", SIGNED)
def test_no_flipped_bit_of_a_signed_record_is_believed_when_the_seal_is_made_to_fit(name: str, stride: int) -> None:
    data = honest_run("signed").store.objects[DOCUMENTS[name][1]]
    guard = PinGuard(Trust([TRUSTED.public]), "memory://", RUN)
    guard.check_signature(unseal_record(data), data)
    for content in flipped(data[_CONTENT:-1], stride):
        sealed = b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"
        open_sealed(sealed)
        with pytest.raises((SchemaError, Untrusted)):
            guard.check_signature(unseal_record(sealed), sealed)


@pytest.mark.parametrize("stride", [401, pytest.param(1, marks=pytest.mark.sweep)], ids=["one in 401", "each"])
@pytest.mark.parametrize("number", range(len(FILES)), ids=[name.strip("/") for name in FILES])
def test_no_flipped_bit_changes_a_weight_when_all_hashes_are_made_to_fit(number: int, stride: int) -> None:
    honest = PULLS.seeds[number]
    assert PULLS.check(honest)
    for changed in flipped(honest, stride, start=1):
        PULLS.check(changed)  # raises unless it is refused, or gives the version
