"""The API's description (OpenAPI 3.1), made of what the operations say of themselves.

``python -m pulse_server.openapi FILE`` writes it; without FILE, to schemas/openapi.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pulse_registry.client.problems import TYPE_PREFIX
from pulse_schemas.api import Problem
from pulse_server.routes import MODULES
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.transport.problems import MEDIA_TYPE

FILE: Final = Path("schemas/openapi.json")
_REF: Final = "#/components/schemas/{model}"
_EVERYWHERE: Final[dict[int, str]] = {
    HTTPStatus.UNPROCESSABLE_ENTITY: "A parameter or the body is not as it must be.",
    HTTPStatus.TOO_MANY_REQUESTS: "Over a limit; `Retry-After` says when to come again.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The store does not answer.",
    HTTPStatus.BAD_GATEWAY: "What the store holds is damaged.",
    HTTPStatus.NOT_IMPLEMENTED: "What the store holds was written by a newer release.",
}
_WITH_TOKEN: Final[dict[int, str]] = {HTTPStatus.UNAUTHORIZED: "No token, a wrong or an expired one."}
_WITH_SCOPE: Final[dict[int, str]] = {HTTPStatus.FORBIDDEN: "The token does not allow this."}
_WITH_RUN: Final[dict[int, str]] = {HTTPStatus.BAD_REQUEST: "A name or the request is not valid."}
_WITH_BODY: Final[dict[int, str]] = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long."}
_PROBLEM: Final = {"$ref": _REF.format(model="Problem")}
_EXAMPLE: Final = Problem(
    type=f"{TYPE_PREFIX}NotFound",
    title="Not Found",
    status=404,
    detail="run 'math-7b' has no version 43; the newest is 42",
    instance="/v1/runs/math-7b/versions/43",
)


def document(modules: Iterable[Operations]) -> dict[str, Any]:
    """Return the description of all operations; the same document on every call."""
    paths: dict[str, dict[str, Any]] = {}
    models: set[type[BaseModel]] = {Problem}
    for module in modules:
        for operation, handler in module.all:
            path = re.sub(r":path}", "}", operation.path)
            paths.setdefault(path, {})[operation.method.lower()] = _operation(module.tag, handler.__name__, operation)
            models.update(_models(operation))
    _, schemas = models_json_schema(
        [(model, "serialization") for model in sorted(models, key=lambda model: model.__name__)], ref_template=_REF
    )
    schemas["$defs"]["Problem"]["example"] = json.loads(_EXAMPLE.model_dump_json())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pulse Registry",
            "version": version("pulse-registry"),
            "description": "Versions of model weights: find them, wait for them, route to them, commit them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "made with `pulse token new`"}
            },
        },
    }


def _models(operation: Operation) -> Iterable[type[BaseModel]]:
    if isinstance(operation.body, BaseModel):
        yield type(operation.body)
    for says in operation.answers.values():
        if says.model is not None:
            yield says.model


def _operation(tag: str, name: str, operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "tags": [tag],
        "operationId": name,
        "summary": operation.summary,
        "x-pulse-scope": operation.needs,
        "security": [] if operation.needs == "none" else [{"token": []}],
        "parameters": [parameter.told() for parameter in operation.parameters],
        "responses": _responses(operation),
    }
    if operation.description:
        told["description"] = operation.description
    if isinstance(operation.body, BaseModel):
        content = _content("application/json", operation.body)
        told["requestBody"] = {"required": True, "content": content}
    elif operation.body is not None:
        schema = {"type": "string", "format": "binary"} if "octet" in operation.body else {"type": "object"}
        told["requestBody"] = {"required": True, "content": {operation.body: {"schema": schema}}}
    return told


def _responses(operation: Operation) -> dict[str, Any]:
    refuses = dict(_EVERYWHERE) if operation.needs != "none" else {}
    refuses |= _WITH_TOKEN if operation.needs != "none" else {}
    refuses |= _WITH_SCOPE if operation.needs not in ("none", "any") else {}
    refuses |= _WITH_RUN if operation.parameters or operation.body is not None else {}
    refuses |= _WITH_BODY if operation.body is not None else {}
    refuses |= operation.refuses
    found = {str(int(status)): _answer(says) for status, says in operation.answers.items()}
    return found | {str(int(status)): _problem(words) for status, words in sorted(refuses.items())}


def _answer(says: Says) -> dict[str, Any]:
    told: dict[str, Any] = {"description": says.description}
    if says.headers:
        told["headers"] = {
            name: {"description": words, "schema": {"type": "string"}} for name, words in says.headers.items()
        }
    if isinstance(says.example, BaseModel):
        told["content"] = _content(says.media_type, says.example)
    elif says.example is not None:
        schema: Mapping[str, str] = {"type": "object" if says.media_type == "application/json" else "string"}
        told["content"] = {says.media_type: {"schema": schema, "example": says.example}}
    return told


def _content(media_type: str, example: BaseModel) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model=type(example).__name__)}
    return {media_type: {"schema": schema, "example": json.loads(example.model_dump_json())}}


def _problem(words: str) -> dict[str, Any]:
    return {"description": words, "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}


def text() -> str:
    """Return the description as it is kept in schemas/openapi.json."""
    return json.dumps(document(MODULES), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the description to the one file named, or to its own place; return the exit status."""
    if len(arguments) > 1:
        print("usage: python -m pulse_server.openapi [FILE]", file=sys.stderr)
        return 2
    (Path(arguments[0]) if arguments else FILE).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
