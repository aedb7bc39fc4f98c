"""A target: one decoder, the inputs to begin with, and what must be true of every input.

A check returns whether the input was accepted. Refused is what raises the decoder's own error; any other exception, and
anything that the check finds wrong with what was accepted, is a defect.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

MEMORY = 64 << 20
"""Bytes by which one input may raise the process's peak; the largest valid value of any target takes a tenth of it."""
SECONDS = 1.0
"""CPU time that one input may take."""

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder under test.

    Attributes:
        name: on the command line and in reports.
        check: takes an input; True if it was accepted, False if it was refused as it should be.
        seeds: inputs made from real objects, most of them accepted.
        mutate: changes an input in a way that knows its structure; the same randomness, the same change.
        words: what an attacker would try to put in.
        max_len: longest input.
        tries: inputs that the suite tries; fewer where each takes long.
    """

    name: str
    check: Callable[[bytes], bool]
    seeds: tuple[bytes, ...]
    mutate: Mutate
    words: tuple[bytes, ...] = field(default=())
    max_len: int = 4096
    tries: int = 50


class Defect(AssertionError):
    """An input was accepted that must not be, or was decoded to something wrong."""


def expect(holds: bool, what: str) -> None:
    """Raise Defect unless it holds."""
    if not holds:
        raise Defect(what)
