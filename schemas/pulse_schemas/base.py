"""Base of every stored or sent document: strict types, canonical JSON bytes, and the seal.

A *sealed* document carries the BLAKE3 of its own canonical bytes, so that one flipped bit anywhere in it is
seen by a reader that knows nothing else. It may be signed as well: the seal covers the signature then.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Protocol, Self, TypeVar, get_args

from blake3 import blake3
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

T = TypeVar("T")
Many = Annotated[tuple[T, ...], FailFast()]
"""A list; of one with faults, the first entry that has some is told. A million entries may have a million faults."""

RUN_NAME_PATTERN: Final = r"[a-z0-9][a-z0-9._-]{0,127}"
TAG_NAME_PATTERN: Final = r"[a-z][a-z0-9._-]{0,63}"
"""Begins with a letter: numbers are versions."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="BLAKE3, 256 bits, lower-case hex")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="state digest: lane 0 then lane 1, hex")]
WriteId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="128 random bits, hex")]
RunName = Annotated[str, Field(pattern=f"^{RUN_NAME_PATTERN}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Key = Annotated[str, Field(min_length=1, max_length=1024, description="object key below the run's prefix")]
Step = Annotated[int, Field(ge=-(2**63), lt=2**63, description="the trainer's own label of a version")]
# Spelled out: the regex engine's \d also takes the digits of other scripts.
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"


def _is_time(text: str) -> str:
    datetime.fromisoformat(text)  # a ValueError where there is no such day or hour
    return text


Timestamp = Annotated[str, Field(pattern=_TIME, description="UTC"), AfterValidator(_is_time)]


def _not_latest(name: str) -> str:
    if name == "latest":
        raise ValueError("'latest' is the newest version, whatever a tag says")
    return name


Place = Annotated[str, Field(min_length=1, max_length=1024, description="URL of a root, for people to read")]
ReaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,159}$")]
TagName = Annotated[str, Field(pattern=f"^{TAG_NAME_PATTERN}$"), AfterValidator(_not_latest)]

_SEAL_HASH, _SEAL_BODY, _SEAL_END = b'{"blake3":"', b'","body":', b"}"
# No body ends like this: the brace that closes it would close this object.
_SIGNATURE = re.compile(rb',"signature":\{"key":"ed25519:([0-9a-f]{64})","value":"([0-9a-f]{128})"\}\Z')
_SIGNATURE_LENGTH = 234
_MAX_DEPTH = 32
_SHOWN_ERRORS, _SHOWN = 8, 200
"""Of a document's faults, and letters of each: who wrote it must not choose how long a message is."""
_LISTED_ERRORS: Final = 64
"""Of more faults than that, none is told: pydantic lists all of them or none, at microseconds each."""


def faults(error: ValidationError, whole: str = "document") -> str:
    """Return in a few words what is wrong with what was validated; ``whole`` stands for all of it."""
    count = error.error_count()
    if count > _LISTED_ERRORS:
        return f"{count} faults"
    found = error.errors(include_url=False, include_input=False, include_context=False)
    told = "; ".join(
        f"{'.'.join(map(str, fault['loc']))[:_SHOWN] or whole}: {fault['msg'][:_SHOWN]}"
        for fault in found[:_SHOWN_ERRORS]
    )
    return f"{told}; and {count - _SHOWN_ERRORS} more" if count > _SHOWN_ERRORS else told


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


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed a document, by the raw 32 bytes of an Ed25519 public key, and the 64 bytes of the signature."""

    key: bytes
    value: bytes

    @property
    def public(self) -> str:
        """The key as text: ``ed25519:<64 hex digits>``."""
        return f"ed25519:{self.key.hex()}"


class Signer(Protocol):
    """What signs documents."""

    def sign(self, body: bytes) -> Signature:
        """Return the signature of a document's canonical body."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """The parts of a sealed document: its canonical body, and its signature if it has one, not verified yet."""

    body: bytes
    signature: Signature | None = None

    def to_bytes(self) -> bytes:
        """Return the document's bytes."""
        content = self.body
        if self.signature is not None:
            key, value = self.signature.key.hex(), self.signature.value.hex()
            content += f',"signature":{{"key":"ed25519:{key}","value":"{value}"}}'.encode()
        return b"".join((_SEAL_HASH, blake3(content).hexdigest().encode(), _SEAL_BODY, content, _SEAL_END))


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
            # Without the cause, which keeps all faults, and in a traceback shows them.
            raise SchemaError(f"{cls.__name__}: {faults(error)}") from None
        if model.canonical() != data:
            raise SchemaError(f"{cls.__name__}: the bytes are not the canonical form of what they say")
        return model

    @classmethod
    def _refuse_other_format(cls, value: Any) -> None:
        known = get_args(cls.model_fields["format"].annotation) if "format" in cls.model_fields else ()
        found = value.get("format") if isinstance(value, dict) else None
        if not isinstance(found, str) or found in known:
            return
        if found.split("/")[0] in {name.split("/")[0] for name in known}:
            raise SchemaError(
                f"{cls.__name__}: format {found!r:.100} is not known here (this release reads "
                f"{' and '.join(map(repr, known))}); upgrade pulse-registry",
                Fault.UNSUPPORTED,
            )

    def seal(self, signer: Signer | None = None) -> bytes:
        """Return ``{"blake3": <hash>, "body": <this>}``, signed if a signer is given, as canonical JSON bytes."""
        body = self.canonical()
        return Sealed(body, None if signer is None else signer.sign(body)).to_bytes()

    @classmethod
    def unseal(cls, data: bytes) -> Self:
        """Read a sealed document; any changed bit raises. A signature is not verified.

        Raises:
            SchemaError: as ``parse``, or the seal does not fit.
        """
        return cls.parse(sealed_body(data))


def open_sealed(data: bytes) -> Sealed:
    """Return the parts of a sealed document whose seal fits.

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
    end = len(data) - len(_SEAL_END)
    # Of a long document there is one copy: its body.
    if blake3(memoryview(data)[body:end]).hexdigest().encode() != found:
        raise SchemaError("the seal does not fit: the document was changed or cut")
    signed = _SIGNATURE.match(data[max(body, end - _SIGNATURE_LENGTH) : end])
    if signed is None:
        return Sealed(data[body:end])
    key, value = (bytes.fromhex(part.decode()) for part in signed.groups())
    return Sealed(data[body : end - _SIGNATURE_LENGTH], Signature(key, value))


def sealed_body(data: bytes) -> bytes:
    """Return the canonical body of a sealed document whose seal fits; see ``open_sealed``."""
    return open_sealed(data).body


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """Return sorted, white-space-free UTF-8 JSON; floats in their shortest round-trip form, NaN refused."""
    return _CANONICAL.encode(value).encode()


def load_json(data: bytes) -> Any:
    """Parse JSON; raises SchemaError where it is none."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not JSON: {error}") from error
