"""Mark of a copy: says of what root a run is one, so that nobody else writes there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pulse_schemas.base import RunName, Schema


class MirrorMark(Schema):
    """The run below which this lies is a copy, byte for byte, of the run of this name below ``source``, an URL.

    Only mirrors write there. The URL is for people: which run it is a copy of, the records tell.
    """

    format: Literal["pulse-mirror/1"] = "pulse-mirror/1"
    run: RunName
    source: Annotated[str, Field(min_length=1, max_length=1024)]
