"""The task: sums of two numbers, whose answers can be checked. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

FORMAT_SHARE = 0.1
"""Reward for a completion that consists of numbers and signs alone; in proportion for one that does in part."""

_NUMBER = re.compile(r"\d+")
_PLAIN = frozenset("0123456789+=. ")


@dataclass(frozen=True, slots=True)
class Sum:
    """Two numbers to be added."""

    first: int
    second: int

    @property
    def answer(self) -> int:
        """Return what is right."""
        return self.first + self.second

    @property
    def question(self) -> str:
        """Return what is asked."""
        return f"What is {self.first} + {self.second}?"

    @property
    def reply(self) -> str:
        """Return a good answer."""
        return f"{self.first} + {self.second} = {self.answer}"


EXAMPLE = Sum(3, 9)


def sums(seed: int) -> Iterator[Sum]:
    """Yield sums without end, the same for the same seed, of a size that a small model gets right half the time."""
    source = random.Random(seed)
    while True:
        yield Sum(source.randint(3, 19), source.randint(3, 19))


def is_right(task: Sum, text: str) -> bool:
    """Tell whether a completion holds the right number."""
    return any(int(number) == task.answer for number in _NUMBER.findall(text))


def reward(task: Sum, text: str) -> float:
    """Return 1 for a right completion, and up to ``FORMAT_SHARE`` more for one without idle talk."""
    plain = sum(character in _PLAIN for character in text) / len(text) if text else 0.0
    return float(is_right(task, text)) + FORMAT_SHARE * plain
