"""Messages looked up: by id, by key, by tag and time, the newest first."""

from __future__ import annotations

import base64
from typing import Final, Self

from pydantic import Field, model_validator

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Result
from console.api.moments import Millisecond
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from holdmq.message import Message

PAGE_MAX: Final = 200
BODY_SHOWN_MAX: Final = 4096
"""Bytes of each body in a list; a single message has all of it."""


class MessageQuery(InputModel):
    """Which messages of a topic: by one of key, unique id and tag, or all; stored between two times."""

    topic: str = Field(min_length=1, max_length=255)
    key: str = Field("", max_length=60_000)
    unique_id: str = Field("", max_length=256)
    tag: str | None = Field(None, max_length=60_000, description="A tag, or an MQTT filter over it.")
    begin: Millisecond = Field(0, alias="from", description="Stored since then.")
    end: Millisecond | None = Field(None, alias="to", description="Stored until then.")
    limit: int = Field(50, ge=1, le=PAGE_MAX)
    after: str = Field("", max_length=200_000)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if bool(self.key) + bool(self.unique_id) + (self.tag is not None) > 1:
            raise ValueError("give one of key, unique_id and tag")
        return self


class MessageRow(Answer):
    """A message; times in ms since 1970. `is_cut`: of its body only the beginning is here."""

    message_id: str | None
    topic: str
    tag: str | None
    keys: list[str]
    unique_id: str | None
    client_id: str | None
    born_ms: int
    store_ms: int
    broker: str | None
    queue_id: int
    offset: int
    reconsume_times: int
    properties: dict[str, str]
    size: int
    body_base64: str
    is_cut: bool


class MessageRows(Answer):
    """A part of a search, newest first. Not `is_complete`: a key that too many messages have."""

    messages: list[MessageRow]
    next: str | None
    is_complete: bool


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over the messages of the cluster."""

    async def search(call: Call) -> Result:
        query: MessageQuery = call.query
        cursor = query.after or None
        if query.key or query.unique_id:
            page = await clients.messages.find(
                query.topic,
                query.key,
                unique_id=query.unique_id,
                begin_ms=query.begin,
                end_ms=query.end,
                count=query.limit,
                cursor=cursor,
            )
        else:
            page = await clients.messages.newest_page(
                query.topic,
                query.tag,
                begin_ms=query.begin,
                end_ms=query.end,
                count=query.limit,
                cursor=cursor,
            )
        return MessageRows(
            messages=[message_row(message, BODY_SHOWN_MAX) for message in page.messages],
            next=page.cursor,
            is_complete=page.is_complete,
        )

    async def show(call: Call) -> Result:
        return message_row(await clients.messages.get(call.path("message_id")), None)

    return [
        Endpoint("GET", "messages", Rank.VIEWER, search, "Search a topic, the newest message first.",
                 MessageRows, MessageQuery),
        Endpoint("GET", "messages/{message_id}", Rank.VIEWER, show, "A message by its id.", MessageRow),
    ]  # fmt: skip


def message_row(message: Message, body_max: int | None) -> MessageRow:
    """Return a message as the API shows it, its body cut at `body_max` bytes (None = whole)."""
    body = bytes(message.body)
    shown = body if body_max is None else body[:body_max]
    return MessageRow(
        message_id=None if message.message_id is None else str(message.message_id),
        topic=message.topic,
        tag=message.tag,
        keys=list(message.keys),
        unique_id=message.unique_id,
        client_id=message.client_id,
        born_ms=message.born_ms,
        store_ms=message.store_ms,
        broker=message.broker,
        queue_id=message.queue_id,
        offset=message.queue_offset,
        reconsume_times=message.reconsume_times,
        properties=dict(message.properties),
        size=len(body),
        body_base64=base64.b64encode(shown).decode(),
        is_cut=len(shown) < len(body),
    )
