"""The client below S3Store: boto3, imported when it is first needed, set up so that nothing happens twice.

Each request is sent once (RetryStore repeats), each byte is hashed once (CRC32, checked by the store), no more
connections than threads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

from pulse_registry.errors import InvalidArgument
from pulse_registry.process.proxies import named_proxies, proxy_of
from pulse_registry.store.s3.body import READ_BYTES
from pulse_registry.store.s3.location import S3Location
from pulse_registry.store.watchdog import LowSpeedLimit, TransferWatchdog

STREAM: Final = "Stream"
"""Beside ``Body`` in an answer to GetObject: urllib3's response, which can give what has come."""
MOST_ANSWER_BYTES: Final = 8 << 20
"""Of an answer that is no object: a page of 1,000 keys of 1,024 bytes takes 2 MiB, or 4 with all its letters coded."""
_LOW_SPEED: Final = LowSpeedLimit()
_CONNECT_S: Final = 5.0
_CONNECTIONS: Final = 64
_ASK_FIRST_BYTES: Final = 1 << 20
"""Smaller bodies are sent at once; before larger ones the store is asked whether it takes them: a round trip more."""


def make_client(place: S3Location, answer_s: float) -> Any:
    """Return a client for a place; nothing is sent.

    Args:
        place: endpoint, region, style and profile; the rest comes as in every AWS SDK.
        answer_s: how long the store may be silent before a request is given up.

    Raises:
        InvalidArgument: boto3 is not installed, or the configuration (place, environment, profile) is not valid, or
            the environment names a proxy that boto3 can't use.
    """
    try:
        import boto3  # type: ignore[import-untyped]
        import botocore.session  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidArgument(f"s3:// needs boto3 ({error}): pip install 'pulse-registry[s3]'") from error
    s3: dict[str, object] = {"payload_signing_enabled": False}  # the checksum is signed; the body need not be as well
    if place.addressing_style is not None:
        s3["addressing_style"] = place.addressing_style
    config = Config(
        signature_version="s3v4",  # what is older leaves the conditions of a presigned request unsigned
        s3=s3,
        connect_timeout=min(_CONNECT_S, answer_s),  # for what is sent over a new connection, too
        read_timeout=answer_s,
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
        # A conditional put that is repeated below us would be refused for its own object.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # We make the checksums of what we send; what we read is checked by its BLAKE3.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="pulse-registry",
    )
    try:
        core = botocore.session.Session(profile=place.profile)
        loader = _loader(core.get_config_variable("data_path"))
        core.register_component("data_loader", loader)
        session = boto3.Session(botocore_session=core)
        loader.search_paths[:] = dict.fromkeys(loader.search_paths)  # boto3 adds its own for each session
        region = place.region or session.region_name or _default_region(place)
        client = session.client("s3", endpoint_url=place.endpoint_url, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        proxies = named_proxies()  # which it takes to look for credentials, too
        way = f"; the environment names proxies ({proxies})" if proxies else ""
        raise InvalidArgument(f"can't set up access to {place.url}: {error}{way}") from error
    proxy = proxy_of(client.meta.endpoint_url, kinds=())
    if proxy is not None and not proxy.speaks_http:
        raise InvalidArgument(
            f"can't set up access to {place.url}: {proxy} is none that boto3 can use: write http://host:port, or take "
            "it out of the environment"
        )
    client._endpoint.http_session = _BoundedAnswers(client._endpoint.http_session)  # botocore offers no other place
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    client.meta.events.register_last("needs-retry.s3.GetObject", _hand_out_stream)
    return client


@functools.cache
def _loader(data_path: str | None) -> Any:
    """Return what reads botocore's descriptions of S3 and its endpoints: megabytes of JSON, once a process.

    A session of its own would read them for each client: 130 ms of a core.
    """
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader(data_path)


class _BoundedAnswers:
    """Sends requests as botocore's own session, which reads what is no object whole, however long it is."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def send(self, request: Any) -> Any:
        request.stream_output = True  # so that the session does not read it
        answer = self._session.send(request)
        answer.raw = _BoundedAnswer(answer.raw)
        return answer


class _BoundedAnswer:
    """An answer as urllib3 has it, which is read to its end by `stream` alone."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self) -> Iterator[bytes]:
        """Yield what has come of it, until it ends.

        Raises:
            ValueError: it is longer than any.
            StoreUnavailable: it has stalled.
        """
        left, watchdog = MOST_ANSWER_BYTES, TransferWatchdog(_LOW_SPEED, "the answer")
        try:
            while chunk := self._raw.read1(READ_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise ValueError(f"it is longer than {MOST_ANSWER_BYTES} bytes")
                watchdog.add(len(chunk))
                yield chunk
        except BaseException:
            self._raw.close()  # no other request may read the rest
            raise


def _send_small_bodies_at_once(params: dict[str, Any], **_: object) -> None:
    # botocore asks (``Expect: 100-continue``) before every body that it takes for a file.
    from botocore.utils import determine_content_length  # type: ignore[import-untyped]

    if (determine_content_length(params["body"]) or 0) < _ASK_FIRST_BYTES:
        params["headers"].pop("Expect", None)


def _hand_out_stream(response: tuple[Any, dict[str, Any]] | None, **_: object) -> None:
    # The event that has both the answer's own stream and what the caller gets: see s3_body.receive.
    if response is not None:
        answer, parsed = response
        parsed[STREAM] = answer.raw


def _default_region(place: S3Location) -> str | None:
    """Return what stores that are not AWS call their region, unless told otherwise."""
    return "us-east-1" if place.endpoint_url is not None else None
