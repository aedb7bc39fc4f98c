"""Environment variables: all that the library and the command line read, in one table, and the one place to read them.

Names that begin as ours do and that nobody reads are misspelt ones, and told. The service's own are its settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "PULSE_"


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable.

    Attributes:
        name: of the variable.
        meaning: what it says, for the documentation.
        default: what holds without it; so it does where it is empty.
    """

    name: str
    meaning: str
    default: str

    def read(self) -> str | None:
        """Return its value; None where it is not set, or empty."""
        return os.environ.get(self.name) or None


ROOT: Final = Variable(
    "PULSE_ROOT",
    "the registry that commands work on: a folder, or a URL; several with commas, the nearest first",
    "none: `--root`",
)
RUN: Final = Variable("PULSE_RUN", "the run that commands work on", "none: `--run`")
TOKEN: Final = Variable("PULSE_TOKEN", "the token for a service", "none")
COPY_TOKEN: Final = Variable("PULSE_COPY_TOKEN", "the token for the service that `pulse mirror` writes to", "none")
ALLOW_HTTP: Final = Variable("PULSE_ALLOW_HTTP", "1 lets a token go over `http://` to another machine", "0")
SIGNING_KEY: Final = Variable(
    "PULSE_SIGNING_KEY", "the file of the key that signs what is written", "nothing is signed"
)
TRUST: Final = Variable("PULSE_TRUST", "pinned public keys, with spaces between", "the store is believed")
STATE_DIR: Final = Variable(
    "PULSE_STATE_DIR", "the folder that keeps what was seen of signed runs", "`$XDG_STATE_HOME/pulse-registry`"
)
CACHE: Final = Variable("PULSE_CACHE", "the folder in which the processes of a host share what they fetch", "none")
CACHE_BYTES: Final = Variable("PULSE_CACHE_BYTES", "what that folder takes at most, in bytes", "half of its disk")
ENGINE_TOKEN: Final = Variable("PULSE_ENGINE_TOKEN", "the API key of the engine that `pulse follow` changes", "none")
SPOOL: Final = Variable("PULSE_SPOOL", "the folder for keyframes on their way, or `:memory:`", "memory, or a folder")
TOKENS_FILE: Final = Variable("PULSE_TOKENS_FILE", "the service's tokens, for `pulse token`", "`tokens.json`")
VLLM_CPU: Final = Variable(
    "PULSE_VLLM_CPU", "`unpacked` lets vLLM on CPUs read live weights in its linear layers and experts", "it packs them"
)
DEBUG: Final = Variable("PULSE_DEBUG", "1 shows the traceback of an unexpected error", "0")
XDG_STATE_HOME: Final = Variable("XDG_STATE_HOME", "the user's folder for state", "`~/.local/state`")
TMPDIR: Final = Variable("TMPDIR", "the folder for temporary files", "the system's; `/var/tmp` if that is in RAM")
TEMP: Final = Variable("TEMP", "as `TMPDIR`, after it", "none")
TMP: Final = Variable("TMP", "as `TMPDIR`, after both", "none")

VARIABLES: Final = (
    *(ROOT, RUN, TOKEN, ALLOW_HTTP, SIGNING_KEY, TRUST, STATE_DIR, CACHE, CACHE_BYTES, SPOOL, TOKENS_FILE, DEBUG),
    *(COPY_TOKEN, ENGINE_TOKEN, VLLM_CPU, XDG_STATE_HOME, TMPDIR, TEMP, TMP),
)
"""What the library and the command line read, but for proxies (`process.proxies`) and what the SDKs of stores read."""
READ: Final = frozenset(variable.name for variable in VARIABLES if variable.name.startswith(PREFIX))

_ELSEWHERE: Final = frozenset({"PULSE_IMAGE", "PULSE_PORT", "PULSE_TOKENS"})
"""Of docker-compose.yml and of the service: near to one of `READ`, or given to every process of a composition."""
# What Kubernetes gives each container for a service called pulse, or pulse-registry.
_KUBERNETES: Final = re.compile(
    r"PULSE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_[A-Z]+(_[A-Z]+)?)?)", re.ASCII
)
_NEAR: Final = 0.7


def names() -> list[str]:
    """Return the names of all variables that are set."""
    return list(os.environ)


def without(variables: Iterable[Variable]) -> dict[str, str]:
    """Return this process's environment but for some variables, for a child that is not to know them."""
    hidden = {variable.name for variable in variables}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def is_filled(name: str) -> bool:
    """Return whether a variable is set and not empty."""
    return bool(os.environ.get(name))


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
