"""Variables of the environment that are ours by their names, and those among them that nobody reads: misspelt ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "PULSE_"
READ: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("ALLOW_HTTP", "CACHE", "CACHE_BYTES", "DEBUG", "ROOT", "RUN", "SIGNING_KEY", "SPOOL", "STATE_DIR", "TOKEN"),
        *("TOKENS_FILE", "TRUST"),
    )
)
"""What the library and the command line read; the service's own are its settings."""

_ELSEWHERE: Final = frozenset({"PULSE_IMAGE", "PULSE_PORT", "PULSE_TOKENS"})
"""Of docker-compose.yml and of the service: near to one of `READ`, or given to every process of a composition."""
# What Kubernetes gives each container for a service called pulse, or pulse-registry.
_KUBERNETES: Final = re.compile(
    r"PULSE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_[A-Z]+(_[A-Z]+)?)?)", re.ASCII
)
_NEAR: Final = 0.7


def strays(environment: Iterable[str], known: Collection[str]) -> dict[str, str | None]:
    """Return the names in an environment that begin as ours do and that nobody reads; of each the nearest that is read.

    None stands for no near one: it may be of another program, as PulseAudio's are.

    Args:
        environment: names of variables.
        known: those that are read.
    """
    suffixes = sorted(name.removeprefix(PREFIX) for name in known)
    found: dict[str, str | None] = {}
    for name in sorted(environment):
        if name.startswith(PREFIX) and not (name in known or name in _ELSEWHERE or _KUBERNETES.fullmatch(name)):
            near = get_close_matches(name.removeprefix(PREFIX), suffixes, 1, _NEAR)
            found[name] = f"{PREFIX}{near[0]}" if near else None
    return found
