"""What is kept by key: retained MQTT messages, and the rows of tables."""

from __future__ import annotations

import base64
from typing import Final

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from console.management.messages import BODY_SHOWN_MAX
from console.management.paging import offset_of, wrong_cursor
from holdmq.client.retained import RetainedView

LOOK_MAX: Final = 20_000
"""Retained messages that are passed over for one page: narrow the filter to see more."""


class RetainedQuery(InputModel):
    """Which retained messages: an MQTT filter over their topics."""

    filter: str = Field("#", min_length=1, max_length=60_000)
    limit: int = Field(100, ge=1, le=1000)
    after: str = Field("", max_length=16)


class RetainedRowAnswer(Answer):
    """A topic's retained message; `expires_ms` null = never."""

    topic: str
    broker: str
    client_id: str
    qos: int
    published_ms: int
    expires_ms: int | None
    size: int
    body_base64: str
    is_cut: bool


class RetainedList(Answer):
    """A part of the retained messages, broker by broker, by topic."""

    retained: list[RetainedRowAnswer]
    next: str | None


class Dropped(Answer):
    """Whether there was something."""

    existed: bool


class TableQuery(InputModel):
    """Which rows of a table: whose keys begin with `prefix`."""

    prefix: str = Field("", max_length=4096)
    limit: int = Field(100, ge=1, le=1000)
    after: str = Field("", max_length=70_000)


class TableEntryAnswer(Answer):
    """A row of a table."""

    key: str
    version: int
    size: int
    value_base64: str
    is_cut: bool


class TableEntries(Answer):
    """A part of a table, by key."""

    entries: list[TableEntryAnswer]
    next: str | None


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over retained messages and tables."""
    retained = clients.retained

    async def list_(call: Call) -> Result:
        query: RetainedQuery = call.query
        at = offset_of(query.after)
        if at + query.limit > LOOK_MAX:
            raise wrong_cursor()
        found: list[RetainedView] = []
        passed = 0
        is_more = False
        async for view in retained.list(query.filter):
            passed += 1
            if passed <= at:
                continue
            if len(found) == query.limit:
                is_more = at + 2 * query.limit <= LOOK_MAX
                break
            found.append(view)
        following = str(at + query.limit) if is_more else None
        return RetainedList(retained=[_retained(one, BODY_SHOWN_MAX) for one in found], next=following)

    async def show(call: Call) -> Result:
        view = await retained.show(call.path("topic"))
        if view is None:
            raise RefusedRequest(404, "NOT_FOUND", "the topic has no retained message")
        return _retained(view, None)

    async def drop(call: Call) -> Result:
        return Dropped(existed=await retained.drop(call.path("topic")))

    async def rows(call: Call) -> Result:
        query: TableQuery = call.query
        table = clients.table(call.path("name"))
        try:
            page = await table.scan_page(query.prefix, query.after or None, query.limit)
        finally:
            await table.close()
        return TableEntries(
            entries=[
                TableEntryAnswer(
                    key=one.key,
                    version=one.version,
                    size=len(one.value),
                    value_base64=base64.b64encode(one.value[:BODY_SHOWN_MAX]).decode(),
                    is_cut=len(one.value) > BODY_SHOWN_MAX,
                )
                for one in page.entries
            ],
            next=page.next_after,
        )

    named = frozenset({"topic"})
    return [
        Endpoint("GET", "retained", Rank.VIEWER, list_, "Retained MQTT messages.", RetainedList,
                 RetainedQuery),
        Endpoint("GET", "retained/{topic}", Rank.VIEWER, show, "A topic's retained message.",
                 RetainedRowAnswer, names_slashes=named),
        Endpoint("DELETE", "retained/{topic}", Rank.OPERATOR, drop, "Take a retained message away.", Dropped,
                 names_slashes=named),
        Endpoint("GET", "tables/{name}", Rank.VIEWER, rows, "Rows of a table.", TableEntries, TableQuery),
    ]  # fmt: skip


def _retained(view: RetainedView, body_max: int | None) -> RetainedRowAnswer:
    message = view.message
    shown = message.payload if body_max is None else message.payload[:body_max]
    return RetainedRowAnswer(
        topic=view.topic,
        broker=view.broker,
        client_id=message.client_id,
        qos=message.qos,
        published_ms=message.published_ms,
        expires_ms=message.expires_ms or None,
        size=len(message.payload),
        body_base64=base64.b64encode(shown).decode(),
        is_cut=len(shown) < len(message.payload),
    )
