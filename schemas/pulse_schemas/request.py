"""A reader's wish: the direct patch of two versions, for a route that several readers share."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from pulse_schemas.base import Count, RunName, Schema, WriteId


class DirectRequest(Schema):
    """The reader ``reader`` asks for the patch ``base -> target``. Its key says the same: it need not be read."""

    format: Literal["pulse-request/1"] = "pulse-request/1"
    run: RunName
    base: Count
    target: Count
    reader: WriteId

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target <= self.base:
            raise ValueError("a patch leads from an older to a newer version")
        return self
