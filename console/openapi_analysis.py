"""The analysts' part of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from console.analysis import LINES_MAX, TOP_DEFAULT
from console.core.history import POINTS_MAX
from console.openapi_shapes import (
    FLAG,
    INTEGER,
    NOTICE,
    TEXT,
    answer,
    call,
    get,
    listed,
    parameter,
    ref,
    said,
    structure,
)
from console.parameters import FORMS
from console.saved import NAME_MAX
from console.sql.questions import TEXT_MAX

_CELL: dict[str, Any] = {
    "type": ["string", "number", "integer", "boolean", "array", "object", "null"],
    "description": "Times are ISO 8601; whole numbers beyond ±2^53 and decimals of over 15 digits are text.",
    "items": {},
}


def schemas() -> dict[str, Any]:
    """Return the schemas by name."""
    line = {name: listed(INTEGER) for name in ("messages", "bytes", "latency_max_ms")}
    range_of = {"first": said(INTEGER, "Seconds since 1970."), "until": INTEGER, "step_seconds": INTEGER}
    return {
        "Statement": structure({"sql": {**TEXT, "maxLength": TEXT_MAX}}),
        "Rows": structure(
            {
                "columns": listed(structure({"name": TEXT, "type": said(TEXT, "DuckDB's type.")})),
                "seconds": {"type": "number"},
                "notice": NOTICE,
                "rows": listed(listed(_CELL)),
            },
            optional=("notice",),
        ),
        "History": structure(
            {
                **range_of,
                "table": {"type": ["string", "null"]},
                "topics": said(
                    listed(structure({"topic": TEXT, **line})), "Busiest first, a number for each step."
                ),
                "others": {**structure(line), "type": ["object", "null"]},
                "notice": NOTICE,
            },
            optional=("notice",),
        ),
        "Report": structure(
            {**range_of, "columns": listed(TEXT), "rows": listed(listed(_CELL)), "notice": NOTICE},
            optional=("notice",),
        ),
        "SavedQuery": structure(
            {
                "name": TEXT,
                "sql": TEXT,
                "saved": {"type": ["string", "null"], "format": "date-time"},
                "ready_made": said(FLAG, "It comes with the console, and stays."),
            }
        ),
        "SavedQueries": structure({"queries": listed(ref("SavedQuery"))}),
    }


def paths() -> dict[str, Any]:
    """Return the paths of the history and of SQL."""
    form = _text(
        "format", "As JSON or as a file of comma-separated values.", enum=list(FORMS), default=FORMS[0]
    )
    ends = [
        _moment("from", "Where it begins: an hour before `to`."),
        _moment("to", "Its end: now."),
        form,
    ]
    top = parameter(
        "top", "So many topics by name, the busiest; `others` is the rest.", TOP_DEFAULT, LINES_MAX
    )
    wrong = {
        "400": "A parameter or the statement is wrong, or no read of the tables; a sentence says which.",
        "422": "The query took more time or memory than it may, or its process ended.",
        "503": "console.sql_waiting_max queries are in hand.",
    }
    body = {
        "required": True,
        "content": {"application/json": {"schema": ref("Statement")}},
    }
    foreign = {"403": "A page of another origin made the request."}
    name = [{**_text("name", "The query's name.", maxLength=NAME_MAX), "in": "path", "required": True}]
    disk = {"503": "The disk refuses it, or as many are saved as may be."}
    unnamed = {"400": "The name or the statement cannot be.", **foreign}
    done = {"204": {"description": "Done, and on the disk."}}
    return {
        "/api/v1/sql": call(
            "post",
            "run_sql",
            "Run one SELECT over the tables of the statistics job.",
            {"200": _table("Rows", "The result, cut at console.sql_rows_max: then with a `notice`.")},
            {**wrong, **foreign, "413": "The request is too long."},
            parameters=[form],
            requestBody=body,
        ),
        "/api/v1/history": get(
            "get_history",
            f"Messages, bytes and largest latency per topic over any range, in at most {POINTS_MAX} steps.",
            _table("History", "Numbers by step; as CSV a line for each step and topic."),
            wrong,
            parameters=[*ends, top],
        ),
        **{
            f"/api/v1/{kind}": get(f"get_{kind}", summary, _table("Report", "Rows."), wrong, parameters=ends)
            for kind, summary in (
                ("latency", "Percentiles of store time − born time, by step."),
                ("backlog", "The largest backlog of each group, by step."),
                ("talkers", "The devices that sent most messages."),
            )
        },
        "/api/v1/queries": get(
            "list_queries",
            "Saved queries.",
            answer("SavedQueries", "All of them, ready-made ones last."),
            disk,
        ),
        "/api/v1/queries/{name}": {
            **call(
                "put",
                "save_query",
                "Save a query under a name.",
                done,
                {**unnamed, **disk, "413": "The request is too long."},
                parameters=name,
                requestBody=body,
            ),
            **call(
                "delete",
                "delete_query",
                "Delete a saved query.",
                done,
                {**unnamed, **disk, "404": "There is none of this name."},
                parameters=name,
            ),
        },
    }


def _table(schema: str, description: str) -> dict[str, Any]:
    found = answer(schema, description)
    return {**found, "content": {**found["content"], "text/csv": {"schema": TEXT}}}


def _text(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


def _moment(name: str, description: str) -> dict[str, Any]:
    return _text(name, f"{description} RFC 3339 with a zone, or whole seconds since 1970.")
