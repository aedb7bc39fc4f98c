"""What every stored or sent document shares: strictness, canonical JSON bytes, and the seal.

A *sealed* document carries the BLAKE3 of its own canonical bytes, so that one flipped bit anywhere in it is
seen by a reader that knows nothing else.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Annotated, Any, Self

from blake3 import blake3
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="BLAKE3, 256 bits, lower-case hex")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="state digest: lane 0 then lane 1, hex")]
WriteId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="128 random bits, hex")]
RunName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,127}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Key = Annotated[str, Field(min_length=1, max_length=1024, description="object key below the run's prefix")]
Step = Annotated[int, Field(ge=-(2**63), lt=2**63, description="the trainer's own label of a version")]
# Spelled out: the regex engine's \d also takes the digits of other scripts.
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"
Timestamp = Annotated[str, Field(pattern=_TIME, description="UTC")]


_SEAL_HASH, _SEAL_BODY, _SEAL_END = b'{"blake3":"', b'","body":', b"}"
_MAX_DEPTH = 32


def plain_json(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as what reading it back from JSON would give; tuples become lists.

    Raises:
        ValueError: NaN or infinity, an integer over 64 bits, a key that is no string, text that is not
            Unicode, more than 32 levels, or an object that JSON has no form for.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case str():
            return value.encode().decode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
        case int() if -(2**63) <= value < 2**64:
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case list() | tuple():
            return [plain_json(item, depth + 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {plain_json(key): plain_json(item, depth + 1) for key, item in value.items()}
    raise ValueError(f"a {type(value).__name__} of this value has no exact JSON form")


JsonObject = Annotated[dict[str, Any], AfterValidator(plain_json)]


class Fault(StrEnum):
    """What is wrong with a document."""

    CORRUPT = "corrupt"
    UNSUPPORTED = "unsupported"


class SchemaError(ValueError):
    """A document is not what it should be; ``fault`` says: damaged, or from another format version."""

    def __init__(self, message: str, fault: Fault = Fault.CORRUPT) -> None:
        """Say what is wrong, and in which of the two ways."""
        super().__init__(message)
        self.fault = fault


class Schema(BaseModel):
    """Base of every model: strict types, frozen instances, unknown fields refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def canonical(self) -> bytes:
        """Return the canonical JSON bytes: sorted keys, no white space, UTF-8, no NaN."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a document from its canonical bytes.

        Raises:
            SchemaError: not JSON, not canonical, unknown or missing fields, values out of range, or (with
                ``fault=UNSUPPORTED``) a ``format`` that this release does not know.
        """
        data = bytes(data)
        try:
            model = cls.model_validate_json(data)
        except ValidationError as error:
            cls._refuse_other_format(load_json(data))
            where = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}"
                for e in error.errors(include_url=False, include_input=False)
            )
            raise SchemaError(f"{cls.__name__}: {where}") from error
        if model.canonical() != data:
            raise SchemaError(f"{cls.__name__}: the bytes are not the canonical form of what they say")
        return model

    @classmethod
    def _refuse_other_format(cls, value: Any) -> None:
        expected = cls.model_fields["format"].default if "format" in cls.model_fields else None
        found = value.get("format") if isinstance(value, dict) else None
        if not isinstance(expected, str) or not isinstance(found, str) or found == expected:
            return
        if found.split("/")[0] == expected.split("/")[0]:
            raise SchemaError(
                f"{cls.__name__}: format {found!r} is not known here (this release reads {expected!r}); "
                "upgrade pulse-registry",
                Fault.UNSUPPORTED,
            )

    def seal(self) -> bytes:
        """Return ``{"blake3": <hash of canonical()>, "body": <this>}`` as canonical JSON bytes."""
        body = self.canonical()
        return b"".join((_SEAL_HASH, blake3(body).hexdigest().encode(), _SEAL_BODY, body, _SEAL_END))

    @classmethod
    def unseal(cls, data: bytes) -> Self:
        """Read a sealed document; any changed bit raises.

        Raises:
            SchemaError: as ``parse``, or the seal does not fit.
        """
        return cls.parse(sealed_body(data))


def sealed_body(data: bytes) -> bytes:
    """Return the canonical body of a sealed document whose seal fits.

    The seal is looked at before a single field is, so that damage is never taken for another format version.

    Raises:
        SchemaError: not a sealed document, or changed after it was sealed.
    """
    data = bytes(data)
    start = len(_SEAL_HASH) + 64
    found, joint, body = (
        data[len(_SEAL_HASH) : start],
        data[start : start + len(_SEAL_BODY)],
        start + len(_SEAL_BODY),
    )
    if not data.startswith(_SEAL_HASH) or joint != _SEAL_BODY or not data.endswith(_SEAL_END):
        raise SchemaError("not a sealed document")
    content = data[body : -len(_SEAL_END)]
    if blake3(content).hexdigest().encode() != found:
        raise SchemaError("the seal does not fit: the document was changed or cut")
    return content


def canonical_json(value: Any) -> bytes:
    """Return sorted, white-space-free UTF-8 JSON; floats in their shortest round-trip form, NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def load_json(data: bytes) -> Any:
    """Parse JSON; raises SchemaError where it is none."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not JSON: {error}") from error
