"""Calls of topic administration, as tests make them."""

from __future__ import annotations

from broker_stack import Stack

from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import (
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsResponse,
    TopicCreateRequest,
    TopicCreateResponse,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
)
from holdmq.wire.offset_headers import OffsetReport, OffsetReportRequest
from holdmq.wire.topic_headers import (
    DELETE,
    HIDE_FROM_CONSUMERS,
    HIDE_FROM_PRODUCERS,
    QueuesRemoveRequest,
    TopicDeleteRequest,
    TopicGrowRequest,
    TopicPauseRequest,
    TopicUpdateRequest,
)


async def _topic(broker: Stack, code: RequestCode, header: Header) -> TopicRow | None:
    reply = await broker.client.call(code, header, 40.0)
    found = rows(TopicRow, reply.header(TopicCreateResponse).topics)
    return found[0] if found else None


async def create(broker: Stack, request: TopicCreateRequest) -> TopicRow:
    row = await _topic(broker, RequestCode.TOPIC_CREATE, request)
    assert row is not None
    return row


async def update(broker: Stack, request: TopicUpdateRequest) -> TopicRow:
    row = await _topic(broker, RequestCode.TOPIC_UPDATE, request)
    assert row is not None
    return row


async def grow(broker: Stack, topic: str, queues: int) -> TopicRow:
    row = await _topic(broker, RequestCode.TOPIC_GROW, TopicGrowRequest(topic, queues))
    assert row is not None
    return row


async def remove(broker: Stack, topic: str, queues: int, step: str) -> TopicRow:
    row = await _topic(broker, RequestCode.QUEUES_REMOVE, QueuesRemoveRequest(topic, queues, step))
    assert row is not None
    return row


async def remove_all_steps(broker: Stack, topic: str, queues: int) -> TopicRow:
    for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS):
        await remove(broker, topic, queues, step)
    return await remove(broker, topic, queues, DELETE)


async def delete(broker: Stack, topic: str, force: bool = False) -> None:
    assert await _topic(broker, RequestCode.TOPIC_DELETE, TopicDeleteRequest(topic, force)) is None


async def pause(broker: Stack, topic: str, is_paused: bool = True) -> TopicRow:
    row = await _topic(broker, RequestCode.TOPIC_PAUSE, TopicPauseRequest(topic, is_paused))
    assert row is not None
    return row


async def listed(broker: Stack) -> dict[str, TopicRow]:
    reply = await broker.client.call(RequestCode.TOPIC_LIST, TopicListRequest())
    return {row.topic: row for row in rows(TopicRow, reply.header(TopicListResponse).topics)}


async def bounds(broker: Stack, topic: str) -> list[tuple[int, int]]:
    reply = await broker.client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest([topic]))
    found = rows(QueueBounds, reply.header(QueueBoundsResponse).queues)
    return [(row.first_offset, row.end_offset) for row in found]


async def consumed(broker: Stack, group: str, topic: str, queue_id: int, offset: int) -> None:
    """The group says that it is so far."""
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(group))
    report = OffsetReport(topic, queue_id, 0, offset, 0)
    await broker.client.call(RequestCode.OFFSET_REPORT, OffsetReportRequest(group, [report]))
