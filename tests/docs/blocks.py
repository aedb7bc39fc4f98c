"""The fenced blocks of the documentation's pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPENING = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w-]*)(?: title=\"(?P<title>[^\"]*)\")?[^`]*$"
)
MARK = re.compile(r"^\s*<!--\s*(?P<word>test|skip:\s*\S.*?)\s*-->\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    ``line`` is its first line of code, counted from 1; ``mark`` the comment above it; ``title`` the file that it shows.
    """

    language: str
    line: int
    code: str
    mark: str
    title: str = ""

    @property
    def runs(self) -> bool:
        if self.mark.startswith("skip:"):
            return False
        return self.language == "python" or (self.language in {"console", "bash"} and self.mark == "test")


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text, in order."""
    found: list[Block] = []
    lines = text.splitlines()
    mark, number = "", 0
    while number < len(lines):
        if opening := OPENING.match(lines[number]):
            indent, fence = len(opening["indent"]), opening["fence"]
            start = number + 1
            end = start
            while end < len(lines) and not lines[end].strip().startswith(fence):
                end += 1
            if end == len(lines):
                raise ValueError(f"line {start}: a fenced block has no end")
            code = "\n".join(line[min(indent, len(line) - len(line.lstrip())) :] for line in lines[start:end])
            found.append(Block(opening["language"].lower(), start + 1, code + "\n", mark, opening["title"] or ""))
            mark, number = "", end
        elif comment := MARK.match(lines[number]):
            mark = comment["word"]
        elif lines[number].strip():
            mark = ""
        number += 1
    return found
