"""The analysts' part of ``/api/v1``: statements, the past by ranges, saved queries.

Reads are GETs, but a statement is a POST: it may be long, and no link of another site may run one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from console import parameters
from console.analysis import LINES_MAX, TOP_DEFAULT, Analysis
from console.api import PREFIX
from console.http import error_response, while_there
from console.saved import QueriesFullError
from console.sql.box import BoxFullError
from console.sql.questions import TEXT_MAX, SqlReply
from holdmq.errors import HoldMQError, StorageError, UsageError

BODY_MAX: Final = 8 * TEXT_MAX
"""Bytes of a request: the longest statement, each of its characters escaped."""

REPORTS: Final = ("latency", "backlog", "talkers")
MEDIA: Final = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
STATUS: Final = {"refused": 400, "error": 400, "time": 422, "memory": 422, "ended": 422}

Handler = Callable[[Request], Awaitable[Response]]


def routes(analysis: Analysis) -> list[BaseRoute]:
    """Return the routes over `analysis`."""

    async def sql(request: Request) -> Response:
        statement = await _text_of(request, "sql")
        form = parameters.form(request)
        return _shown(await while_there(request.receive, analysis.select(statement, form)), form, "query")

    async def history(request: Request) -> Response:
        first, until = parameters.ends(request, analysis.now())
        form = parameters.form(request)
        top = parameters.number(request, "top", LINES_MAX if form == "csv" else TOP_DEFAULT, LINES_MAX)
        asking = analysis.history(first, until, top, form)
        return _shown(await while_there(request.receive, asking), form, "history")

    def report(kind: str) -> Handler:
        async def answer(request: Request) -> Response:
            first, until = parameters.ends(request, analysis.now())
            form = parameters.form(request)
            asking = analysis.report(kind, first, until, form)
            return _shown(await while_there(request.receive, asking), form, kind)

        return answer

    async def queries(_request: Request) -> Response:
        return JSONResponse(await analysis.saved.listing())

    async def save(request: Request) -> Response:
        await analysis.saved.save(request.path_params["name"], await _text_of(request, "sql"))
        return Response(status_code=204)

    async def delete(request: Request) -> Response:
        name = request.path_params["name"]
        if not await analysis.saved.delete(name):
            return error_response(404, "NOT_FOUND", f"no query is saved as {name[:100]!r}")
        return Response(status_code=204)

    return [
        Route(f"{PREFIX}/sql", _told(sql), methods=["POST"]),
        Route(f"{PREFIX}/history", _told(history), methods=["GET"]),
        *(Route(f"{PREFIX}/{kind}", _told(report(kind)), methods=["GET"]) for kind in REPORTS),
        Route(f"{PREFIX}/queries", _told(queries), methods=["GET"]),
        # A name may have a slash in it.
        Route(f"{PREFIX}/queries/{{name:path}}", _told(save), methods=["PUT"]),
        Route(f"{PREFIX}/queries/{{name:path}}", _told(delete), methods=["DELETE"]),
    ]


def _told(handler: Handler) -> Handler:
    """Have what `handler` raises answered in JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except UsageError as error:
            return error_response(400, "INVALID_ARGUMENT", str(error))
        except (BoxFullError, QueriesFullError) as error:
            busy = error_response(503, "BUSY", str(error))
            if isinstance(error, BoxFullError):
                busy.headers["Retry-After"] = "1"
            return busy
        except StorageError as error:
            return error_response(503, error.code.name, f"saved queries: {error}")
        except HoldMQError as error:
            return error_response(503, error.code.name, str(error))

    return answer


def _shown(reply: SqlReply | None, form: str, name: str) -> Response:
    if reply is None:
        # Who asked has left: nobody reads this.
        return Response(status_code=499)
    if reply.outcome != "ok":
        return error_response(STATUS[reply.outcome], f"QUERY_{reply.outcome.upper()}", reply.message)
    response = Response(reply.body, media_type=MEDIA[form])
    if form == "csv":
        response.headers["Content-Disposition"] = f'attachment; filename="holdmq-{name}.csv"'
        if reply.message:
            # A file that was cut cannot say so itself without being read as a row.
            response.headers["HoldMQ-Notice"] = reply.message
    return response


async def _text_of(request: Request, key: str) -> str:
    """Return the text `key` of the request's JSON. Raises UsageError; HTTPException when it is too long."""
    # A form or text/plain is what another site's page may send without being asked first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise UsageError(f'the request must be JSON, {{"{key}": "…"}}, with Content-Type: application/json')
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise HTTPException(413, f"a request has at most {BODY_MAX} bytes")
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is no JSON: {str(error)[:100]}") from error
    text = value.get(key) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip() or len(text) > TEXT_MAX:
        raise UsageError(f"{key} must be a text of 1 to {TEXT_MAX:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # JSON can say it, UTF-8 cannot: saved, no listing of queries could be sent any more.
        raise UsageError(f"{key} has half of a character, a surrogate without its other half") from error
    return text
