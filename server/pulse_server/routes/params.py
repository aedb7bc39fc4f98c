"""The parameters of requests: each is declared once, and that both reads it and tells of it in OpenAPI.

Handlers read what they need by hand: on the routes that hundreds of workers ask, a framework's own parsing would cost
more than the answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_registry.store.keys import check_key
from pulse_schemas import faults
from pulse_server.errors import InvalidRequest

Body = TypeVar("Body", bound=BaseModel)
MAX_NUMBER: Final = 10**12 - 1
"""The highest number of a version or a record."""

_MAX_VALUES: Final = 2_000
"""Of a JSON body, about: 1,000 keys are the most that most requests have."""
SHORT_BODY: Final = 32 << 10
"""A longer one is read in a thread: the event loop has others to answer."""

_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_WRITE_ID: Final = r"[0-9a-f]{32}"
_OBJECT: Final = re.compile(
    rf"objects/(patch/[0-9]{{12}}-[0-9]{{12}}-{_WRITE_ID}\.safetensors"
    rf"|keyframe/[0-9]{{12}}-{_WRITE_ID}/[A-Za-z0-9][A-Za-z0-9._-]{{0,127}})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path, or of the query, that is text; it matches ``pattern`` as a whole."""

    name: str
    description: str
    pattern: re.Pattern[str]
    example: str
    place: str = "path"
    required: bool = True
    stored: Callable[[str], str] = str
    """Makes of what is given what is stored."""

    def __call__(self, request: Request) -> str:
        """Return its value; "" for one that is not required and not there.

        Raises:
            InvalidRequest: it is not there, or is not as it must be (422).
        """
        given = request.path_params if self.place == "path" else query_of(request)
        value: str | None = given.get(self.name)
        if value is None and not self.required:
            return ""
        if value is None or self.pattern.fullmatch(value) is None:
            raise _invalid(f"{self.name}: {_shown(value)} is not {self.description}")
        return self.stored(value)

    def told(self) -> dict[str, Any]:
        """Return the parameter as OpenAPI has it."""
        return {
            "name": self.name,
            "in": self.place,
            "required": self.required,
            "description": self.description,
            "schema": {"type": "string", "pattern": f"^({self.pattern.pattern})$"},
            "example": self.example,
        }


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in the query, within bounds; ``default`` where it is not there."""

    name: str
    description: str
    example: int
    default: int | None = None
    low: int = 0
    high: int = MAX_NUMBER
    required: bool = False

    def __call__(self, request: Request) -> int | None:
        """Return its value, or the default.

        Raises:
            InvalidRequest: it is no such number (422).
        """
        value = query_of(request).get(self.name)
        if value is None:
            if self.required:
                raise _invalid(f"{self.name}: it is needed: {self.description}")
            return self.default
        return self.read(value)

    def read(self, value: str) -> int:
        """Return the number that a text is.

        Raises:
            InvalidRequest: it is no such number (422).
        """
        if _DECIMAL.fullmatch(value) is None or not self.low <= int(value) <= self.high:
            raise _invalid(f"{self.name}: {_shown(value)} is no whole number from {self.low} to {self.high}")
        return int(value)

    def told(self) -> dict[str, Any]:
        """Return the parameter as OpenAPI has it."""
        schema: dict[str, Any] = {"type": "integer", "minimum": self.low, "maximum": self.high}
        if self.default is not None:
            schema["default"] = self.default
        return {
            "name": self.name,
            "in": "query",
            "required": self.required,
            "description": self.description,
            "schema": schema,
            "example": self.example,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words in the query; ``default`` where it is not there."""

    name: str
    description: str
    choices: tuple[str, ...]
    default: str | None = None
    boolean: bool = field(default=False)

    def __call__(self, request: Request) -> str | None:
        """Return its value, or the default.

        Raises:
            InvalidRequest: it is none of them (422).
        """
        value = query_of(request).get(self.name, self.default)
        if value is not None and value not in self.choices:
            raise _invalid(f"{self.name}: {_shown(value)} is none of {', '.join(self.choices)}")
        return value

    def told(self) -> dict[str, Any]:
        """Return the parameter as OpenAPI has it."""
        schema: dict[str, Any] = {"type": "boolean"} if self.boolean else {"type": "string", "enum": list(self.choices)}
        if self.default is not None:
            schema["default"] = self.default == "true" if self.boolean else self.default
        return {
            "name": self.name,
            "in": "query",
            "required": False,
            "description": self.description,
            "schema": schema,
        }


def query_of(request: Request) -> Mapping[str, str]:
    """Return a request's query; of a name that comes twice, the last."""
    query: bytes = request.scope["query_string"]
    return _SHORT(query) if len(query) <= _SHORT_QUERY else _parsed(query)


def _parsed(query: bytes) -> Mapping[str, str]:
    if len(query) > _MAX_QUERY:
        raise _invalid(f"the query is longer than {_MAX_QUERY:,} bytes")
    try:
        return MappingProxyType(
            dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        )
    except ValueError as error:
        raise _invalid(f"the query can't be read: {error}") from None


# Hundreds of workers ask the same thing, in the same words.
_SHORT_QUERY: Final = 256
_MAX_QUERY, _MAX_FIELDS = 8 << 10, 64
_SHORT: Final = lru_cache(maxsize=4096)(_parsed)

AnyParameter = Parameter | Whole | Choice


def object_key(path: str) -> str:
    """Return the key, below its run, of the object that a request's path names.

    Raises:
        InvalidArgument: it is no key that a writer of the registry makes.
    """
    return checked_key(keys.OBJECTS + path)


def checked_key(key: str) -> str:
    """Return a key of an object, below its run, if it is one that a writer of the registry makes.

    Raises:
        InvalidArgument: it is not.
    """
    check_key(key)
    if not keys.is_object_key(key) or _OBJECT.fullmatch(key) is None:
        raise InvalidArgument(
            f"{_shown(key)} is no object's key: objects/patch/<base>-<target>-<write id>.safetensors or "
            "objects/keyframe/<version>-<write id>/<file>"
        )
    return key


async def body_of(request: Request, model: type[Body], *, max_values: int = _MAX_VALUES) -> Body:
    """Return a request's JSON body, of ``max_values`` values at most.

    Raises:
        InvalidRequest: it is not such a document (422).
    """
    data = await request.body()
    if data.count(b",") >= max_values:  # beside a thread that validates a million of them, nothing else runs
        raise _invalid(f"body: more than {max_values:,} values")
    try:
        if len(data) <= SHORT_BODY:
            return model.model_validate_json(data)
        return await asyncio.to_thread(model.model_validate_json, data)
    except ValidationError as error:
        raise _invalid(faults(error, "body")) from None


def _invalid(detail: str) -> InvalidRequest:
    return InvalidRequest(detail, HTTPStatus.UNPROCESSABLE_ENTITY)


def _shown(value: str | None) -> str:
    return "nothing" if value is None else ascii(value) if len(value) <= 80 else f"{value[:77]!a}..."
