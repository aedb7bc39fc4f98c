"""Mapping of errors of S3, of its client and of the network to the library's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Final

from pulse_registry.errors import (
    AccessDenied,
    CorruptObject,
    InvalidArgument,
    PulseError,
    StoreUnavailable,
)
from pulse_registry.store.checks import already_exists, not_found
from pulse_registry.store.http_dates import seconds_asked

_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_DENIED: Final = frozenset({"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "UnauthorizedAccess"})
_SKEWED: Final = frozenset({"RequestTimeTooSkewed"})
_THROTTLED: Final = frozenset(
    {
        *("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled"),
        *("TooManyRequests", "TooManyRequestsException", "BandwidthLimitExceeded"),
    }
)
"""Codes of answers to who asks too much."""
_AGAIN: Final = _THROTTLED | frozenset(
    {
        *("RequestTimeout", "RequestTimeoutException"),  # the store gave up waiting
        # The body was changed or cut on its way.
        *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody"),
        *("InvalidChecksum", "InvalidDigest"),
    }
)
_FOLDER: Final = frozenset({"ExistingObjectIsDirectory", "ExistingObjectIsFile"})
_LATER: Final = "try again"


@contextmanager
def translated(what: str, key: str, url: str) -> Iterator[None]:
    """Raise the client's and the network's errors in this block as the registry's own; others pass as they are.

    Args:
        what: what is done, for the message: "get", "put", ...
        key: to which object.
        url: in which bucket.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
    from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        raise answered(error.response, what, key, url) from error
    except (BotoCoreError, HTTPError, HTTPException, OSError) as error:
        raise _not_answered(error, what, key, url) from error
    except (ResponseParserError, ValueError, KeyError, RecursionError) as error:
        # No XML, a time or a length that is none, a header that is missing, redirects without end.
        raise StoreUnavailable(
            f"could not {what} {key!r} in {url}: the store's answer is none of S3's ({type(error).__name__}: "
            f"{_plain(error)}); {_LATER}"
        ) from error


def answered(response: dict[str, Any], what: str, key: str, url: str) -> PulseError:
    """Return the error that an answer of the store stands for."""
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", ""))
    text = str(response.get("Error", {}).get("Message", ""))[:200]
    said = f"{status} {code}" if code and code != str(status) else str(status)
    could_not = (
        f"could not {what} {key!r} in {url}: the store answered {said} ({text})"
        if text
        else (f"could not {what} {key!r} in {url}: the store answered {said}")
    )
    return error_of(could_not, status, code, meta.get("HTTPHeaders", {}), key=key, url=url)


def error_of(could_not: str, status: int, code: str, headers: Mapping[str, str], *, key: str, url: str) -> PulseError:
    """Return the error that a status of HTTP and a code of S3 stand for.

    Args:
        could_not: what could not be done, and what the store answered, for the message.
        status: of the answer.
        code: of the answer's body; empty where it has none.
        headers: of the answer.
        key: of the object.
        url: in which bucket.
    """
    if code in _EXPIRED:
        return AccessDenied(f"{could_not}; the credentials have expired: renew them")
    if code in _SKEWED:
        return AccessDenied(f"{could_not}; this machine's clock differs from the store's: set it")
    if code == "NoSuchBucket":
        return InvalidArgument(f"{could_not}; there is no such bucket: create it, or correct the URL")
    if code in _FOLDER:
        return InvalidArgument(f"{could_not}; this store can't hold a key that is the folder of another")
    if code in _AGAIN or status in (408, 409, 425, 429):
        return _unavailable(could_not, status, code, headers)
    if status in (401, 403) or code in _DENIED:
        return AccessDenied(f"{could_not}; check the credentials and what they allow")
    if status == 412:
        return already_exists(key, url)
    if status == 416:
        return CorruptObject(f"{could_not}: the object is shorter than it should be")
    if status == 404:
        return not_found(key, url)
    if status == 501:
        return InvalidArgument(f"{could_not}; it does not know this request (pulse doctor tells what it lacks)")
    if status >= 500 or status < 300:
        return _unavailable(could_not, status, code, headers)
    if status < 400:
        return InvalidArgument(f"{could_not}; the bucket is elsewhere: correct its region or endpoint_url")
    return InvalidArgument(could_not)


def _not_answered(error: Exception, what: str, key: str, url: str) -> PulseError:
    """Return the error for a request that was not sent, or whose answer did not arrive whole."""
    from botocore import exceptions  # type: ignore[import-untyped]

    reason = f"could not {what} {key!r} in {url}: {_plain(error)}"
    if isinstance(error, exceptions.ProxyConnectionError):
        # Its own text has the password that the proxy's URL may hold.
        place = str(error.kwargs["proxy_url"]).rpartition("@")[2].rpartition("://")[2]
        return StoreUnavailable(
            f"could not {what} {key!r} in {url}: no connection to the proxy {place} (HTTP_PROXY, HTTPS_PROXY): look "
            "there first, or name the store's host in NO_PROXY"
        )
    if isinstance(error, exceptions.MetadataRetrievalError):
        return StoreUnavailable(f"{reason}; {_LATER}")
    no_credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.NoAuthTokenError,
        exceptions.SSOError,
    )
    if isinstance(error, no_credentials):
        return AccessDenied(
            f"{reason}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile that has credentials"
        )
    no_request = (
        exceptions.ValidationError,
        exceptions.ParamValidationError,
        exceptions.NoRegionError,
        exceptions.InvalidRegionError,
        exceptions.EndpointProviderError,
    )
    if isinstance(error, no_request):
        return InvalidArgument(reason)
    return StoreUnavailable(f"{reason}; {_LATER}")


def _unavailable(could_not: str, status: int, code: str, headers: Mapping[str, str]) -> StoreUnavailable:
    error = StoreUnavailable(f"{could_not}; {_LATER}")
    error.retry_after_s = seconds_asked(headers)
    error.throttled = code in _THROTTLED or status in (429, 503)
    return error


def _plain(error: Exception) -> str:
    """Return an error as text: without the endpoint's URL, which a client's error may hold query and all."""
    return " ".join(str(error).split())[:300].partition("?")[0] or type(error).__name__
