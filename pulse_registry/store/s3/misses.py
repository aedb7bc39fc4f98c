"""Misses: GETs of whole objects that found nothing, kept as they were signed, and sent again so.

Who follows a log asks for its next record several times a second, and mostly in vain. boto3 takes a millisecond of a
core to make, sign and read such a request; to send the same one again takes a third of that. Where anything else than
the object or "not there" is answered, the request is made anew: boto3 knows what to do, and errors are told by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pulse_registry.store.checks import not_found
from pulse_registry.store.s3.client import STREAM

GOOD_S: Final = 60.0
"""How long a request is sent again: S3 takes it for a quarter of an hour from when it was signed."""
MOST: Final = 2048
"""Requests that are kept, of some 3 kB each; the one that was sent longest ago goes first."""
_BEFORE_SEND: Final = "before-send.s3.GetObject"
_NO_SUCH_KEY: Final = "NoSuchKey"


class Misses:
    """Gets whole objects. Thread-safe."""

    def __init__(self, client: Any, bucket: str, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none.

        Args:
            client: boto3's.
            bucket: its name.
            url: what messages call it.
            clock: monotonic time in seconds.
        """
        self._client, self._bucket, self._url, self._clock = client, bucket, url, clock
        self._session = client._endpoint.http_session  # has the client's connections and bounds
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Any]] = {}
        self._sent = threading.local()
        client.meta.events.register_first(_BEFORE_SEND, self._note)

    def get(self, key: str) -> dict[str, Any]:
        """Ask for an object; return the answer to GetObject, its body unread: ``Body``, ``ContentLength``, `STREAM`.

        Raises:
            NotFound: it was not there before, and is not now.
            Errors of boto3 and the network pass.
        """
        with self._lock:
            signed_at, request = self._kept.pop(key, (0.0, None))
        if request is not None and self._clock() - signed_at < GOOD_S:
            answer = self._send(request)
            if answer.status_code == 200:
                return _found(answer)
            if answer.status_code == 404 and f"<Code>{_NO_SUCH_KEY}</Code>".encode() in answer.content:
                self._keep(key, signed_at, request)
                raise not_found(key, self._url)
            answer.content  # noqa: B018 - read to its end, so that the connection is free
        return self._ask(key)

    def _ask(self, key: str) -> dict[str, Any]:
        from botocore.exceptions import ClientError  # type: ignore[import-untyped]

        self._sent.request, signed_at = None, self._clock()
        try:
            answer: dict[str, Any] = self._client.get_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == _NO_SUCH_KEY:
                self._keep(key, signed_at, self._sent.request)
            raise
        return answer

    def _keep(self, key: str, signed_at: float, request: Any) -> None:
        with self._lock:
            self._kept[key] = signed_at, request
            if len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]

    def _send(self, request: Any) -> Any:
        """Send a request once more, as botocore does; return the answer, its body unread."""
        said = [answer for _, answer in self._client.meta.events.emit(_BEFORE_SEND, request=request)]
        return next((answer for answer in said if answer is not None), None) or self._session.send(request)

    def _note(self, request: Any, **_: object) -> None:
        self._sent.request = request


def _found(answer: Any) -> dict[str, Any]:
    """Return of an answer what boto3 makes of it, as far as `Misses.get` says."""
    from botocore.response import StreamingBody  # type: ignore[import-untyped]

    length = answer.headers.get("content-length", -1)
    return {"Body": StreamingBody(answer.raw, length), "ContentLength": length, STREAM: answer.raw}
