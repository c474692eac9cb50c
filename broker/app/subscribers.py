"""What each connection does, in groups of every mode and beside them: for the list of connections."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from broker.groups.requests import Groups
from broker.readers.core.table import ReaderTable
from broker.shared_groups.requests import SharedMode
from holdmq.names.topics import is_system_topic
from holdmq.rpc.connection import Connection
from holdmq.wire.group_headers import SHARED
from holdmq.wire.headers import SubscriptionRow

SHOWN_MAX: Final = 20
"""Subscriptions that are shown of one connection: a list of 10,000 connections stays in a frame."""

READS_SHOWN_MAX: Final = 10
"""Topics that are shown of those that one connection reads for no group."""


class ConnectionActivity(NamedTuple):
    """What a connection does: topics that it sent to, and (kind, topic) of what it reads for no group."""

    produces: list[str]
    reads: list[tuple[str, str]]


def activity(
    producing: SentTopics, readers: ReaderTable[Connection], connection: Connection
) -> ConnectionActivity:
    """What a connection does beside its membership of groups; system topics are left out."""
    reads = [
        (reader.kind, topic)
        for reader in readers.asked_by(connection)
        if not reader.group
        for topic in reader.topics
        if not is_system_topic(topic)
    ]
    sent = [topic for topic in producing.topics_of(connection) if not is_system_topic(topic)]
    return ConnectionActivity(sent, reads)


class SentTopics(Protocol):
    """What is known of those that produce."""

    def topics_of(self, owner: Connection, /) -> list[str]:
        """The topics that a connection sent to last."""


Subscriptions = dict[Connection, list[SubscriptionRow]]


def subscriptions(groups: Groups, shared: SharedMode) -> Subscriptions:
    """All subscriptions by connection, those of a group together; retry topics are left out."""
    found: Subscriptions = {}
    for name in groups.members.groups():
        for member in groups.members.of(name):
            found.setdefault(member.owner, []).extend(
                SubscriptionRow(name, member.mode, wanted.topic, wanted.filter)
                for wanted in member.subscriptions
                if not is_system_topic(wanted.topic)
            )
    for name, group in shared.core.groups.items():
        for one in group.members.values():
            assert isinstance(one.owner, Connection)
            found.setdefault(one.owner, []).extend(
                SubscriptionRow(name, SHARED, topic, group.filters[topic].text)
                for topic in sorted(one.topics)
                if topic in group.filters and not is_system_topic(topic)
            )
    return found
