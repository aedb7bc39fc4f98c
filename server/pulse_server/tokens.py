"""Tokens as they are kept: who may do what, and the SHA-256 of each secret, never the secret.

A token is ``pulse_<id>_<secret>``. Its secret is 256 random bits, so that a plain SHA-256 is as good as a slow hash:
there is no dictionary to try, and 2^256 guesses are too many however fast each is.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pulse_registry.errors import Conflict, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.log.names import fold
from pulse_registry.process.open_files import open_regular
from pulse_registry.process.private_files import NotOurs, hold_lock, release_lock
from pulse_schemas.api import Scope

FORMAT: Final = "pulse-tokens/1"
SCOPES: Final[dict[Scope, tuple[Scope, ...]]] = {
    "read": ("read",),
    "publish": ("read", "publish"),
    "mirror": ("read", "mirror"),
    "admin": ("read", "publish", "mirror", "admin"),
}
"""Each, with those that it includes."""

_TOKEN: Final = re.compile(r"pulse_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_LOCK_S: Final = 10.0
_MAX_BYTES: Final = 16 << 20
"""Of a tokens' file: of some forty thousand tokens."""
_logger = logging.getLogger(__name__)

Pattern = Annotated[str, Field(pattern=r"^[a-z0-9._*?-]{1,128}$", description="of run names; * and ? stand for any")]


class TokenEntry(BaseModel):
    """A token as it is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$", description="whose it is, for logs")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the secret, lower-case hex")]
    scope: Scope
    runs: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    def scopes(self) -> tuple[Scope, ...]:
        """Return the token's scope and those that it includes."""
        return SCOPES[self.scope]


class TokenSet(BaseModel):
    """All tokens of a service: the document that the tokens' file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["pulse-tokens/1"] = FORMAT
    tokens: tuple[TokenEntry, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        if len({entry.id for entry in self.tokens}) != len(self.tokens):
            raise ValueError("two tokens have the same id")
        return self

    @classmethod
    def parse(cls, data: bytes, origin: str) -> Self:
        """Read a tokens' document; ``origin`` is where it comes from, for messages.

        Raises:
            InvalidArgument: it is none.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, found["loc"])) or "document"
            raise InvalidArgument(f"{origin} is no tokens' file: {where}: {found['msg']}") from None

    def document(self) -> bytes:
        """Return the document's bytes, made for people to read."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def new_token(
    name: str, scope: str, runs: tuple[str, ...], *, now: datetime, expires_at: datetime | None = None
) -> tuple[str, TokenEntry]:
    """Return a new token, and the entry to keep in its place.

    Raises:
        InvalidArgument: a name, a scope or a pattern is not valid.
    """
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    entry = {
        "id": token_id,
        "name": name,
        "sha256": secret_hash(secret),
        "scope": scope,
        "runs": tuple(map(fold, runs)),
    }
    try:
        made = TokenEntry.model_validate(entry | {"created_at": now, "expires_at": expires_at})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise InvalidArgument(f"no such token can be made: {found['loc'][0]}: {found['msg']}") from None
    return f"pulse_{token_id}_{secret}", made


def split_token(token: str) -> tuple[str, str] | None:
    """Return a token's id and secret, or None where it has not the form of one."""
    match = _TOKEN.fullmatch(token)
    return None if match is None else (match[1], match[2])


def secret_hash(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenIndex:
    """Finds a token's entry. A wrong secret and an unknown id take the same way, to the same answer."""

    def __init__(self, tokens: TokenSet) -> None:
        """Index a set of tokens."""
        self._by_id = {entry.id: entry for entry in tokens.tokens}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, token: str) -> TokenEntry | None:
        """Return the entry of a token, None if it is no good; expiry is for the caller to look at."""
        parts = split_token(token)
        if parts is None:
            return None
        entry = self._by_id.get(parts[0])
        kept = entry.sha256 if entry is not None else "0" * 64
        same = hmac.compare_digest(secret_hash(parts[1]), kept)
        return entry if same and entry is not None else None


class TokenFile:
    """The file that holds the tokens. Changes are atomic, one at a time; the file is its owner's alone (0600)."""

    def __init__(self, path: Path) -> None:
        """Name the file; it need not be there yet."""
        self.path = path

    def read(self) -> TokenSet:
        """Return the tokens in the file; where others may write it, that is logged as a warning.

        Raises:
            NotFound: there is no such file.
            InvalidArgument: it holds something else.
            StoreUnavailable: it can't be read.
        """
        try:
            with open_regular(self.path) as file:
                found = os.fstat(file.fileno())
                if found.st_size > _MAX_BYTES:
                    raise InvalidArgument(f"{self.path} is no tokens' file: it has {found.st_size} bytes")
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            raise NotFound(f"there is no tokens' file {self.path}: make a token with `pulse token new`") from None
        except OSError as error:
            raise StoreUnavailable(f"the tokens' file {self.path} can't be read: {error.strerror}") from error
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            _logger.warning(
                "the tokens' file %s may be written by others than this user (owner %d, mode %04o): whoever writes it "
                "can give himself any token",
                self.path,
                found.st_uid,
                stat.S_IMODE(found.st_mode),
            )
        return TokenSet.parse(data, str(self.path))

    def add(self, entry: TokenEntry) -> None:
        """Put a token's entry into the file, which is made if need be.

        Raises:
            InvalidArgument: the file holds something else.
            Conflict, StoreUnavailable: it can't be changed now.
        """
        with self._locked():
            tokens = self.read().tokens if self.path.exists() else ()
            self._replace(TokenSet(tokens=(*tokens, entry)))

    def remove(self, token_id: str) -> TokenEntry:
        """Take a token's entry out of the file and return it.

        Raises:
            NotFound: there is no such token, or no such file.
            InvalidArgument: the file holds something else.
            Conflict, StoreUnavailable: it can't be changed now.
        """
        with self._locked():
            tokens = self.read().tokens
            gone = next((entry for entry in tokens if entry.id == token_id), None)
            if gone is None:
                raise NotFound(f"there is no token {token_id!r} in {self.path}: see `pulse token list`")
            self._replace(TokenSet(tokens=tuple(entry for entry in tokens if entry.id != token_id)))
            return gone

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            held = hold_lock(lock, _LOCK_S)
            if held is None:
                raise Conflict(f"somebody else is changing {self.path}: try again")
            try:
                yield
            finally:
                release_lock(held)
        except NotOurs as error:
            raise InvalidArgument(f"{lock}: {error.strerror}; remove it, or keep the tokens elsewhere") from None
        except OSError as error:
            raise StoreUnavailable(f"the tokens' file {self.path} can't be written: {error.strerror}") from error

    def _replace(self, tokens: TokenSet) -> None:
        # mkstemp makes files that are their owner's alone.
        descriptor, beside = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(tokens.document())
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
