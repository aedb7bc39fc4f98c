"""What others wrote, in our messages: a line at most, and nothing in it that a terminal or a log would act upon."""

from __future__ import annotations

import reprlib
from typing import Any

_LIMIT = 200
"""Characters of a quotation."""


def quoted(value: Any) -> str:
    """Return a name, or another value that somebody else wrote, as a message shows it: as Python writes it, and cut.

    Only as much of it is looked at as is shown.
    """
    text = _QUOTE.repr(value)
    return text if len(text) <= _LIMIT else f"{text[: _LIMIT - 3]}..."


_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = _QUOTE.maxlong = 120
_QUOTE.maxlist = _QUOTE.maxtuple = _QUOTE.maxdict = 12
