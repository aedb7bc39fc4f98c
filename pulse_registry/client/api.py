"""Requests to the service's API, with the caller's token: answers are checked, refusals become typed errors.

The token goes to the service's own URL and nowhere else; it is in no message and no log.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from pulse_registry.client.http_body import content_digest, digest_fits, has_more_values
from pulse_registry.client.problems import error_of
from pulse_registry.client.token import check_token, is_loopback
from pulse_registry.client.transport import (
    MOST_ANSWER_BYTES,
    MOST_PROBLEM_BYTES,
    BodyTransfer,
    Timeouts,
    failures,
    new_client,
    told_to_wait,
)
from pulse_registry.errors import InvalidArgument, PulseError, StoreUnavailable, UnsupportedFormat
from pulse_registry.process.proxies import by_way_of
from pulse_registry.store.http_dates import http_date
from pulse_schemas.api import Problem

MOST_ANSWER_VALUES: Final = 10_000
"""Of an answer that is not a list: of a thousand URLs, some 3,000."""
_SHOWN_CHARACTERS: Final = 2_000

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service, complete and undamaged."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def clock(self) -> datetime:
        """The service's time when it answered; this machine's where it does not tell."""
        return http_date(self.headers.get("date", "")) or datetime.now(UTC)


class ServiceApi:
    """A service at a URL, as one token sees it. Thread-safe."""

    def __init__(self, url: str, token: str | None, timeouts: Timeouts, *, allow_http: bool = False) -> None:
        """Prepare to ask; no I/O yet.

        Args:
            url: ``https://host[:port][/prefix]``.
            token: None for a service that needs none.
            timeouts: limits of each request.
            allow_http: the token may go in clear to another machine.

        Raises:
            InvalidArgument: the URL, the token or a proxy of the environment is not valid, or the token would go in
                clear.
        """
        self.url = checked_url(url)
        if token is not None:
            check_token(self.url, token, allow_http=allow_http)
        self.timeouts = timeouts
        # No proxy of the environment's knows this machine's own addresses, or should be told a token in clear.
        self._proxied_url = None if is_loopback(self.url) else self.url
        self._client = new_client(
            timeouts, {"Authorization": f"Bearer {token}"} if token else None, trust_env=self._proxied_url is not None
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        wait_s: float = 0.0,
        most: int = MOST_ANSWER_BYTES,
    ) -> Answer:
        """Send a request and return its answer, which is a success.

        Args:
            method: of the request.
            path: behind the service's URL.
            params: the query.
            body: JSON; its digest goes with it.
            wait_s: the service may take so much longer to answer.
            most: bytes of the answer's body.

        Raises:
            PulseError: the one that the service's problem document names.
            CorruptObject: the answer is longer than ``most``; no more is read.
            StoreUnavailable: the service can't be reached, is busy, or its answer was damaged on the way.
        """
        headers = {} if body is None else {
            "Content-Type": "application/json",
            "Content-Digest": content_digest(hashlib.sha256(body).digest()),
        }  # fmt: skip
        with self.stream(method, path, params=params, headers=headers, content=body, wait_s=wait_s) as response:
            transfer = BodyTransfer(self.timeouts, self._what(method, path))
            answer = Answer(response.status_code, response.headers, transfer.whole(response, most))
        if answer.body and not digest_fits(answer.headers.get("content-digest", ""), answer.body):
            raise _damaged(self._what(method, path))
        return answer

    def json(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: BaseModel | None = None,
        wait_s: float = 0.0,
        most: int = MOST_ANSWER_BYTES,
        most_values: int = MOST_ANSWER_VALUES,
    ) -> T:
        """Send a request and return its answer's body; see `ask` and `parsed`."""
        sent = None if body is None else body.model_dump_json(exclude_none=True).encode()
        answer = self.ask(method, path, params=params, body=sent, wait_s=wait_s, most=most)
        return self.parsed(kind, answer, most_values)

    def parsed(self, kind: type[T], answer: Answer, most_values: int = MOST_ANSWER_VALUES) -> T:
        """Return an answer's body, of at most so many strings, lists, objects and entries.

        Raises:
            UnsupportedFormat: it has more, or the service speaks another version of the API.
        """
        if has_more_values(answer.body, most_values):
            raise UnsupportedFormat(
                f"{self.url} answered with a {kind.__name__} of more than {most_values} values, which it can't be"
            )
        try:
            return kind.model_validate_json(answer.body)
        except ValidationError as error:
            raise UnsupportedFormat(
                f"{self.url} answered with no {kind.__name__} that this release knows; upgrade the older of the two: "
                f"{error.error_count()} fields are not valid"
            ) from None

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterator[bytes] | None = None,
        wait_s: float = 0.0,
        also: tuple[int, ...] = (),
    ) -> Iterator[httpx.Response]:
        """Send a request and give its answer, a success or one of the statuses ``also``, with its body still to come.

        Raises:
            PulseError: as `ask`.
        """
        what = self._what(method, path)
        with failures(what, self._proxied_url):
            timeout = self.timeouts.timeout(wait_s)
            with self._client.stream(
                method, self.url + path, params=params, headers=headers, content=content, timeout=timeout
            ) as response:
                if not response.is_success and response.status_code not in also:
                    body = b"".join(BodyTransfer(self.timeouts, what).received(response, MOST_PROBLEM_BYTES))
                    raise self._refusal(what, Answer(response.status_code, response.headers, body))
                yield response

    def _refusal(self, what: str, answer: Answer) -> PulseError:
        digest = answer.headers.get("content-digest")
        if digest is not None and not digest_fits(digest, answer.body):
            return _damaged(what)
        if answer.status < 400:
            return InvalidArgument(f"{what}: it redirects (HTTP {answer.status}): open the URL that it redirects to")
        try:
            problem = Problem.model_validate_json(answer.body)
        except ValidationError:
            way = by_way_of(self._proxied_url) if self._proxied_url else ""
            return told_to_wait(error_of("", answer.status, f"{what}: HTTP {answer.status}{way}"), answer.headers)
        error = error_of(problem.type, answer.status, f"{what}: {problem.detail[:_SHOWN_CHARACTERS]}")
        return told_to_wait(error, answer.headers)

    def _what(self, method: str, path: str) -> str:
        return f"{self.url}: {method} {path}"


def _damaged(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what}: the answer does not hash to its Content-Digest, or has none: it was damaged on its way, or is not "
        "a service's"
    )


def checked_url(url: str) -> str:
    """Return a service's URL without a slash, or the API's own prefix, at its end.

    Raises:
        InvalidArgument: it is not ``http[s]://host[:port][/prefix]``; the message holds nothing that may be secret.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = None
    if not valid or not url.isascii() or re.search(r"[\s\\]", url):
        raise InvalidArgument("a service's URL is https://host[:port][/prefix]")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidArgument(
            f"the URL of the service at {parts.hostname} has a user name, a query or a fragment; a token is given by "
            "token=..., --token or PULSE_TOKEN"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"
