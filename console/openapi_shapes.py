"""Pieces that the OpenAPI document is put together from."""

from __future__ import annotations

from typing import Any, Final

INTEGER: dict[str, Any] = {"type": "integer", "format": "int64", "minimum": 0}
TEXT: dict[str, Any] = {"type": "string"}
FLAG: dict[str, Any] = {"type": "boolean"}
TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
FREE: dict[str, Any] = {"type": "object", "additionalProperties": True}
NOTICE: dict[str, Any] = {
    "type": "string",
    "description": "A sentence: why something is empty or may be behind. Absent when all is well.",
}


def said(schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Return `schema` with a description."""
    return {**schema, "description": description}


MISDIRECTED: Final = {"421": "The request is for a host that is no name of this console: security.hosts."}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    """Return an array of `items`."""
    return {"type": "array", "items": items}


def structure(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an object of these properties, all required but the `optional` ones."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def ref(name: str) -> dict[str, Any]:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def parameter(name: str, description: str, default: int | None, largest: int) -> dict[str, Any]:
    """Return a whole number in the query, from 1 on."""
    schema: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": largest}
    if default is not None:
        schema["default"] = default
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def answer(schema: str, description: str) -> dict[str, Any]:
    """Return a JSON answer."""
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}


def call(
    method: str, operation: str, summary: str, results: dict[str, Any], errors: dict[str, str], **more: Any
) -> dict[str, Any]:
    """Return a path's `method`; `results` and `errors` by status, beside the one that every call has."""
    failed = {status: answer("Error", text) for status, text in {**errors, **MISDIRECTED}.items()}
    return {
        method: {"operationId": operation, "summary": summary, **more, "responses": {**results, **failed}}
    }


def get(
    operation: str, summary: str, result: dict[str, Any], errors: dict[str, str], **more: Any
) -> dict[str, Any]:
    """Return a path's GET."""
    return call("get", operation, summary, {"200": result}, errors, **more)
