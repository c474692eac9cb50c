"""Answers of the console held against its OpenAPI document."""

from __future__ import annotations

from typing import Any

from console.openapi import document


def conforms(value: Any, schema: dict[str, Any], at: str = "answer") -> None:
    """Assert that `value` is what the OpenAPI `schema` says, without a property that it does not name."""
    if not schema:
        return
    if "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    known = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
    }
    assert any(type(value) in known[kind] for kind in kinds), f"{at} is {value!r}, not {kinds}"
    if isinstance(value, list):
        for k, item in enumerate(value):
            conforms(item, schema["items"], f"{at}[{k}]")
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema["required"]) <= set(value), f"{at} lacks {set(schema['required']) - set(value)}"
        assert set(value) <= set(schema["properties"]), f"{at} has more: {set(value)}"
        for name, item in value.items():
            conforms(item, schema["properties"][name], f"{at}.{name}")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for name, item in value.items():
            conforms(item, schema["additionalProperties"], f"{at}.{name}")
