"""Log lines: one for each request, and none that holds a token or a signed URL.

An access line has the method, the route's template, the run, the status, the time and the token's name: no path, no
query, no header. Any other line passes a filter that blots out what looks like a token or a signature.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse_registry.log.names import RUN_NAME
from pulse_registry.quoting import Lines, cut, json_text, printable
from pulse_server.auth.access import PRINCIPAL, Principal
from pulse_server.settings import Settings
from pulse_server.telemetry.log_queue import LogQueue
from pulse_server.telemetry.metrics import route_of

ACCESS: Final = "pulse_server.auth.access"
QUIET: Final = ("httpx", "httpcore", "botocore", "aiobotocore", "boto3", "s3fs", "urllib3", "asyncio")
_SECRETS: Final = re.compile(
    r"(?P<token>pulse_[0-9a-f]{12}_)[A-Za-z0-9_-]{43}"
    r"|(?P<bearer>bearer\s+)[^\s'\",]{16,}"
    r"|(?P<signed>(?:x-amz-(?:signature|credential|security-token)|awsaccesskeyid|signature)=)[^&\s'\"<>)]+",
    re.IGNORECASE,
)


def configure(settings: Settings) -> None:
    """Make this process log to stderr, by a thread of its own, in the form that the settings say.

    For the process's own edge, not for tests. `flush` waits for what was logged, and so does the end of Python.
    """
    # Nothing prints these, and to find them out costs more than the rest of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = LogQueue(sys.stderr, JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for name in QUIET:  # some of them log whole URLs at INFO
        logging.getLogger(name).setLevel(logging.WARNING)


def flush() -> None:
    """Wait, not for long, until what was logged so far is written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def redacted(text: str) -> str:
    """Return a text without the secrets of tokens and the signatures of URLs."""
    return _SECRETS.sub(lambda m: f"{m['token'] or m['bearer'] or m['signed']}***", text)


class TextLines(Lines):
    """Lines for people: none looks like another record, whatever names and paths there are in it."""

    def __init__(self) -> None:
        super().__init__(redact=redacted)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line; a traceback adds its own."""
        head = f"{_time(record)} {record.levelname} {record.name}: "
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        return head + (printable(" ".join(map(str, fields.values()))) if fields else super().format(record))


class JsonLines(logging.Formatter):
    """A JSON document a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        document: dict[str, Any] = {"time": _time(record), "level": record.levelname, "logger": record.name}
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields:
            return json_text(document | fields)
        document["message"] = cut(redacted(record.getMessage()))
        if record.exc_info:
            document["traceback"] = redacted(self.formatException(record.exc_info))
        return json_text(document, default=str)


def install(app: FastAPI, settings: Settings) -> None:
    """Log each of the app's requests, unless the settings say not to."""
    if settings.access_log:
        app.add_middleware(AccessLog)


class AccessLog:
    """The middleware; install it last, so that it sees what the others refuse."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app
        self._logger = logging.getLogger(ACCESS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and log it when it has been answered."""
        if scope["type"] != "http" or not self._logger.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        status, began = 500, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            # A record made by hand: at thousands a second, to look up who called the logger is what costs.
            record = logging.LogRecord(ACCESS, logging.INFO, __file__, 0, "request", None, None)
            record.fields = _fields(scope, status, time.perf_counter() - began)
            self._logger.handle(record)


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    run = scope.get("path_params", {}).get("run", "")
    who = scope.get(PRINCIPAL)
    return {
        "method": scope["method"],
        "route": route_of(scope),
        "run": run if RUN_NAME.fullmatch(run) else "-",
        "status": status,
        "ms": round(seconds * 1000, 1),
        "token": who.name if isinstance(who, Principal) else "-",
    }


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
