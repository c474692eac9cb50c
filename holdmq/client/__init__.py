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
    from holdmq.client.groups import GroupAdmin, GroupView, QueueProgress
    from holdmq.client.lanes import SendResult
    from holdmq.client.ordered_topics import OrderedTopics
    from holdmq.client.owners import StoredRun
    from holdmq.client.producer import Producer
    from holdmq.client.pull_consumer import PullConsumer
    from holdmq.client.queries import MessagePage, Messages, QueueAt
    from holdmq.client.route import Link, RouteTable, TopicRoute
    from holdmq.client.shared_consumer import SharedConsumer
    from holdmq.client.shared_member import SharedMessage
    from holdmq.client.sync import SyncAdmin, SyncConsumer, SyncProducer, SyncPullConsumer, SyncSharedConsumer
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
    "SendResult",
    "SharedConsumer",
    "SharedMessage",
    "StoredRun",
    "SyncAdmin",
    "SyncConsumer",
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
]

_MODULES = {
    "Admin": "holdmq.client.admin",
    "Bounds": "holdmq.client.bounds",
    "DeadLetters": "holdmq.client.dead_letters",
    "ClusterView": "holdmq.client.admin",
    "Consumer": "holdmq.client.group_consumer",
    "GroupAdmin": "holdmq.client.groups",
    "GroupView": "holdmq.client.groups",
    "Link": "holdmq.client.route",
    "Message": "holdmq.message",
    "MessageId": "holdmq.message",
    "MessagePage": "holdmq.client.queries",
    "Messages": "holdmq.client.queries",
    "OrderedTopics": "holdmq.client.ordered_topics",
    "Position": "holdmq.client.cursors",
    "Producer": "holdmq.client.producer",
    "PullConsumer": "holdmq.client.pull_consumer",
    "Pulled": "holdmq.client.cursors",
    "QueueAt": "holdmq.client.queries",
    "QueueProgress": "holdmq.client.groups",
    "RouteTable": "holdmq.client.route",
    "Security": "holdmq.rpc.security",
    "SendResult": "holdmq.client.lanes",
    "StoredRun": "holdmq.client.owners",
    "SharedConsumer": "holdmq.client.shared_consumer",
    "SharedMessage": "holdmq.client.shared_member",
    "SyncAdmin": "holdmq.client.sync",
    "SyncConsumer": "holdmq.client.sync",
    "SyncMessages": "holdmq.client.sync_lookups",
    "SyncProducer": "holdmq.client.sync",
    "SyncPullConsumer": "holdmq.client.sync",
    "SyncSharedConsumer": "holdmq.client.sync",
    "SyncTable": "holdmq.client.sync_lookups",
    "SyncTableWatch": "holdmq.client.sync_lookups",
    "Table": "holdmq.client.tables",
    "TableChange": "holdmq.client.table_watch",
    "TableComplete": "holdmq.client.table_watch",
    "TableEntry": "holdmq.client.tables",
    "TablePage": "holdmq.client.tables",
    "TableReset": "holdmq.client.table_watch",
    "TableWatch": "holdmq.client.table_watch",
    "TopicQueue": "holdmq.message",
    "TopicRoute": "holdmq.client.route",
    "TopicView": "holdmq.client.admin",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
