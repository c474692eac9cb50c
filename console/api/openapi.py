"""The OpenAPI 3.1 document, made from the table of endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import holdmq
from console.api.endpoint import CLUSTER, PREFIX, Endpoint, ErrorAnswer, Nothing
from console.api.serving import COOKIE, CSRF_HEADER
from console.identity.roles import Rank

TEMPLATE: Final = "#/components/schemas/{model}"
_OF_CLUSTER: Final = {
    "name": CLUSTER,
    "in": "query",
    "required": False,
    "description": "Only brokers of this cluster and what they have; of all clusters when absent.",
    "schema": {"type": "string", "default": "", "maxLength": 64},
}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the document of these endpoints."""
    table = list(endpoints)
    models: dict[type[BaseModel], None] = {ErrorAnswer: None}
    for one in table:
        for model in (one.query, one.body, one.answer):
            if model is not None and model is not Nothing:
                models[model] = None
    keys, definitions = models_json_schema([(model, "validation") for model in models], ref_template=TEMPLATE)
    schemas = dict(definitions.get("$defs", {}))
    refs = {model: schema for (model, _), schema in keys.items()}
    paths: dict[str, dict[str, Any]] = {}
    for one in table:
        paths.setdefault(f"{PREFIX}/{one.path}", {})[one.method.lower()] = _operation(one, refs, schemas)
    # What stands in addresses is told parameter by parameter.
    for one in table:
        if one.query is not Nothing:
            schemas.pop(one.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HoldMQ console",
            "version": holdmq.__version__,
            "description": "A HoldMQ cluster: what it does, what it has counted, and how it is changed.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"session": []}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": f"As POST {PREFIX}/session gives it; changes need {CSRF_HEADER} as well.",
                },
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(one: Endpoint, refs: dict[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [*_in_path(one), *_in_query(one, schemas)]
    operation: dict[str, Any] = {
        "operationId": _name(one),
        "summary": one.summary,
        "x-role": one.role.name.lower(),
        **({"security": []} if one.role is Rank.OPEN else {}),
        **({"parameters": parameters} if parameters else {}),
    }
    if one.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(refs[one.body])}
    content = {} if one.answer is None else _json(refs[one.answer])
    for kind in one.files:
        content[kind] = {"schema": {"type": "string"}}
    done = {"description": "Done."} if not content else {"description": "The answer.", "content": content}
    error = {"description": "Why not.", "content": _json(refs[ErrorAnswer])}
    operation["responses"] = {
        str(one.status): done,
        "4XX": error,
        "503": {**error, "description": "The cluster cannot be asked, or a bound is reached."},
    }
    return operation


def _name(one: Endpoint) -> str:
    words = [part.strip("{}").replace("-", "_").replace(".", "_") for part in one.path.split("/")]
    return "_".join([one.method.lower(), *words])


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _in_path(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for part in one.path.split("/")
        if part.startswith("{")
    ]


def _in_query(one: Endpoint, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    of_cluster = [_OF_CLUSTER] if one.is_of_cluster else []
    if one.query is Nothing:
        return of_cluster
    schema = schemas[one.query.__name__]
    required = set(schema.get("required", ()))
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            **({"description": field["description"]} if "description" in field else {}),
            "schema": {key: value for key, value in field.items() if key not in ("description", "title")},
        }
        for name, field in schema.get("properties", {}).items()
    ] + of_cluster
