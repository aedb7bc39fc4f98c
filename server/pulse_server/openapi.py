"""Writes the API's description (OpenAPI 3.1) to a file: ``python -m pulse_server.openapi FILE``.

Without FILE, to schemas/openapi.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pulse_server.app import create_app
from pulse_server.settings import Settings

FILE: Final = Path("schemas/openapi.json")


def document() -> dict[str, Any]:
    """Return the description of all operations; the same document on every call."""
    return create_app(Settings.read(root="memory://openapi", insecure_open=True)).openapi()


def text() -> str:
    """Return the description as it is kept in schemas/openapi.json."""
    return json.dumps(document(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the description to the one file named, or to its own place; return the exit status."""
    if len(arguments) > 1:
        print("usage: python -m pulse_server.openapi [FILE]", file=sys.stderr)
        return 2
    (Path(arguments[0]) if arguments else FILE).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
