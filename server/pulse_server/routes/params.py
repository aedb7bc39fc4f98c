"""The parameters of path and query: each is an annotated type, which both reads it and tells of it in OpenAPI."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import Body, Path, Query
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_registry.log.names import GIVEN_RUN_NAME
from pulse_registry.store.keys import check_key
from pulse_schemas import base_of
from pulse_server.errors import shown, unprocessable
from pulse_server.routes import examples

MAX_NUMBER: Final = 10**12 - 1
"""The highest number of a version or a record."""

NUMBER: Final = r"0|[1-9][0-9]{0,11}"
"""The pattern of a number in a path."""

_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_WRITE_ID: Final = r"[0-9a-f]{32}"
_OBJECT: Final = re.compile(
    rf"objects/(patch/[0-9]{{12}}-[0-9]{{12}}-{_WRITE_ID}(\.safetensors|/patch-head|/[0-9]{{5}})"
    rf"|keyframe/[0-9]{{12}}-{_WRITE_ID}/[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}|files/[0-9a-f]{{64}})",
    re.ASCII,
)
_OUTER_OBJECT: Final = re.compile(
    rf"outer/objects/((contribution/[0-9]{{12}}-[a-z0-9][a-z0-9._-]{{0,63}}|merged/[0-9]{{12}})-{_WRITE_ID}\.safetensors"
    rf"|checkpoint/[0-9]{{12}}-{_WRITE_ID}/(checkpoint-head|[0-9]{{7}}))",
    re.ASCII,
)


def segment(description: str, pattern: str, example: str, *, alias: str | None = None) -> Any:
    """Return what a part of the path is; it matches ``pattern`` as a whole."""
    return Path(description=description, pattern=f"^({pattern})$", examples=[example], alias=alias)


def text(description: str, pattern: str, example: str) -> Any:
    """Return what a text in the query is; it matches ``pattern`` as a whole."""
    return Query(description=description, pattern=f"^({pattern})$", examples=[example])


def whole(description: str, example: int, *, alias: str | None = None) -> Any:
    """Return what a whole number in the query is."""
    return Query(description=description, examples=[example], alias=alias)


def between(low: int, high: int) -> Any:
    """Return the bounds of a number; they come before what says how it is written."""
    return Field(ge=low, le=high)


def document(example: BaseModel) -> Any:
    """Return what a JSON body is, by example."""
    return Body(examples=[example.model_dump(mode="json")])


def read_whole(name: str, value: str, low: int, high: int = MAX_NUMBER) -> int:
    """Return the number that a text is.

    Raises:
        InvalidRequest: it is no such number (422).
    """
    if _DECIMAL.fullmatch(value) is None or not low <= int(value) <= high:
        raise unprocessable(f"{name}: {shown(value)} is no whole number from {low} to {high}")
    return int(value)


def _decimal(value: object) -> object:
    """Take a number as it is written here: "07", "1_000" and " 1" are none."""
    if not isinstance(value, str) or _DECIMAL.fullmatch(value) is not None:
        return value
    raise PydanticCustomError("whole_number", "it is no whole number")


def _boolean(value: object) -> object:
    if isinstance(value, bool) or value in ("true", "false"):
        return value == "true" if isinstance(value, str) else value
    raise PydanticCustomError("true_or_false", "it is neither true nor false")


DECIMAL: Final = BeforeValidator(_decimal)
Number = Annotated[int, between(0, MAX_NUMBER), DECIMAL]
"""Of a version or a record."""
Before = Annotated[int, between(-1, MAX_NUMBER), DECIMAL]
"""A version, or -1, which is before them all."""
Wait = Annotated[int, between(0, 86_400), DECIMAL]
"""In seconds."""
Boolean = Annotated[bool, BeforeValidator(_boolean)]

RunName = Annotated[str, segment("the run's name", GIVEN_RUN_NAME.pattern, examples.RUN)]
LayoutId = Annotated[str, segment("the layout's id", "[0-9a-f]{64}", examples.LAYOUT, alias="id")]
Seq = Annotated[str, segment("a number of a record", NUMBER, "43")]
ObjectPath = Annotated[str, segment("an object's key without objects/", ".+", examples.PATCH.removeprefix("objects/"))]
SegmentName = Annotated[
    str, segment("a segment's key without log/segments/", "[0-9]{12}-[0-9a-f]{64}[.]safetensors", examples.SEGMENT)
]
BaseName = Annotated[str, segment("the shared base's id", "[0-9a-f]{64}-[0-9]{4}", examples.BASE, alias="base")]
BaseFile = Annotated[str, segment("the name of its file", "[A-Za-z0-9._-]{1,250}", "model.safetensors.index.json")]
OuterObjectPath = Annotated[
    str,
    segment("an object's key without outer/objects/", ".+", examples.CONTRIBUTION.removeprefix("outer/objects/")),
]


def waiting(what: str) -> Any:
    """Return what the parameter is that says how long to wait."""
    return whole(f"how many seconds to wait for {what}; at most what the service allows", 30)


def object_key(path: str) -> str:
    """Return the key, below its run, of the object that a request's path names.

    Raises:
        InvalidArgument: it is no key that a writer of the registry makes.
    """
    return checked_key(keys.OBJECTS + path)


def outer_object_key(path: str) -> str:
    """Return the key, below its run, of the object of outer rounds that a request's path names.

    Raises:
        InvalidArgument: it is no key that a member of outer rounds makes.
    """
    key = f"{keys.OUTER}{keys.OBJECTS}{path}"
    if not is_outer(checked_key(key)):
        raise InvalidArgument(f"{shown(key)} is no object's key")
    return key


def readable_key(key: str) -> str:
    """Return a key, as a run knows it, of what readers get by URL: an object, a segment, or a shared base's file.

    Raises:
        InvalidArgument: it is none of these.
    """
    return key if keys.segment_of(key) is not None or base_of(key) is not None else checked_key(key)


def base_file_key(base: str, name: str) -> str:
    """Return the key of the shared base's file that a request's path names.

    Raises:
        InvalidArgument: it is no such file's.
    """
    key = keys.base_key(base, name)
    if base_of(key) is None:
        raise InvalidArgument(f"{shown(key)} is no file of a shared base: _bases/<id>/<file>")
    return key


def segment_key(name: str) -> str:
    """Return the key of the segment that a request's path names.

    Raises:
        InvalidArgument: it is no segment's.
    """
    key = f"{keys.SEGMENTS}{name}"
    if keys.segment_of(key) is None:
        raise InvalidArgument(f"{shown(key)} is no segment's key: log/segments/<seq>-<BLAKE3>.safetensors")
    return key


def is_outer(key: str) -> bool:
    """Tell whether a key of an object is one of outer rounds."""
    return _OUTER_OBJECT.fullmatch(key) is not None


def checked_key(key: str) -> str:
    """Return a key of an object, below its run, if it is one that a writer of the registry makes.

    Raises:
        InvalidArgument: it is not.
    """
    check_key(key)
    if not is_outer(key) and (not keys.is_object_key(key) or _OBJECT.fullmatch(key) is None):
        raise InvalidArgument(
            f"{shown(key)} is no object's key: objects/patch/<base>-<target>-<write id>.safetensors, "
            "objects/patch/<base>-<target>-<write id>/<patch-head, or a part>, "
            "objects/keyframe/<version>-<write id>/<file>, objects/files/<BLAKE3>, or "
            "outer/objects/contribution/<round>-<member>-<write id>.safetensors, "
            "outer/objects/merged/<round>-<write id>.safetensors, or "
            "outer/objects/checkpoint/<round>-<write id>/<checkpoint-head, or a group>"
        )
    return key
