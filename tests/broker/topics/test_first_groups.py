"""The first group of a topic: who is told that it is, and what is written down."""

from __future__ import annotations

import pytest
from broker_stack import Stack, Start

from holdmq.errors import Code, RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import TopicCreateRequest
from holdmq.wire.offset_headers import OffsetReport, OffsetReportRequest
from holdmq.wire.topic_headers import (
    FIRST_GROUP_BEGINNING,
    FirstReaderRow,
    TopicFirstGroupRequest,
    TopicFirstGroupResponse,
    TopicUpdateRequest,
)


async def ask(broker: Stack, group: str, *topics: str, is_claim: bool = False) -> dict[str, str]:
    request = TopicFirstGroupRequest(group, list(topics), is_claim)
    reply = await broker.client.call(RequestCode.TOPIC_FIRST_GROUP, request)
    return {
        row.topic: row.group for row in rows(FirstReaderRow, reply.header(TopicFirstGroupResponse).topics)
    }


async def create(broker: Stack, topic: str) -> None:
    request = TopicCreateRequest(topic, first_group=FIRST_GROUP_BEGINNING)
    await broker.client.call(RequestCode.TOPIC_CREATE, request)


async def test_who_asks_claims_nothing_and_who_claims_is_the_first_over_restarts(start: Start) -> None:
    broker = await start()
    await create(broker, "a")
    await broker.create("b")
    assert await ask(broker, "g", "a", "b", "c") == {"a": ""}
    assert await ask(broker, "g", "a", "b", is_claim=True) == {"a": "g"}
    assert await ask(broker, "h", "a", is_claim=True) == {"a": "g"}
    broker = await start()
    assert await ask(broker, "h", "a", is_claim=True) == {"a": "g"}


async def test_a_group_that_read_before_the_topic_says_so_was_the_first(broker: Stack) -> None:
    await broker.create("a")
    await broker.produce("a", 0, (b"1", None))
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("old"))
    report = OffsetReportRequest("old", [OffsetReport("a", 0, 0, 1, 0)])
    await broker.client.call(RequestCode.OFFSET_REPORT, report)
    update = TopicUpdateRequest("a", first_group=FIRST_GROUP_BEGINNING)
    await broker.client.call(RequestCode.TOPIC_UPDATE, update)
    assert await ask(broker, "new", "a", is_claim=True) == {"a": "old"}
    assert await ask(broker, "old", "a", is_claim=True) == {"a": "old"}


async def test_another_word_for_the_first_group_is_refused(broker: Stack) -> None:
    await broker.create("a")
    for code, request in (
        (RequestCode.TOPIC_UPDATE, TopicUpdateRequest("a", first_group="end")),
        (RequestCode.TOPIC_CREATE, TopicCreateRequest("b", first_group="end")),
    ):
        with pytest.raises(RemoteError, match="'end' is not one of own, beginning") as refused:
            await broker.client.call(code, request)
        assert refused.value.code == Code.TOPIC_INVALID
