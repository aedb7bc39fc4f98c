"""JSON bodies of requests: counted before they are parsed, and long ones parsed beside the event loop."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from pulse_schemas import faults
from pulse_server.errors import unprocessable

Body = TypeVar("Body", bound=BaseModel)

MAX_VALUES: Final = 2_000
"""Of a JSON body, about: 1,000 keys are the most that most requests have."""
SHORT_BODY: Final = 32 << 10
"""A longer one is read in a thread: the event loop has others to answer."""


async def body_of(request: Request, model: type[Body], *, max_values: int = MAX_VALUES) -> Body:
    """Return a request's JSON body, of ``max_values`` values at most.

    Raises:
        InvalidRequest: it is not such a document (422).
    """
    data = await request.body()
    if data.count(b",") >= max_values:  # beside a thread that validates a million of them, nothing else runs
        raise unprocessable(f"body: more than {max_values:,} values")
    try:
        if len(data) <= SHORT_BODY:
            return model.model_validate_json(data)
        return await asyncio.to_thread(model.model_validate_json, data)
    except ValidationError as error:
        raise unprocessable(faults(error, "body")) from None


class ReadRequest(Request):
    """A request whose JSON body has been read and checked: FastAPI finds the document, and takes it as it is."""

    def __init__(self, request: Request, data: bytes, document: BaseModel) -> None:
        """Stand for a request; whatever it says of its body's type, it is JSON."""
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
        scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
        super().__init__(scope, request.receive)
        self._data, self._document = data, document

    async def body(self) -> bytes:
        """Return the body's bytes."""
        return self._data

    async def json(self) -> BaseModel:
        """Return the document that the body is."""
        return self._document
