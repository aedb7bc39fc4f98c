"""Requests to an engine's HTTP API: bounded in time and size, its refusals as errors, its token in no message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pulse_registry.client.api import checked_url
from pulse_registry.client.token import check_token, is_loopback
from pulse_registry.client.transport import MOST_PROBLEM_BYTES, BodyTransfer, Timeouts, failures, new_client
from pulse_registry.errors import CorruptObject, InvalidArgument, StoreUnavailable
from pulse_registry.follow.engine import EngineFailed, EngineRefused

TIMEOUTS: Final = Timeouts(connect_s=5.0, silence_s=30.0)
_SHOWN_CHARACTERS: Final = 2_000


class EngineApi:
    """An engine at a URL.

    Attributes:
        url: of the engine, which holds no secret.
    """

    def __init__(
        self, url: str, *, token: str | None = None, allow_http: bool = False, timeouts: Timeouts = TIMEOUTS
    ) -> None:
        """Prepare to ask; no I/O yet.

        Args:
            url: ``http[s]://host[:port][/prefix]``.
            token: for an engine that was started with an API key.
            allow_http: the token may go in clear to another machine.
            timeouts: limits of each request.

        Raises:
            InvalidArgument: the URL is not valid, or the token would go in clear.
        """
        try:
            self.url = checked_url(url)
        except InvalidArgument:
            raise InvalidArgument(
                "an engine's URL is http[s]://host[:port][/prefix], without user name, query and fragment; its token "
                "is taken from PULSE_ENGINE_TOKEN"
            ) from None
        if token is not None:
            check_token(self.url, token, allow_http=allow_http)
        self._token, self._timeouts = token, timeouts
        self._proxied_url = None if is_loopback(self.url) else self.url
        # vLLM's server drops a connection after an internal error, and does not say so: what is sent on it is lost.
        headers = {"Connection": "close"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = new_client(timeouts, headers, trust_env=self._proxied_url is not None)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """Send a request, and return its answer; what is no JSON object is an empty one.

        Args:
            method: of the request.
            path: behind the engine's URL.
            params: the query.
            body: sent as JSON.
            wait_s: the engine may take so much longer to answer.

        Raises:
            EngineRefused: it answered that it does not do it.
            EngineFailed: it can't be reached, or did not answer in time.
        """
        what = f"engine {self.url}: {method} {path}"
        try:
            with (
                failures(what, self._proxied_url),
                self._client.stream(
                    method, self.url + path, params=params, json=body, timeout=self._timeouts.timeout(wait_s)
                ) as response,
            ):
                data = BodyTransfer(self._timeouts, what).whole(response, MOST_PROBLEM_BYTES)
        except (CorruptObject, StoreUnavailable) as error:
            raise EngineFailed(str(error)) from None
        if not response.is_success:
            raise EngineRefused(f"{what}: HTTP {response.status_code}{self._reason(data)}")
        return _document(data)

    def _reason(self, data: bytes) -> str:
        """Return what a refusal says, in the forms that engines use."""
        found: Any = _document(data)
        for name in ("error", "message", "detail"):
            found = found.get(name, found) if isinstance(found, dict) else found
        said = found if isinstance(found, str) else data.decode(errors="replace")
        said = said.replace(self._token, "...") if self._token else said
        return f": {said[:_SHOWN_CHARACTERS]}" if said.strip() else ""


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:  # not UTF-8, or no JSON
        return {}
    return found if isinstance(found, dict) else {}
