"""Do signed URLs let in exactly what they were made for? Workers and trainers without bucket keys live on them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, skipped, warn
from pulse_registry.doctor.race import content_of
from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import SignedPut, Store

if TYPE_CHECKING:
    import httpx  # loaded when it is used: it is a tenth of the time in which any command starts

_LIFE_S: Final = 60
_SHORT_LIFE_S: Final = 2
_TIMEOUT_S: Final = 30.0
_BODY: Final = b"what was announced" * 100
_CANNOT: Final = "the store can't sign URLs: the service carries its objects itself"


def signed_gets_are_bounded(store: Store, context: Context) -> Finding:
    """Read an object by a signed URL, whole and in part; then with a changed signature, and after its time."""
    signer = store.presigner()
    if signer is None:
        return skipped(_CANNOT)
    store.put("signing/get", _BODY)
    store.put("signing/got", _BODY)
    good = signer.presign("signing/get", _LIFE_S)
    short = signer.presign("signing/get", _SHORT_LIFE_S)
    import httpx

    with httpx.Client(timeout=_TIMEOUT_S) as client:
        whole = _send(client, "GET", good)
        part = _send(client, "GET", good, {"Range": "bytes=3-9"})
        problems = {
            "does not read the object": not (whole.is_success and whole.content == _BODY),
            "does not read a range": not (part.status_code == 206 and part.content == _BODY[3:10]),
            "works with a changed signature": _send(client, "GET", _forged(good)).is_success,
            "works for another key": _send(client, "GET", good.replace("signing/get", "signing/got", 1)).is_success,
        }
        context.pause(_SHORT_LIFE_S + 1.5)
        problems["works after its time"] = _send(client, "GET", short).is_success
    return _finding(
        problems,
        "a signed URL reads its object and nothing else, for its time only",
        "signed URLs don't do what they should",
        "workers that read through the service need URLs that work; where signatures are not checked, whoever reaches "
        "the store can read it: put it behind a network of its own, or let the service carry the objects",
    )


def signed_puts_are_conditional(store: Store, context: Context) -> Finding:
    """Create an object by a signed PUT, then try it again, with other bytes, another length, and no condition."""
    signer = store.presigner()
    if signer is None:
        return skipped(_CANNOT)
    digest = hashlib.sha256(_BODY).hexdigest()
    attempts = ("good", "bytes", "checksum", "length", "condition")
    signed = {name: signer.presign_put(f"signing/put/{name}", len(_BODY), digest, _LIFE_S) for name in attempts}
    other, longer = _BODY[:-1] + b"!", _BODY + b"!"
    import httpx

    with httpx.Client(timeout=_TIMEOUT_S) as client:

        def takes(attempt: str, changed: SignedPut, body: bytes) -> bool:
            """Tell whether a PUT that should be refused was not, or left something behind."""
            answer = _send(client, "PUT", changed.url, changed.headers, body)
            return answer.is_success or store.exists(f"signing/put/{attempt}")

        good = signed["good"]
        first = _send(client, "PUT", good.url, good.headers, _BODY)
        again = _send(client, "PUT", good.url, good.headers, _BODY)
        problems = {
            "does not create the object": not (first.is_success and content_of(store, "signing/put/good") == _BODY),
            "overwrites a taken key": first.is_success and again.is_success,
            "takes other bytes": takes("bytes", signed["bytes"], other),
            "takes another checksum": takes("checksum", _with_checksum(signed["checksum"], other), other),
            "takes another length": takes("length", _with_length(signed["length"], longer), longer),
            "works without its condition": takes("condition", _unconditional(signed["condition"]), _BODY),
        }
    return _finding(
        problems,
        "a signed PUT creates what was announced, once, and nothing else",
        "signed PUTs let in more, or less, than they were made for",
        "commit through the service only for trainers that you trust with the bucket, or use a store that checks "
        "signatures, checksums and conditions: readers find what was changed (BLAKE3), but it is lost",
    )


def _finding(problems: Mapping[str, bool], good: str, bad: str, advice: str) -> Finding:
    found = [problem for problem, present in problems.items() if present]
    evidence: Evidence = {"tried": len(problems), "wrong": "; ".join(found) or "none"}
    return warn(f"{bad}: {'; '.join(found)}", advice, evidence) if found else ok(good, evidence)


def _send(
    client: httpx.Client, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> httpx.Response:
    """Send a request with no credentials but what the URL holds.

    Raises:
        StoreUnavailable: there was no answer.
    """
    import httpx

    try:
        return client.request(method, url, headers=headers, content=body)
    except httpx.HTTPError as error:
        # The URL is a credential: messages don't show it.
        host = httpx.URL(url).host
        raise StoreUnavailable(f"a signed {method} to {host} got no answer: {type(error).__name__}") from None


def _forged(url: str) -> str:
    """Return a URL with the last character of its signature changed."""
    head, mark, tail = url.partition("X-Amz-Signature=")
    signature, rest = tail[:64], tail[64:]
    return head + mark + signature[:-1] + ("0" if signature[-1:] != "0" else "1") + rest


def _with_checksum(signed: SignedPut, body: bytes) -> SignedPut:
    """Return a PUT whose checksum is that of other bytes."""
    value = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return SignedPut(
        signed.url,
        {name: value if name.lower() == "x-amz-checksum-sha256" else text for name, text in signed.headers.items()},
    )


def _with_length(signed: SignedPut, body: bytes) -> SignedPut:
    """Return a PUT whose length and checksum are those of other bytes."""
    changed = _with_checksum(signed, body).headers
    return SignedPut(
        signed.url,
        {name: str(len(body)) if name.lower() == "content-length" else text for name, text in changed.items()},
    )


def _unconditional(signed: SignedPut) -> SignedPut:
    """Return a PUT without its If-None-Match."""
    return SignedPut(
        signed.url, {name: text for name, text in signed.headers.items() if name.lower() != "if-none-match"}
    )
