"""A reader's lease: what it asks to be kept, and for how long."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pulse_schemas.base import Count, ReaderName, RunName, Schema

MAX_LEASE_SECONDS = 604_800
"""A week."""


class Lease(Schema):
    """A reader holds ``version``: it and a way from it to the newest one are kept.

    The lease is alive for ``seconds`` from the time at which it was written, by the store's clock.
    """

    format: Literal["pulse-lease/1"] = "pulse-lease/1"
    run: RunName
    reader: ReaderName
    version: Count
    seconds: Annotated[int, Field(ge=1, le=MAX_LEASE_SECONDS)]
