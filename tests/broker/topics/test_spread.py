"""How far a topic is spread: said or by its kind, kept, and refused where keys would move."""

from __future__ import annotations

import pytest
from broker_stack import Stack, Start
from topic_calls import create, listed, update

from broker.topics.core.changes import settings_to_spread, taken_over
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, RemoteError
from holdmq.wire.headers import TopicCreateRequest
from holdmq.wire.topic_headers import TopicUpdateRequest

NEVER_SAID = {"name": "t", "read_queues": 1, "write_queues": 1}


@pytest.mark.parametrize(
    ("request_", "spread"),
    [
        (TopicCreateRequest("t"), "all"),
        (TopicCreateRequest("t", by_use=True), "all"),
        (TopicCreateRequest("t", spread="fixed"), "fixed"),
        (TopicCreateRequest("t", order=True), "fixed"),
        (TopicCreateRequest("t", kind="table"), "fixed"),
        (TopicCreateRequest("t#tmp"), "fixed"),
    ],
)
async def test_a_topic_is_spread_as_is_said_or_as_its_kind_can_be(
    broker: Stack, request_: TopicCreateRequest, spread: str
) -> None:
    assert (await create(broker, request_)).spread == spread


@pytest.mark.parametrize(
    "request_",
    [
        TopicCreateRequest("t", spread="some"),
        TopicCreateRequest("t", order=True, spread="all"),
        TopicCreateRequest("t", kind="table", spread="all"),
        TopicCreateRequest("t#tmp", spread="all"),
    ],
)
async def test_a_spread_that_no_such_topic_can_have_is_refused(
    broker: Stack, request_: TopicCreateRequest
) -> None:
    with pytest.raises(RemoteError, match="spread") as refused:
        await create(broker, request_)
    assert refused.value.code == Code.TOPIC_INVALID


async def test_an_ordered_topic_is_fixed_until_somebody_says_otherwise(start: Start) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t"))
    assert (await update(broker, TopicUpdateRequest("t", order=True))).spread == "fixed"
    for change in (TopicUpdateRequest("t", spread="all"), TopicUpdateRequest("t", spread="some")):
        with pytest.raises(RemoteError):
            await update(broker, change)
    assert (await update(broker, TopicUpdateRequest("t", order=False))).spread == "fixed"
    assert (await update(broker, TopicUpdateRequest("t", spread="all"))).spread == "all"
    broker = await start()
    assert (await listed(broker))["t"].spread == "all"


async def test_creating_it_again_need_not_say_its_spread(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", spread="fixed"))
    assert (await create(broker, TopicCreateRequest("t"))).spread == "fixed"
    with pytest.raises(RemoteError, match="spread fixed"):
        await create(broker, TopicCreateRequest("t", spread="all"))


@pytest.mark.parametrize(
    ("more", "spread"), [({}, "all"), ({"order": True}, "fixed"), ({"kind": "table"}, "fixed")]
)
def test_topics_of_earlier_builds_are_spread_as_their_kind_can_be(
    more: dict[str, object], spread: str
) -> None:
    table = TopicTable(10, 4)
    table.load({"t": {**NEVER_SAID, **more}}, 1, "topic.json")
    assert table.rows()[0].spread == spread


def test_what_is_taken_over_is_as_it_was_but_begins_anew() -> None:
    topic = Topic(
        "t", 8, 3, 4, key_levels=2, retention_ms=7, stored_queues=9, paused_at=5, pauses=((1, 2),),
        first_group="beginning", first_reader="g",
    )  # fmt: skip
    taken = taken_over("t", settings_to_spread(topic), 900)
    assert taken == Topic(
        "t", 3, 3, 4, key_levels=2, retention_ms=7, stored_queues=3, paused_at=900,
        first_group="beginning", first_reader="g",
    )  # fmt: skip
