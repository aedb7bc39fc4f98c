"""What an OpenAPI document means: its operations with all references resolved, however it words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS = {"get", "head", "put", "post", "delete"}
_SAYS_NOTHING = [("default", None), ("additionalProperties", True)]
"""What some releases write where others leave it out."""


def meaning(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a document says of each operation, without names of components, titles, and where examples stand."""
    return {
        f"{method.upper()} {path}": _operation(document, told)
        for path, item in document["paths"].items()
        for method, told in item.items()
        if method in METHODS
    } | {"security": document["components"]["securitySchemes"], "info": document["info"]}


def _operation(document: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: told.get(name) for name in ("operationId", "summary", "description", "tags", "x-pulse-scope")}
    return plain | {
        "security": told.get("security", []),
        "parameters": {
            (parameter["in"], parameter["name"]): {
                "required": parameter["required"],
                "description": parameter["description"],
                **_exampled(document, parameter),
            }
            for parameter in told.get("parameters", [])
        },
        "body": None if "requestBody" not in told else _content(document, told["requestBody"]),
        "responses": {
            status: {
                "description": answer["description"],
                "headers": answer.get("headers", {}),
                "content": _content(document, answer),
            }
            for status, answer in told["responses"].items()
        },
    }


def _content(document: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    return {media_type: _exampled(document, media) for media_type, media in of.get("content", {}).items()}


def _exampled(document: Mapping[str, Any], media: Mapping[str, Any]) -> dict[str, Any]:
    """Return schema and example: FastAPI writes the example into the schema."""
    schema = _without_null(_resolved(document, media["schema"]))
    if "description" in media:  # a parameter: FastAPI says it twice
        schema.pop("description", None)
    examples = schema.pop("examples", [None])
    example = schema.pop("example", None)
    given = media.get("example")
    return {"schema": schema, "example": _without_nothing(examples[0] if given is None and example is None else given)}


def _without_nothing(example: Any) -> Any:
    """Return an example without its members that are null: FastAPI leaves them out."""
    if isinstance(example, list):
        return [_without_nothing(each) for each in example]
    if not isinstance(example, Mapping):
        return example
    return {name: _without_nothing(part) for name, part in example.items() if part is not None}


def _resolved(document: Mapping[str, Any], schema: Any) -> Any:
    """Return a schema without references and titles; what may be left out may be null, and need not say so."""
    if isinstance(schema, list):
        return [_resolved(document, each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    reference = schema.get("$ref")
    if reference is not None:
        found |= _resolved(document, document["components"]["schemas"][reference.rpartition("/")[2]])
    for name, part in schema.items():
        if name == "properties":
            found[name] = {key: _resolved(document, value) for key, value in part.items()}
        elif name not in ("$ref", "title") and (name, part) not in _SAYS_NOTHING:
            found[name] = _resolved(document, part)
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that may be left out: that it is null then is no text of a query."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{name: part for name, part in schema.items() if name != "anyOf"}, **kinds[0]}
