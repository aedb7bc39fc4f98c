"""Whose shared bases a token may read: those of runs that it may read, as their logs name them, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from pulse_registry.errors import NotFound
from pulse_schemas import base_of
from pulse_server.routes.dependencies import RunRequest


async def check_named(run: RunRequest, wanted: Sequence[str]) -> None:
    """Check that the run names the bases whose files are among some keys.

    Raises:
        NotFound: it does not; whether there is such a base shows in nothing.
    """
    files = [key for key in wanted if base_of(key) is not None]
    if not files:
        return
    feed = await run.feed()
    if not all(map(feed.state.is_live, files)):
        await feed.refresh()  # another replica may have appended the record
    for key in files:
        if not feed.state.is_live(key):
            raise NotFound(f"run {run.name!r} has no {key}")
