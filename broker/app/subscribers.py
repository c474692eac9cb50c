"""What each connection subscribes to, in groups of every mode: for the list of connections."""

from __future__ import annotations

from typing import Final

from broker.groups.requests import Groups
from broker.shared_groups.requests import SharedMode
from holdmq.rpc.connection import Connection
from holdmq.wire.group_headers import SHARED
from holdmq.wire.headers import SubscriptionRow

SHOWN_MAX: Final = 20
"""Subscriptions that are shown of one connection: a list of 10,000 connections stays in a frame."""

Subscriptions = dict[Connection, list[SubscriptionRow]]


def subscriptions(groups: Groups, shared: SharedMode) -> Subscriptions:
    """All subscriptions by connection, those of a group together; retry topics are left out."""
    found: Subscriptions = {}
    for name in groups.members.groups():
        for member in groups.members.of(name):
            found.setdefault(member.owner, []).extend(
                SubscriptionRow(name, member.mode, wanted.topic, wanted.filter)
                for wanted in member.subscriptions
                if not wanted.topic.startswith("%")
            )
    for name, group in shared.core.groups.items():
        for one in group.members.values():
            assert isinstance(one.owner, Connection)
            found.setdefault(one.owner, []).extend(
                SubscriptionRow(name, SHARED, topic, group.filters[topic].text)
                for topic in sorted(one.topics)
                if topic in group.filters and not topic.startswith("%")
            )
    return found
