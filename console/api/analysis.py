"""The analysts' part: statements, the past by ranges, saved queries.

Reads are GETs, but a statement is a POST: it may be long, and no link of another site may run one.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from starlette.responses import Response

from console.api.endpoint import Answer, Call, Endpoint, Handler, InputModel, Noticed, Result
from console.api.http import while_there
from console.api.moments import Second
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.sql.analysis import LINES_MAX, TOP_DEFAULT, Analysis
from console.sql.core.history import POINTS_MAX, RANGE_MAX_S
from console.sql.questions import TEXT_MAX, SqlReply

REPORTS: Final = {
    "latency": "Percentiles of store time − born time, by step.",
    "backlog": "The largest backlog of each group, by step.",
    "talkers": "The devices that sent most messages.",
}
MEDIA: Final = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
STATUS: Final = {"refused": 400, "error": 400, "time": 422, "memory": 422, "ended": 422}
WIDTH_DEFAULT_S: Final = 3600

Form = Literal["json", "csv"]


class FormQuery(InputModel):
    """As JSON or as a file of comma-separated values."""

    format: Form = "json"


class RangeQuery(FormQuery):
    """A range of the past: the last hour unless told."""

    first: Second | None = Field(None, alias="from", description="Where it begins: an hour before `to`.")
    until: Second | None = Field(None, alias="to", description="Its end: now.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.first is not None and self.until is not None:
            _check_width(self.first, self.until)
        return self

    def ends(self, now: int) -> tuple[int, int]:
        """Return both ends, in s since 1970. Raises RefusedRequest."""
        until = now if self.until is None else self.until
        first = until - WIDTH_DEFAULT_S if self.first is None else self.first
        try:
            _check_width(first, until)
        except ValueError as error:
            raise RefusedRequest(400, "INVALID_ARGUMENT", str(error), "from") from error
        return first, until


class HistoryQuery(RangeQuery):
    """A range, and how many topics by name; `others` is the rest."""

    top: int | None = Field(None, ge=1, le=LINES_MAX, description=f"{TOP_DEFAULT}; as CSV {LINES_MAX}.")


class Statement(InputModel):
    """A SELECT over the tables."""

    sql: str = Field(min_length=1, max_length=TEXT_MAX, pattern=r"\S")


class ColumnName(Answer):
    """A column of a result, and DuckDB's type."""

    name: str
    type: str


class ResultRows(Noticed):
    """A result, cut at console.sql_rows_max. Whole numbers beyond ±2^53 are text."""

    columns: list[ColumnName]
    seconds: float
    rows: list[list[Any]]


class Line(Answer):
    """A number for each step."""

    messages: list[int]
    bytes: list[int]
    latency_max_ms: list[int]


class TopicLine(Line):
    """The numbers of a topic."""

    topic: str


class RangeOf(Noticed):
    """A range in s since 1970, and how wide a step is."""

    first: int
    until: int
    step_seconds: int


class History(RangeOf):
    """Counts by step, the busiest topic first."""

    table: str | None
    topics: list[TopicLine]
    others: Line | None


class Report(RangeOf):
    """Rows for each step of a range."""

    columns: list[str]
    rows: list[list[Any]]


class SavedQueryRow(Answer):
    """A query under its name. `ready_made`: it comes with the console, and stays."""

    name: str
    sql: str
    saved: str | None
    ready_made: bool


class SavedQueryList(Answer):
    """All of them, ready-made ones last."""

    queries: list[SavedQueryRow]


def endpoints(analysis: Analysis) -> list[Endpoint]:
    """Return the endpoints over `analysis`."""

    async def sql(call: Call) -> Result:
        statement: Statement = call.body
        form: Form = call.query.format
        asking = analysis.select(statement.sql, form)
        return _shown(await while_there(call.request.receive, asking), form, "query")

    async def history(call: Call) -> Result:
        query: HistoryQuery = call.query
        first, until = query.ends(analysis.now())
        top = query.top or (LINES_MAX if query.format == "csv" else TOP_DEFAULT)
        asking = analysis.history(first, until, top, query.format)
        return _shown(await while_there(call.request.receive, asking), query.format, "history")

    def report(kind: str) -> Handler:
        async def answer(call: Call) -> Result:
            query: RangeQuery = call.query
            asking = analysis.report(kind, *query.ends(analysis.now()), query.format)
            return _shown(await while_there(call.request.receive, asking), query.format, kind)

        return answer

    async def queries(_call: Call) -> Result:
        return SavedQueryList.model_validate(await analysis.saved.listing())

    async def save(call: Call) -> Result:
        statement: Statement = call.body
        await analysis.saved.save(call.path("name"), statement.sql)
        return None

    async def delete(call: Call) -> Result:
        name = call.path("name")
        if not await analysis.saved.delete(name):
            raise RefusedRequest(404, "NOT_FOUND", f"no query is saved as {name[:100]!r}")
        return None

    named = frozenset({"name"})
    csv = ("text/csv",)
    return [
        Endpoint("POST", "sql", Rank.VIEWER, sql, "Run one SELECT over the statistics job's tables.",
                 ResultRows, FormQuery, Statement, files=csv),
        Endpoint("GET", "history", Rank.VIEWER, history, "Messages, bytes and largest latency per topic over "
                 f"any range, in at most {POINTS_MAX} steps.", History, HistoryQuery, files=csv),
        *(Endpoint("GET", kind, Rank.VIEWER, report(kind), summary, Report, RangeQuery, files=csv)
          for kind, summary in REPORTS.items()),
        Endpoint("GET", "queries", Rank.VIEWER, queries, "Saved queries.", SavedQueryList),
        Endpoint("PUT", "queries/{name}", Rank.OPERATOR, save, "Save a query under a name.",
                 body=Statement, status=204, names_slashes=named),
        Endpoint("DELETE", "queries/{name}", Rank.OPERATOR, delete, "Delete a saved query.",
                 status=204, names_slashes=named),
    ]  # fmt: skip


def _check_width(first: int, until: int) -> None:
    if not 1 <= until - first <= RANGE_MAX_S:
        raise ValueError("from must lie before to, by ten years at most")


def _shown(reply: SqlReply | None, form: Form, name: str) -> Response:
    if reply is None:
        # Who asked has left: nobody reads this.
        return Response(status_code=499)
    if reply.outcome != "ok":
        raise RefusedRequest(STATUS[reply.outcome], f"QUERY_{reply.outcome.upper()}", reply.message)
    response = Response(reply.body, media_type=MEDIA[form])
    if form == "csv":
        response.headers["Content-Disposition"] = f'attachment; filename="holdmq-{name}.csv"'
        if reply.message:
            # A file that was cut cannot say so itself without being read as a row.
            response.headers["HoldMQ-Notice"] = reply.message
    return response
