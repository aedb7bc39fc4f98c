"""All rows of the table of hostile objects."""

from __future__ import annotations

from tests.security.attacks.coded_rows import CODED
from tests.security.attacks.delta_rows import DELTAS
from tests.security.attacks.keyframe_rows import KEYFRAMES
from tests.security.attacks.log_rows import HINTS, LEASES, RECORDS
from tests.security.attacks.patch_rows import CLASS, GAP
from tests.security.attacks.record_rows import COMMITS
from tests.security.attacks.row import Family
from tests.security.attacks.signed_rows import SIGNED

FAMILIES: dict[str, Family] = {
    "patch-gap": Family("gap", "pull", GAP),
    "patch-class": Family("class", "pull", CLASS),
    "commit": Family("gap", "pull", COMMITS),
    "keyframe": Family("gap", "join", KEYFRAMES),
    "coded": Family("coded", "join", CODED),
    "record": Family("log", "log", RECORDS),
    "hint": Family("log", "hint", HINTS),
    "lease": Family("log", "lease", LEASES),
    "signed": Family("signed", "trusted", SIGNED),
    "delta": Family("delta", "import", DELTAS),
}
