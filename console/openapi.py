"""The OpenAPI document of ``/api/v1``. Tests hold it against the routes and against real answers."""

from __future__ import annotations

from typing import Any

import holdmq
from console.core.window import WINDOW_S

_INTEGER: dict[str, Any] = {"type": "integer", "format": "int64", "minimum": 0}
_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
_FREE: dict[str, Any] = {"type": "object", "additionalProperties": True}
_NOTICE: dict[str, Any] = {
    "type": "string",
    "description": "A sentence: why something is empty or may be behind. Absent when all is well.",
}


def _said(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Any]:
    count = {"messages": _INTEGER, "bytes": _said(_INTEGER, "Sum of body lengths.")}
    rows = {"topics": "Topic", "brokers": "Broker", "gateways": "Gateway", "connections": "Connection"}
    return {
        "Error": _object({"error": _object({"code": _TEXT, "message": _TEXT})}),
        "Count": _object(count),
        "Second": _object(
            {"second": _said(_TIME, "Start of the second, UTC, by the broker's clock."), **count}
        ),
        "Tps": _object(
            {
                "now": _said(_TIME, "The console's clock."),
                "seconds": _INTEGER,
                "topics": {
                    "type": "object",
                    "description": "By topic, oldest second first; a second without messages is left out.",
                    "additionalProperties": _list(_ref("Second")),
                },
                "total": _said(_list(_ref("Second")), "All topics together, whatever `top` is."),
                "current": _object(
                    {
                        "second": {
                            "type": ["string", "null"],
                            "format": "date-time",
                            "description": "The newest complete second; null when nothing flows.",
                        },
                        **count,
                        "topics": {"type": "object", "additionalProperties": _ref("Count")},
                    }
                ),
                "notice": _NOTICE,
            },
            optional=("notice",),
        ),
        "Topic": _object(
            {
                "topic": _TEXT,
                "kind": _TEXT,
                "read_queues": _INTEGER,
                "write_queues": _INTEGER,
                "brokers": _list(_TEXT),
                "messages_in": _said(_INTEGER, "Since the brokers started."),
                "bytes_in": _INTEGER,
                "messages_out": _INTEGER,
                "bytes_out": _INTEGER,
                "messages_stored": _said(_INTEGER, "What the queues hold now."),
            }
        ),
        "Broker": _object(
            {
                "broker": _TEXT,
                "cluster": _TEXT,
                "address": _TEXT,
                "reachable": _FLAG,
                "writable": _FLAG,
                "reason": _said(_TEXT, "Why it is not reachable or not writable; empty when it is both."),
                "log_bytes": _said(_INTEGER, "From the first to the confirmed position of its log."),
                "confirmed_position": _INTEGER,
                "connections": _said(_INTEGER, "Gateways, clients and tools connected to it."),
                "numbers": _said(_FREE, "The broker's own numbers, named as in its metrics."),
            }
        ),
        "Gateway": _object(
            {
                "client_id": _said(_TEXT, "One worker process of a gateway."),
                "address": _TEXT,
                "software": _TEXT,
                "connected": _TIME,
                "brokers": _list(_TEXT),
                "state": _said(_FREE, "What the worker says in its heartbeats."),
            }
        ),
        "Connection": _object(
            {
                "broker": _TEXT,
                "role": _TEXT,
                "client_id": _TEXT,
                "address": _TEXT,
                "language": _TEXT,
                "software": _TEXT,
                "connected": _TIME,
                "state": _FREE,
            }
        ),
        **{
            f"{rows[name]}s": _object(
                {name: _list(_ref(rows[name])), "notice": _NOTICE}, optional=("notice",)
            )
            for name in rows
        },
    }


def _parameter(name: str, description: str, default: int | None, largest: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": largest}
    if default is not None:
        schema["default"] = default
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _answer(schema: str, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _get(
    operation: str, summary: str, answer: dict[str, Any], errors: dict[str, str], **more: Any
) -> dict[str, Any]:
    responses = {"200": answer, **{status: _answer("Error", text) for status, text in errors.items()}}
    return {"get": {"operationId": operation, "summary": summary, **more, "responses": responses}}


def document() -> dict[str, Any]:
    """Return the document, OpenAPI 3.1."""
    away = {"503": "The cluster cannot be asked."}
    listings = {
        name: _get(f"list_{name}", summary, _answer(f"{name[:-1].capitalize()}s", "All of them."), away)
        for name, summary in (
            ("topics", "Topics with their totals over all brokers."),
            ("brokers", "Brokers that the registry knows, and how they are."),
            ("gateways", "Gateway workers connected to the brokers."),
            ("connections", "Every connection to a broker."),
        )
    }
    text = {"content": {"text/event-stream": {"schema": _TEXT}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HoldMQ console",
            "version": holdmq.__version__,
            "description": "Read-only view of a HoldMQ cluster.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            "/api/v1/tps": _get(
                "get_tps",
                "Messages and bytes per topic and second, as the statistics job counted them.",
                _answer("Tps", "The last seconds; empty with a `notice` when there is no table yet."),
                {"400": "A parameter is wrong."},
                parameters=[
                    _parameter("seconds", "How far back to look.", 60, WINDOW_S),
                    _parameter("top", "Only so many topics, the busiest; all when absent.", None, 1000),
                ],
            ),
            **{f"/api/v1/{name}": operation for name, operation in listings.items()},
            "/api/v1/stream": _get(
                "stream",
                "Server-sent events, once a second: `tps` (a Tps of 15 seconds) and `cluster`.",
                {"description": "The stream; it stays open.", **text},
                {"503": "console.streams_max streams are open."},
            ),
            "/api/v1/openapi.json": _get(
                "get_openapi",
                "This document.",
                {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": _FREE}}},
                {},
            ),
        },
        "components": {"schemas": _schemas()},
    }
