"""Topics: listed, made, changed, resized, paused, deleted; and a message published to one."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from console.api.endpoint import Answer, Call, Endpoint, InputModel, ListQuery, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.live.cluster import Cluster, perm_letters, topic_row
from console.management.clients import ClusterClients
from console.management.paging import following, offset_of, sort_of
from holdmq.client.admin import TOPIC_COLUMNS
from holdmq.client.topics import ReadersView, Removal
from holdmq.errors import Code, RemoteError
from holdmq.message import Message
from holdmq.wire.headers import TopicRow
from holdmq.wire.topic_headers import PERM_READ, PERM_WRITE

QUEUES_MAX: Final = 1024
RETENTION_MAX_MS: Final = 10 * 366 * 86_400_000
BODY_MAX: Final = 4 << 20
"""Bytes of a request that publishes: a body of 3 MiB as base64."""
FirstGroup = Literal["own", "beginning"]
Spread = Literal["all", "fixed"]
Perm = Literal["rw", "r", "w", "none"]
PERMS: Final[dict[str, int]] = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE, "none": 0}


class TopicsQuery(ListQuery):
    """Which topics; `system`: those of HoldMQ itself too."""

    system: bool = False


class TopicOverview(Answer):
    """A topic over all brokers: settings as at the first of them, counts since the brokers started."""

    topic: str
    kind: str
    read_queues: int
    write_queues: int
    stored_queues: int
    brokers: list[str]
    perm: str
    order: bool
    retention_ms: int
    first_group: str
    first_reader: str
    spread: str
    key_levels: int
    is_paused: bool
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    messages_replayed: int
    bytes_replayed: int
    messages_stored: int


class TopicList(Noticed):
    """A part of the topics."""

    topics: list[TopicOverview]
    total: int
    next: str | None


class TopicAtBroker(Answer):
    """A topic's settings at one broker."""

    broker: str
    kind: str
    read_queues: int
    write_queues: int
    stored_queues: int
    perm: str
    order: bool
    retention_ms: int
    first_group: str
    first_reader: str
    spread: str
    key_levels: int
    is_paused: bool


class QueueRow(Answer):
    """A queue, and the offsets between which its messages are."""

    broker: str
    queue_id: int
    first_offset: int
    end_offset: int
    hidden_from_producers: bool
    hidden_from_consumers: bool


class RemovalState(Answer):
    """Queues are being removed, down to `to`; `step` was taken last."""

    to: int
    step: str


class TopicDetail(TopicOverview):
    """A topic, broker by broker and queue by queue."""

    broker_rows: list[TopicAtBroker]
    queues: list[QueueRow]
    removal: RemovalState | None


class ReaderOverview(Answer):
    """One reader of a topic at one broker; `group` "" = none, `seen_ms` is when it read last."""

    broker: str
    kind: str
    group: str
    client_id: str
    role: str
    address: str
    principal: str
    since_ms: int
    seen_ms: int


class ReaderList(Noticed):
    """Readers of a topic; `total` may be more than are listed."""

    readers: list[ReaderOverview]
    total: int


class NewTopic(InputModel):
    """A topic to make at every broker; `queues` of each, 0 = as the broker's configuration says."""

    topic: str = Field(min_length=1, max_length=255)
    queues: int = Field(0, ge=0, le=QUEUES_MAX)
    key_levels: int = Field(1, ge=1, le=8)
    kind: Literal["log", "table", "temporary"] = "log"
    perm: Perm = "rw"
    order: bool = False
    retention_ms: int = Field(0, ge=0, le=RETENTION_MAX_MS)
    first_group: FirstGroup = "own"
    spread: Spread | None = None


class TopicChange(InputModel):
    """What is to be different; null = as it is."""

    perm: Perm | None = None
    order: bool | None = None
    retention_ms: int | None = Field(None, ge=0, le=RETENTION_MAX_MS)
    first_group: FirstGroup | None = None
    spread: Spread | None = None


class QueueCount(InputModel):
    """How many queues a topic is to have at each broker."""

    queues: int = Field(ge=1, le=QUEUES_MAX)


class RemovalAnswer(Answer):
    """How far a change is. Until it is `done`, ask again; `waits_for` says whom it waits for."""

    done: bool
    step: str
    waits_for: str | None


class DeleteQuery(InputModel):
    """`force`: at once, whoever uses it; what was not consumed is lost."""

    force: bool = False


class NewMessage(InputModel):
    """A message: a text, or bytes as base64."""

    body: str | None = Field(None, max_length=BODY_MAX)
    body_base64: str | None = Field(None, max_length=BODY_MAX)
    tag: str | None = Field(None, max_length=60_000)
    keys: list[str] = Field([], max_length=64)
    properties: dict[str, str] = Field({}, max_length=256)

    @model_validator(mode="after")
    def _check_body(self) -> Self:
        if (self.body is None) == (self.body_base64 is None):
            raise ValueError("body or body_base64 is needed, and not both")
        return self

    def content(self) -> bytes:
        """Return the bytes. Raises RefusedRequest."""
        if self.body is not None:
            return self.body.encode()
        try:
            return base64.b64decode(self.body_base64 or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise RefusedRequest(400, "INVALID_ARGUMENT", f"body_base64: {error}", "body_base64") from error


class Published(Answer):
    """Where a message is."""

    message_id: str | None
    broker: str
    queue_id: int
    offset: int


def endpoints(cluster: Cluster, clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over the topics of the cluster."""
    admin = clients.admin

    async def list_(call: Call) -> Result:
        query: TopicsQuery = call.query
        found = await cluster.topics(
            query.q, sort_of(query, TOPIC_COLUMNS), offset_of(query.after), query.limit, query.system
        )
        return TopicList.model_validate({**found, "next": following(query, found["total"])})

    async def detail(name: str) -> TopicDetail:
        view = next(iter(await admin.topics(True, [name])), None)
        if view is None:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"there is no topic {name[:255]!r}")
        at_brokers = sorted(view.rows.items())
        queues = [
            QueueRow(
                broker=queue.broker,
                queue_id=queue.queue_id,
                first_offset=bounds.first_offset,
                end_offset=bounds.end_offset,
                hidden_from_producers=queue.queue_id >= view.rows[queue.broker].write_queues,
                hidden_from_consumers=queue.queue_id >= view.rows[queue.broker].read_queues,
            )
            for queue, bounds in sorted((await admin.queue_bounds([name])).items())
            if queue.broker in view.rows
        ]
        return TopicDetail(
            **topic_row(view),
            broker_rows=[_at_broker(broker, row) for broker, row in at_brokers],
            queues=queues,
            removal=_removal([row for _, row in at_brokers]),
        )

    async def show(call: Call) -> Result:
        return await detail(call.path("name"))

    async def readers(call: Call) -> Result:
        answers = await admin.topic_readers(call.path("name"))
        found = {b: view for b, view in answers.items() if isinstance(view, ReadersView)}
        listed = [ReaderOverview(broker=b, **row._asdict()) for b, view in found.items() for row in view.rows]
        total = sum(view.total for view in found.values())
        away = sorted(set(answers) - set(found))
        notes = [f"no answer from {', '.join(away)}: who reads there is missing"] if away else []
        if any(view.has_others for view in found.values()):
            notes.append("more read it who are not named: a broker's table of readers is full")
        return ReaderList(readers=listed, total=total, **({"notice": "; ".join(notes)} if notes else {}))

    async def create(call: Call) -> Result:
        asked: NewTopic = call.body
        await admin.create_topic(
            asked.topic,
            asked.queues,
            asked.key_levels,
            kind=asked.kind,
            perm=PERMS[asked.perm],
            order=asked.order,
            retention_ms=asked.retention_ms,
            first_group=asked.first_group,
            spread=asked.spread or "",
        )
        return await changed(asked.topic)

    async def update(call: Call) -> Result:
        asked: TopicChange = call.body
        perm = None if asked.perm is None else PERMS[asked.perm]
        await admin.update_topic(
            call.path("name"),
            perm=perm,
            order=asked.order,
            retention_ms=asked.retention_ms,
            first_group=asked.first_group,
            spread=asked.spread,
        )
        return await changed(call.path("name"))

    async def changed(name: str) -> TopicDetail:
        cluster.forget()
        return await detail(name)

    async def pause(call: Call) -> Result:
        await admin.pause_topic(call.path("name"))
        return await changed(call.path("name"))

    async def resume(call: Call) -> Result:
        await admin.pause_topic(call.path("name"), False)
        return await changed(call.path("name"))

    async def delete(call: Call) -> Result:
        name, query = call.path("name"), call.query
        if not query.force:
            removal = await admin.hide_queues(name, 0)
            if removal.waits_for is not None:
                return _removal_answer(removal)
        await admin.delete_topic(name, force=query.force)
        cluster.forget()
        return RemovalAnswer(done=True, step="delete", waits_for=None)

    async def resize(call: Call) -> Result:
        asked: QueueCount = call.body
        removal = await admin.resize_topic(call.path("name"), asked.queues)
        cluster.forget()
        return _removal_answer(removal)

    async def publish(call: Call) -> Result:
        asked: NewMessage = call.body
        name = call.path("name")
        if await admin.routes.topic(name) is None:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"there is no topic {name[:255]!r}")
        message = Message(
            name, asked.content(), asked.tag, tuple(asked.keys), asked.properties, client_id=None
        )
        sent = await clients.producer.send(message)
        return Published(
            message_id=None if sent.message_id is None else str(sent.message_id),
            broker=sent.queue.broker,
            queue_id=sent.queue.queue_id,
            offset=sent.queue_offset,
        )

    viewer, operator, admins = Rank.VIEWER, Rank.OPERATOR, Rank.ADMIN
    one = "topics/{name}"
    return [
        Endpoint("GET", "topics", viewer, list_, "Topics with their totals over all brokers.", TopicList,
                 TopicsQuery),
        Endpoint("POST", "topics", operator, create, "Make a topic at every broker.", TopicDetail,
                 body=NewTopic, status=201),
        Endpoint("GET", one, viewer, show, "A topic, its queues and its settings at each broker.",
                 TopicDetail),
        Endpoint("GET", f"{one}/readers", viewer, readers, "Who reads a topic, whichever way.",
                 ReaderList),
        Endpoint("PATCH", one, operator, update, "Change a topic's settings.", TopicDetail,
                 body=TopicChange),
        Endpoint("DELETE", one, admins, delete, "Delete a topic once every group has consumed it: each call "
                 "takes the steps that can be taken.", RemovalAnswer, DeleteQuery),
        Endpoint("PUT", f"{one}/queues", operator, resize, "Grow a topic, or shrink it: each call takes the "
                 "steps that can be taken.", RemovalAnswer, body=QueueCount),
        Endpoint("POST", f"{one}/pause", operator, pause, "Pause a topic: it takes, and delivers nothing.",
                 TopicDetail),
        Endpoint("POST", f"{one}/resume", operator, resume, "Resume a topic.", TopicDetail),
        Endpoint("POST", f"{one}/messages", operator, publish, "Publish a message.", Published,
                 body=NewMessage, status=201, body_max=BODY_MAX + 65_536),
    ]  # fmt: skip


def _at_broker(broker: str, row: TopicRow) -> TopicAtBroker:
    return TopicAtBroker(
        broker=broker,
        kind=row.kind,
        read_queues=row.read_queues,
        write_queues=row.write_queues,
        stored_queues=row.stored_queues or row.read_queues,
        perm=perm_letters(row.perm),
        order=row.order,
        retention_ms=row.retention_ms,
        first_group=row.first_group,
        first_reader=row.first_reader,
        spread=row.spread,
        key_levels=row.key_levels,
        is_paused=row.is_paused,
    )


def _removal(rows: list[TopicRow]) -> RemovalState | None:
    for row in rows:
        if row.read_queues < (row.stored_queues or row.read_queues):
            return RemovalState(to=row.write_queues, step="hide_from_consumers")
    for row in rows:
        if row.write_queues < row.read_queues:
            return RemovalState(to=row.write_queues, step="hide_from_producers")
    return None


def _removal_answer(removal: Removal) -> RemovalAnswer:
    return RemovalAnswer(done=removal.waits_for is None, step=removal.step, waits_for=removal.waits_for)
