"""Authorization of requests: a bearer token becomes a Principal, and a route says which scope it needs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from fastapi import Request

from pulse_registry.errors import AccessDenied, InvalidArgument, PulseError
from pulse_registry.log.clock import Clock, timestamp, utc_now
from pulse_registry.log.names import run_name
from pulse_schemas.api import Scope
from pulse_server.errors import Unauthenticated
from pulse_server.settings import Settings
from pulse_server.tokens import SCOPES, TokenEntry, TokenFile, TokenIndex, TokenSet

PRINCIPAL: Final = "pulse.principal"
"""Where a request's scope keeps its Principal, or the refusal, once it is known."""

_LOOK_EVERY_S: Final = 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose token a request has, and what it allows. ``scopes`` holds the scopes that are included, too.

    Attributes:
        id: the token's id; "" where nobody needs a token.
        name: whose token it is, for logs.
        scopes: what may be done.
        runs: patterns of the names of runs it may be done to.
        expires_at: UTC, as bodies say it; None: never.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    runs: tuple[str, ...]
    expires_at: str | None = None
    _match: Callable[[str], object] = field(repr=False, compare=False, default=lambda run: None)

    @classmethod
    def of(cls, entry: TokenEntry) -> Principal:
        """Return who has this token."""
        expires_at = None if entry.expires_at is None else timestamp(entry.expires_at)
        return cls(entry.id, entry.name, entry.scopes(), entry.runs, expires_at, _matcher(entry.runs))

    def may(self, scope: Scope, run: str | None = None) -> bool:
        """Tell whether the token has a scope; with ``run``, whether it does for that run."""
        return scope in self.scopes and (run is None or self._match(run) is not None)

    def check(self, scope: Scope, run: str | None = None) -> None:
        """Check that the token has a scope, for a run if one is given.

        Raises:
            AccessDenied: it has not. Whether there is such a run shows in nothing.
        """
        if scope not in self.scopes:
            raise AccessDenied(f"the token {self.name!r} has no scope {scope!r}: it needs another one")
        if run is not None and self._match(run) is None:
            raise AccessDenied(f"the token {self.name!r} is not for the run {run!r}")


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    # What a star has taken stays taken: with several of them, a name chosen for it would be matched for hours.
    match = re.compile("|".join(map(translate, patterns))).fullmatch
    return lru_cache(maxsize=1024)(match)


ANYBODY: Final = Principal("", "anybody", SCOPES["admin"], ("*",), None, _matcher(("*",)))
"""Who asks a service that is open to all."""


class Guard:
    """Tells whose token a request has. The tokens' file is read again when it changes, within a second."""

    def __init__(
        self, settings: Settings, *, now: Clock = utc_now, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the tokens.

        Raises:
            InvalidArgument: there are none, and the service is not open to all; or the tokens' file is damaged.
            NotFound, StoreUnavailable: the tokens' file can't be read.
        """
        self._open = settings.insecure_open
        self._now, self._monotonic = now, monotonic
        self._file = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
        if self._open:
            self._file = None
        elif self._file is None and settings.tokens is None:
            raise InvalidArgument(
                "no tokens: all requests would be refused. Give it some (`pulse token new --file tokens.json`, then "
                "`--tokens tokens.json`), or, for this machine alone, --insecure-open"
            )
        self._seen: object = None if self._file is None else _stamp(self._file.path)
        self._looked = monotonic()
        self._take((self._file.read() if self._file is not None else settings.tokens) or TokenSet())

    def identify(self, scope: Any) -> Principal:
        """Return whose request this is, from its ASGI scope; the scope remembers the answer.

        Raises:
            Unauthenticated: there is no token, or it is wrong or expired.
        """
        known = scope.get(PRINCIPAL)
        if known is None:
            try:
                known = self._identify(scope)
            except Unauthenticated as refusal:
                known = refusal
            scope[PRINCIPAL] = known
        if isinstance(known, Unauthenticated):
            raise known
        principal: Principal = known
        return principal

    def identify_again(self, scope: Any) -> Principal:
        """Return whose request this is by the tokens as they are now, for one that has been answered for a while.

        Raises:
            Unauthenticated: the token was revoked, or has expired since.
        """
        return self._identify(scope)

    def _identify(self, scope: Any) -> Principal:
        if self._open:
            return ANYBODY
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given:
            raise Unauthenticated("this needs a token: Authorization: Bearer pulse_...")
        kind, _, token = given[0].decode("latin-1").partition(" ")
        if len(given) > 1 or kind.lower() != "bearer":
            raise Unauthenticated("the Authorization header is not that of one bearer token")
        self._look()
        entry = self._index.find(token.strip())
        if entry is None:
            raise Unauthenticated("the token is not known here")
        principal, expires_at = self._principals[entry.id]
        if expires_at is not None and expires_at <= self._now():
            raise Unauthenticated(f"the token expired at {principal.expires_at}")
        return principal

    def _take(self, tokens: TokenSet) -> None:
        self._index = TokenIndex(tokens)
        self._principals: dict[str, tuple[Principal, datetime | None]] = {
            entry.id: (Principal.of(entry), entry.expires_at) for entry in tokens.tokens
        }

    def _look(self) -> None:
        """Take up a changed file; one that can't be read leaves the tokens as they are."""
        moment = self._monotonic()
        if self._file is None or moment - self._looked < _LOOK_EVERY_S:
            return
        self._looked = moment
        stamp = _stamp(self._file.path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._take(self._file.read())
        except PulseError as error:
            logger.error("the tokens stay as they were: %s", error)
        else:
            logger.info("read %d tokens from %s", len(self._index), self._file.path)


class Requirement:
    """A scope that a route needs, of a route of a run for that run: ``Requirement("read").check(request)``."""

    def __init__(self, scope: Scope | None) -> None:
        """Say which scope; None: any good token will do."""
        self.scope: Scope | None = scope

    def check(self, request: Request) -> Principal:
        """Return whose request this is, if it may make it. The name of the run is checked, too.

        Raises:
            Unauthenticated: there is no good token.
            InvalidArgument: the run's name is no name; capitals are made small from here on.
            AccessDenied: the token does not allow it.
        """
        guard: Guard = request.app.state.guard
        principal = guard.identify(request.scope)
        run: str | None = request.scope["path_params"].get("run")
        if run is not None:
            run = request.scope["path_params"]["run"] = run_name(run)
        if self.scope is not None:
            principal.check(self.scope, run)
        return principal

    def check_again(self, request: Request) -> Principal:
        """Check a request that has waited by the tokens as they are now, and return whose it is.

        Raises:
            Unauthenticated: its token was revoked, or has expired meanwhile.
            AccessDenied: it does not allow the request any more.
        """
        guard: Guard = request.app.state.guard
        principal = guard.identify_again(request.scope)
        if self.scope is not None:
            principal.check(self.scope, request.scope["path_params"].get("run"))
        return principal

    def holds(self, request: Request) -> bool:
        """Tell whether `check_again` would let a request go on."""
        try:
            self.check_again(request)
        except AccessDenied:
            return False
        return True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
