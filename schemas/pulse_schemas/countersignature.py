"""A countersignature: who holds a key answers for a record that it has not signed."""

from __future__ import annotations

from typing import Literal

from pulse_schemas.base import Count, Hash, RunName, Schema


class Countersignature(Schema):
    """The signer answers for record ``seq``, as it is stored, as if the record had been signed with this key.

    ``record`` is the BLAKE3 of the record's sealed bytes: what ``previous`` of the next record says. It adds belief in
    one record at its place, and takes nothing away.
    """

    format: Literal["pulse-countersignature/1"] = "pulse-countersignature/1"
    run: RunName
    seq: Count
    record: Hash
