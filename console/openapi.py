"""The OpenAPI document of ``/api/v1``. Tests hold it against the routes and against real answers."""

from __future__ import annotations

from typing import Any

import holdmq
from console import openapi_analysis
from console.core.window import WINDOW_S
from console.openapi_shapes import (
    FLAG,
    FREE,
    INTEGER,
    NOTICE,
    TEXT,
    TIME,
    answer,
    get,
    listed,
    parameter,
    ref,
    said,
    structure,
)


def _schemas() -> dict[str, Any]:
    count = {"messages": INTEGER, "bytes": said(INTEGER, "Sum of body lengths.")}
    rows = {"topics": "Topic", "brokers": "Broker", "gateways": "Gateway", "connections": "Connection"}
    return {
        "Error": structure({"error": structure({"code": TEXT, "message": TEXT})}),
        "Count": structure(count),
        "Second": structure(
            {"second": said(TIME, "Start of the second, UTC, by the broker's clock."), **count}
        ),
        "Tps": structure(
            {
                "now": said(TIME, "The console's clock."),
                "seconds": INTEGER,
                "topics": {
                    "type": "object",
                    "description": "By topic, oldest second first; a second without messages is left out.",
                    "additionalProperties": listed(ref("Second")),
                },
                "total": said(listed(ref("Second")), "All topics together, whatever `top` is."),
                "current": structure(
                    {
                        "second": {
                            "type": ["string", "null"],
                            "format": "date-time",
                            "description": "The newest complete second; null when nothing flows.",
                        },
                        **count,
                        "topics": {"type": "object", "additionalProperties": ref("Count")},
                    }
                ),
                "notice": NOTICE,
            },
            optional=("notice",),
        ),
        "Topic": structure(
            {
                "topic": TEXT,
                "kind": TEXT,
                "read_queues": INTEGER,
                "write_queues": INTEGER,
                "brokers": listed(TEXT),
                "messages_in": said(INTEGER, "Since the brokers started."),
                "bytes_in": INTEGER,
                "messages_out": INTEGER,
                "bytes_out": INTEGER,
                "messages_stored": said(INTEGER, "What the queues hold now."),
            }
        ),
        "Broker": structure(
            {
                "broker": TEXT,
                "cluster": TEXT,
                "address": TEXT,
                "reachable": FLAG,
                "writable": FLAG,
                "reason": said(TEXT, "Why it is not reachable or not writable; empty when it is both."),
                "log_bytes": said(INTEGER, "From the first to the confirmed position of its log."),
                "confirmed_position": INTEGER,
                "connections": said(INTEGER, "Gateways, clients and tools connected to it."),
                "numbers": said(FREE, "The broker's own numbers, named as in its metrics."),
            }
        ),
        "Gateway": structure(
            {
                "client_id": said(TEXT, "One worker process of a gateway."),
                "address": TEXT,
                "software": TEXT,
                "connected": TIME,
                "brokers": listed(TEXT),
                "state": said(FREE, "What the worker says in its heartbeats."),
            }
        ),
        "Connection": structure(
            {
                "broker": TEXT,
                "role": TEXT,
                "client_id": TEXT,
                "address": TEXT,
                "language": TEXT,
                "software": TEXT,
                "connected": TIME,
                "state": FREE,
            }
        ),
        **{
            f"{rows[name]}s": structure(
                {name: listed(ref(rows[name])), "notice": NOTICE}, optional=("notice",)
            )
            for name in rows
        },
        **openapi_analysis.schemas(),
    }


def document() -> dict[str, Any]:
    """Return the document, OpenAPI 3.1."""
    away = {"503": "The cluster cannot be asked."}
    listings = {
        name: get(f"list_{name}", summary, answer(f"{name[:-1].capitalize()}s", "All of them."), away)
        for name, summary in (
            ("topics", "Topics with their totals over all brokers."),
            ("brokers", "Brokers that the registry knows, and how they are."),
            ("gateways", "Gateway workers connected to the brokers."),
            ("connections", "Every connection to a broker."),
        )
    }
    text = {"content": {"text/event-stream": {"schema": TEXT}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HoldMQ console",
            "version": holdmq.__version__,
            "description": "A HoldMQ cluster and its counts. Nothing is changed but saved queries.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            "/api/v1/tps": get(
                "get_tps",
                "Messages and bytes per topic and second, as the statistics job counted them.",
                answer("Tps", "The last seconds; empty with a `notice` when there is no table yet."),
                {"400": "A parameter is wrong."},
                parameters=[
                    parameter("seconds", "How far back to look.", 60, WINDOW_S),
                    parameter("top", "Only so many topics, the busiest; all when absent.", None, 1000),
                ],
            ),
            **{f"/api/v1/{name}": operation for name, operation in listings.items()},
            "/api/v1/stream": get(
                "stream",
                "Server-sent events, once a second: `tps` (a Tps of 15 seconds) and `cluster`.",
                {"description": "The stream; it stays open.", **text},
                {"503": "console.streams_max streams are open."},
            ),
            **openapi_analysis.paths(),
            "/api/v1/openapi.json": get(
                "get_openapi",
                "This document.",
                {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": FREE}}},
                {},
            ),
        },
        "components": {"schemas": _schemas()},
    }
