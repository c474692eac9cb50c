"""The SDK: Producer, PullConsumer and Admin on asyncio; SyncProducer and its kin without.

Names load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdmq.client.admin import Admin, ClusterView, TopicView
    from holdmq.client.bounds import Bounds
    from holdmq.client.cursors import Position, Pulled
    from holdmq.client.dead_letters import DeadLetters
    from holdmq.client.group_consumer import Consumer
    from holdmq.client.group_pull_consumer import GroupPullConsumer
    from holdmq.client.groups import GroupAdmin, GroupView, QueueProgress
    from holdmq.client.lanes import SendResult
    from holdmq.client.ordered_topics import OrderedTopics
    from holdmq.client.owners import StoredRun
    from holdmq.client.producer import Producer
    from holdmq.client.pull_consumer import PullConsumer
    from holdmq.client.queries import MessagePage, Messages, QueueAt
    from holdmq.client.route import Link, RouteTable, TopicRoute
    from holdmq.client.seen_keys import SeenInSql, SeenInTable, key_of
    from holdmq.client.shared_consumer import SharedConsumer
    from holdmq.client.shared_member import SharedMessage
    from holdmq.client.sync import (
        SyncAdmin,
        SyncConsumer,
        SyncGroupPullConsumer,
        SyncProducer,
        SyncPullConsumer,
        SyncSharedConsumer,
    )
    from holdmq.client.sync_lookups import SyncMessages, SyncTable, SyncTableWatch
    from holdmq.client.table_watch import TableChange, TableComplete, TableReset, TableWatch
    from holdmq.client.tables import Table, TableEntry, TablePage
    from holdmq.message import Message, MessageId, TopicQueue
    from holdmq.rpc.security import Security

__all__ = [
    "Admin",
    "Bounds",
    "ClusterView",
    "Consumer",
    "DeadLetters",
    "GroupAdmin",
    "GroupPullConsumer",
    "GroupView",
    "Link",
    "Message",
    "MessageId",
    "MessagePage",
    "Messages",
    "OrderedTopics",
    "Position",
    "Producer",
    "PullConsumer",
    "Pulled",
    "QueueAt",
    "QueueProgress",
    "RouteTable",
    "Security",
    "SeenInSql",
    "SeenInTable",
    "SendResult",
    "SharedConsumer",
    "SharedMessage",
    "StoredRun",
    "SyncAdmin",
    "SyncConsumer",
    "SyncGroupPullConsumer",
    "SyncMessages",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncSharedConsumer",
    "SyncTable",
    "SyncTableWatch",
    "Table",
    "TableChange",
    "TableComplete",
    "TableEntry",
    "TablePage",
    "TableReset",
    "TableWatch",
    "TopicQueue",
    "TopicRoute",
    "TopicView",
    "key_of",
]

_NAMES = {
    "holdmq.client.admin": ("Admin", "ClusterView", "TopicView"),
    "holdmq.client.bounds": ("Bounds",),
    "holdmq.client.cursors": ("Position", "Pulled"),
    "holdmq.client.dead_letters": ("DeadLetters",),
    "holdmq.client.group_consumer": ("Consumer",),
    "holdmq.client.group_pull_consumer": ("GroupPullConsumer",),
    "holdmq.client.groups": ("GroupAdmin", "GroupView", "QueueProgress"),
    "holdmq.client.lanes": ("SendResult",),
    "holdmq.client.ordered_topics": ("OrderedTopics",),
    "holdmq.client.owners": ("StoredRun",),
    "holdmq.client.producer": ("Producer",),
    "holdmq.client.pull_consumer": ("PullConsumer",),
    "holdmq.client.queries": ("MessagePage", "Messages", "QueueAt"),
    "holdmq.client.route": ("Link", "RouteTable", "TopicRoute"),
    "holdmq.client.seen_keys": ("SeenInSql", "SeenInTable", "key_of"),
    "holdmq.client.shared_consumer": ("SharedConsumer",),
    "holdmq.client.shared_member": ("SharedMessage",),
    "holdmq.client.sync": (
        "SyncAdmin",
        "SyncConsumer",
        "SyncGroupPullConsumer",
        "SyncProducer",
        "SyncPullConsumer",
        "SyncSharedConsumer",
    ),
    "holdmq.client.sync_lookups": ("SyncMessages", "SyncTable", "SyncTableWatch"),
    "holdmq.client.table_watch": ("TableChange", "TableComplete", "TableReset", "TableWatch"),
    "holdmq.client.tables": ("Table", "TableEntry", "TablePage"),
    "holdmq.message": ("Message", "MessageId", "TopicQueue"),
    "holdmq.rpc.security": ("Security",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
