"""Location of a bucket, from its URL: `s3://bucket/prefix?endpoint_url=...&region=...`; never credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from pulse_registry.errors import InvalidArgument
from pulse_registry.store.keys import check_key

AddressingStyle = Literal["auto", "path", "virtual"]

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_REGION: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_OPTIONS: Final = ("addressing_style", "endpoint_url", "profile", "region")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and how to get to it. What is None is taken as the AWS SDKs do: environment, profile, default."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    addressing_style: AddressingStyle | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            InvalidArgument: one is not valid.
        """
        if not _BUCKET.fullmatch(self.bucket):
            raise InvalidArgument(f"{self.bucket!r} is no name of a bucket: write s3://bucket or s3://bucket/prefix")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
        if self.region is not None and not _REGION.fullmatch(self.region):
            raise InvalidArgument(f"{self.region!r} is no name of a region")
        if self.addressing_style is not None and self.addressing_style not in get_args(AddressingStyle):
            known = ", ".join(get_args(AddressingStyle))
            raise InvalidArgument(f"addressing_style is one of {known}, not {self.addressing_style!r}")
        if self.profile is not None and not self.profile:
            raise InvalidArgument("the name of the profile is empty")

    @property
    def url(self) -> str:
        """The bucket, for messages."""
        return f"s3://{self.bucket}"


def parse_s3_url(rest: str) -> tuple[S3Location, str]:
    """Return the place and the prefix ("" for none) of a URL, given its part behind `s3://`.

    Bucket and prefix are percent-encoded, as paths of URLs are: write %3F for a '?' and %25 for a '%'.

    Raises:
        InvalidArgument: it is not valid, has an option that is not known, or holds credentials.
    """
    path, _, query = rest.partition("?")
    bucket, _, prefix = path.partition("/")
    if "@" in bucket:
        raise InvalidArgument(f"credentials do not belong in a URL (s3://...@{bucket.rpartition('@')[2]}): {_KEYS_GO}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise InvalidArgument(f"the options of s3://{path} are not written name=value&name=value") from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidArgument(f"an option of s3://{path} is given twice")
    for name in options:
        if name not in _OPTIONS:
            hint = _KEYS_GO if re.search("key|secret|token|password|credential", name, re.IGNORECASE) else _KNOWN
            raise InvalidArgument(f"s3://{path} has the option {name!r}: {hint}")
    prefix = unquote(prefix).rstrip("/")
    if prefix:
        check_key(prefix)
    place = S3Location(
        unquote(bucket),
        endpoint_url=options.get("endpoint_url"),
        region=options.get("region"),
        addressing_style=cast("AddressingStyle | None", options.get("addressing_style")),
        profile=options.get("profile"),
    )
    return place, prefix


_KNOWN: Final = f"the options are {', '.join(_OPTIONS)}"
_KEYS_GO: Final = (
    "give keys as the AWS SDKs take them, by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
)


def _check_endpoint(endpoint_url: str) -> None:
    try:
        parts = urlsplit(endpoint_url)
        host, has_keys = parts.hostname, parts.username is not None or parts.password is not None
        _ = parts.port  # raises where it is no number
    except ValueError:
        raise InvalidArgument("endpoint_url is not a URL: write endpoint_url=https://host:port") from None
    if has_keys:
        raise InvalidArgument(f"credentials do not belong in endpoint_url: {_KEYS_GO}")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InvalidArgument(f"endpoint_url {endpoint_url!r} is not of the form https://host:port")
