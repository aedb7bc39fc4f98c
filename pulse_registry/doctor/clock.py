"""Does the store's clock agree with this machine's? Signatures and signed URLs live by both."""

from __future__ import annotations

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, skipped, warn
from pulse_registry.errors import InvalidArgument
from pulse_registry.store import Store
from pulse_registry.store.http_dates import http_date

_KEY = "clock/object"
_WARN_S = 30.0
_REFUSED_S = 900.0  # S3 refuses a signature that is 15 minutes off (RequestTimeTooSkewed)


def clocks_agree(store: Store, context: Context) -> Finding:
    """Compare the Date of an answer, or a new file's time, with the clock here."""
    before = context.now()
    store.put(_KEY, b"x")
    there = _time_of(store)
    after = context.now()
    if there is None:
        return skipped("the store has no clock of its own, or does not tell the time")
    # The store's answer was made between the two readings, and is rounded down to a second.
    skew = max(before - (there + 1.0), there - after, 0.0)
    evidence: Evidence = {"skew, s": round(skew, 1), "refused from, s": _REFUSED_S}
    if skew > _WARN_S:
        return warn(
            f"the store's clock and this machine's are {skew:.0f} s apart",
            "set the clocks by NTP: signed URLs live shorter or longer than they say, and from 15 minutes on every "
            "request is refused",
            evidence,
        )
    return ok("the clocks agree", evidence)


def _time_of(store: Store) -> float | None:
    """Return the time by what checks signatures, where there are any; else by what dates objects."""
    import httpx  # loaded when it is used: it is a tenth of the time in which any command starts

    signer = store.presigner()
    try:
        if signer is None:
            return store.modified(_KEY).timestamp()
        date = httpx.get(signer.presign(_KEY, 60), timeout=30.0).headers.get("Date", "")
    except (httpx.HTTPError, InvalidArgument):
        return None
    told = http_date(date)
    return None if told is None else told.timestamp()
