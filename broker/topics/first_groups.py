"""Which group was the first to read a topic, where the topic says that it matters.

The first one is written down in topic.json, for good: it stays the first when it is deleted. Groups that read
the topic before anybody asked count by their offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from broker.kernel.request_family import RequestFamily
from broker.topics.core.table import Topic
from broker.topics.requests import TopicRequests
from broker.topics.topic_file import Staged
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.topic_headers import (
    FIRST_GROUP_BEGINNING,
    FirstReaderRow,
    TopicFirstGroupRequest,
    TopicFirstGroupResponse,
)

TOPICS_MAX: Final = 10_000
"""Topics of one request: as many as a broker has by default."""

log = structlog.get_logger("holdmq.broker")


class GroupsBegun(Protocol):
    """What is known of groups that read."""

    def begun(self, topic: str) -> Collection[str]:
        """Groups that have an offset in a topic, or had one when it was saved last."""


class FirstGroups(RequestFamily):
    """Answers TOPIC_FIRST_GROUP for one broker."""

    def __init__(self, topics: TopicRequests, groups: GroupsBegun) -> None:
        self._topics = topics
        self._groups = groups

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.TOPIC_FIRST_GROUP: self._first_group}

    def _first_group(self, request: Request) -> None:
        header = request.header(TopicFirstGroupRequest)
        group = header.group
        if len(header.topics) > TOPICS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{len(header.topics)} topics; {TOPICS_MAX} at a time")

        def answer() -> None:
            found = [self._topics.table.get(name) for name in header.topics]
            request.reply(
                TopicFirstGroupResponse(
                    [
                        FirstReaderRow(topic.name, self._reader(topic, group))
                        for topic in found
                        if topic is not None and topic.first_group == FIRST_GROUP_BEGINNING
                    ]
                )
            )

        if not header.is_claim:
            answer()
            return
        claimed: list[str] = []

        def plan(staged: Staged) -> None:
            for name in header.topics:
                topic = staged.get(name)
                if (
                    topic is not None
                    and not topic.is_leaving
                    and topic.first_group == FIRST_GROUP_BEGINNING
                    and not self._reader(topic, group)
                ):
                    staged.put(replace(topic, first_reader=group))
                    claimed.append(name)

        def done(error: HoldMQError | None) -> None:
            if error is not None:
                request.refuse(error)
                return
            for name in claimed:
                log.info("a group is the first that reads a topic", group=group, topic=name)
            answer()

        self._topics.submit(plan, done)

    def _reader(self, topic: Topic, group: str) -> str:
        """The topic's first group as `group` is to see it, "" = it may be the first itself."""
        if topic.first_reader:
            return topic.first_reader
        return min((name for name in self._groups.begun(topic.name) if name != group), default="")
