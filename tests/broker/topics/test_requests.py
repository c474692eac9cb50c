"""topic.json: durable before it is answered, refused by name when it is damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from broker_stack import Stack
from tested_engine import state_file

from broker.app import topic_lists
from holdmq.errors import Code, RemoteError, StoreFormatError
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    TopicCreateRequest,
    TopicCreateResponse,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
)


async def create(broker: Stack, request: TopicCreateRequest) -> TopicRow:
    reply = await broker.client.call(RequestCode.TOPIC_CREATE, request)
    return rows(TopicRow, reply.header(TopicCreateResponse).topics)[0]


async def test_a_topic_is_in_its_file_before_it_is_answered(broker: Stack, tmp_path: Path) -> None:
    row = await create(broker, TopicCreateRequest("devices", by_use=True))
    assert (row.write_queues, row.key_levels) == (4, 1)
    saved = json.loads(state_file(tmp_path, "topic.json"))
    assert saved["content"]["devices"]["write_queues"] == 4


async def test_many_creations_at_once_all_succeed_and_survive_a_restart(
    start: Callable[..., Awaitable[Stack]],
) -> None:
    broker = await start()
    requests = [TopicCreateRequest(f"t{i % 10}", by_use=True) for i in range(40)]
    await asyncio.gather(*(create(broker, r) for r in requests))
    broker = await start()
    reply = await broker.client.call(RequestCode.TOPIC_LIST, TopicListRequest())
    assert [r[0] for r in reply.header(TopicListResponse).topics] == sorted(f"t{i}" for i in range(10))


async def test_a_column_has_all_topics_however_many_queues_they_have(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_lists, "QUEUES_PER_TURN", 3)
    for name, queues in (("b", 2), ("a", 4), ("c", 1)):
        await create(broker, TopicCreateRequest(name, queues))
    for number in range(3):
        await broker.produce("b", number % 2, (b"leaf", None))

    async def column(name: str, search: str = "") -> dict[str, int | str]:
        reply = await broker.client.call(RequestCode.TOPIC_LIST, TopicListRequest(False, None, search, name))
        answer = reply.header(TopicListResponse)
        assert answer.topics == answer.stats == []
        return dict(zip(answer.names or [], answer.values or [], strict=True))

    assert await column("messages_stored") == {"a": 0, "b": 3, "c": 0}
    assert await column("messages_in") == {"a": 0, "b": 3, "c": 0}
    assert await column("write_queues", "B") == {"b": 2}
    assert await column("topic") == {"a": "a", "b": "b", "c": "c"}
    with pytest.raises(RemoteError, match="column: one of topic, kind"):
        await column("colour")
    reply = await broker.client.call(RequestCode.TOPIC_LIST, TopicListRequest(names=["c", "b", "z"]))
    assert [row[0] for row in reply.header(TopicListResponse).topics] == ["b", "c"]
    assert [row[5] for row in reply.header(TopicListResponse).stats] == [3, 0]


async def test_creating_it_again_needs_the_same_settings(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    assert (await create(broker, TopicCreateRequest("t", 2))).write_queues == 2
    assert (await create(broker, TopicCreateRequest("t", 9, by_use=True))).write_queues == 2
    with pytest.raises(RemoteError, match="2 queues") as refused:
        await create(broker, TopicCreateRequest("t", 3))
    assert refused.value.code == Code.TOPIC_EXISTS


@pytest.mark.parametrize("name", ["", "a b", "%SYS", "a/b", "x" * 128, "ü", "#tmp"])
async def test_names_that_no_client_may_use_are_refused(broker: Stack, name: str) -> None:
    with pytest.raises(RemoteError) as refused:
        await create(broker, TopicCreateRequest(name))
    assert refused.value.code == Code.TOPIC_INVALID


@pytest.mark.parametrize("queues", [-1, 1025])
async def test_queue_counts_are_bounded(broker: Stack, queues: int) -> None:
    with pytest.raises(RemoteError) as refused:
        await create(broker, TopicCreateRequest("t", queues))
    assert refused.value.code == Code.TOPIC_INVALID


async def test_topics_are_bounded(start: Callable[..., Awaitable[Stack]]) -> None:
    broker = await start(topics_max=2)
    for name in ("a", "b"):
        await create(broker, TopicCreateRequest(name))
    with pytest.raises(RemoteError, match="topics_max") as refused:
        await create(broker, TopicCreateRequest("c"))
    assert refused.value.code == Code.TOPIC_LIMIT


async def test_without_auto_creation_only_commands_create(start: Callable[..., Awaitable[Stack]]) -> None:
    broker = await start(auto_create=False)
    with pytest.raises(RemoteError) as refused:
        await create(broker, TopicCreateRequest("t", by_use=True))
    assert refused.value.code == Code.TOPIC_UNKNOWN
    await create(broker, TopicCreateRequest("t"))
    assert (await create(broker, TopicCreateRequest("t", by_use=True))).topic == "t"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format":1', '"format":99'),
        ('"write_queues":4', '"write_queues":5'),
        ("{", "["),
    ],
)
async def test_a_corrupt_file_is_refused_with_a_sentence(
    start: Callable[..., Awaitable[Stack]], tmp_path: Path, old: str, new: str
) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t"))
    path = tmp_path / "store" / "config" / "topic.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(StoreFormatError, match=r"topic\.json"):
        await start()
