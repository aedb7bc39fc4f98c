"""Home: where a run lives that has moved. The log says it, and a document proves it, which no copy of the run has."""

from __future__ import annotations

from typing import Literal

from pulse_schemas.base import Count, Place, RunName, Schema, WriteId


class Home(Schema):
    """The root at which this lies is the one that the `MoveRecord` of write id ``move`` led to."""

    format: Literal["pulse-home/1"] = "pulse-home/1"
    run: RunName
    move: WriteId


class HomeEntry(Schema):
    """Where the run lives since record ``seq`` moved it: at the root whose `Home` names ``move``, called ``to``."""

    move: WriteId
    to: Place
    seq: Count
