"""Quoting of untrusted text in messages: cut to a length, and escaped so that no terminal or log acts upon it.

Names, metadata and messages come from stores, files, tokens and requests. In messages they are ``quoted``; whatever is
printed, or logged as text, is made ``printable`` where it leaves, so that no caller has to think of it.
"""

from __future__ import annotations

import json
import logging
import reprlib
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

MESSAGE_LIMIT = 8_000
"""Characters of a message that are shown."""
_QUOTE_LIMIT = 200
_TAIL = 1_000
_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def quoted(value: Any) -> str:
    """Return a name, or another value that somebody else wrote, as a message shows it: as Python writes it, and cut.

    Only as much of it is looked at as is shown.
    """
    text = _QUOTE.repr(value)
    return text if len(text) <= _QUOTE_LIMIT else f"{text[: _QUOTE_LIMIT - 3]}..."


_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = _QUOTE.maxlong = 120
_QUOTE.maxlist = _QUOTE.maxtuple = _QUOTE.maxdict = 12


def printable(text: str, encoding: str | None = None) -> str:
    """Return a text on one line, in which whatever is not to be seen is escaped, as Python does it.

    That is: control characters (of C0 and C1, DEL, ends of lines), what turns the direction of writing, separators but
    for the space, halves of letters, what Unicode has not assigned; and what ``encoding``, if given, does not have.
    """
    if not text.isprintable():
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
        )
    return text if encoding is None else text.encode(encoding, "backslashreplace").decode(encoding)


def say(line: str, *, error: bool = False, flush: bool = False) -> None:
    """Print one line to stdout, or to stderr; what is in it that can't be seen is escaped."""
    stream = sys.stderr if error else sys.stdout
    print(printable(line, stream.encoding), file=stream, flush=flush)


def cut(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return a text, without its middle where it is longer than ``limit``: its end often says what to do."""
    if len(text) <= limit:
        return text
    left_out = len(text) - limit
    return f"{text[: limit - _TAIL]} [... {left_out:,} characters left out ...] {text[-_TAIL:]}"


def one_line(message: str) -> str:
    """Return a message as a line that can be printed and logged, of little more than ``MESSAGE_LIMIT`` characters."""
    return cut(printable(cut(message)))  # before, for what it takes; and since what is escaped is longer


def json_text(document: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a JSON document in printable ASCII, on one line: exact, and nothing to a terminal; as ``json.dumps``."""
    return json.dumps(document, default=default).replace("\x7f", "\\u007f")


class Lines(logging.Formatter):
    """Log records as text: each a line of its own, and no line looks like a record that is none.

    A traceback's lines are set in by two spaces. ``redact`` sees each text whole, before it is cut and escaped.
    """

    def __init__(self, fmt: str | None = None, redact: Callable[[str], str] = str) -> None:
        super().__init__(fmt)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        # Another handler's formatter may have left a traceback there, as it is.
        others, record.exc_text = record.exc_text, None
        if others and not record.exc_info:
            record.exc_text = self._set_in(others)
        try:
            return super().format(record)
        finally:
            record.exc_text = others

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return a record's line."""
        return self._line(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - logging's name
        """Return a traceback."""
        return self._set_in(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        """Return a stack."""
        return self._set_in(super().formatStack(stack_info))

    def _set_in(self, text: str) -> str:
        return "\n".join(f"  {self._line(line)}" for line in text.split("\n"))

    def _line(self, text: str) -> str:
        return one_line(self._redact(text))
