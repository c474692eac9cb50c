"""What each request needs: the one table of the RPC's permissions.

Every request code has a line, so that a new one cannot be forgotten (tests/holdmq/wire). A line says
which roles may send it whatever it names, and, if others may too, what the patterns of their access key must
allow: to produce to or consume from the topics, and to use the groups, that fields of the request's header
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from holdmq.errors import Code, WireError
from holdmq.wire.codes import RequestCode


class Role(Enum):
    """What a principal is; one may have several, and may then do what any of them may."""

    CLIENT = "client"
    """An application: what its entry's patterns allow. Every principal may do as much."""
    READER = "reader"
    """The console and the statistics job: reads everything, and changes nothing."""
    BROKER = "broker"
    """A broker: registers itself at registries."""
    SERVICE = "service"
    """A gateway: reads everything, and writes for devices: messages, sessions, retained messages."""
    ADMIN = "admin"
    """People and tools: everything, settings too."""


class Action(Enum):
    """What is done to a topic."""

    PRODUCE = "produce to"
    CONSUME = "consume from"
    USE = "produce to or consume from"


class Needs(NamedTuple):
    """What a request needs.

    `roles` may send it, whatever it names. Others may if `by_patterns`, and if the patterns of their entry
    allow `action` on every topic in the header's field `topics`, and use of every group in the fields
    `groups`; a field holds a name, names, or rows that begin with one. A field that is absent, None or ""
    stands for all of them, which no pattern allows, unless the name given here ends in "?". `flag` names a
    field of the header that must be true for patterns to count; `flag_roles` then need none. `by_item`: the
    handler decides for each of its runs or queues. `is_narrowed`: keys of a tenant may send it too, as the
    handler answers with what the key `sees` alone.
    """

    roles: frozenset[Role] = frozenset({Role.ADMIN})
    by_patterns: bool = False
    action: Action | None = None
    topics: str = ""
    groups: tuple[str, ...] = ()
    flag: str = ""
    flag_roles: frozenset[Role] = frozenset()
    by_item: bool = False
    is_narrowed: bool = False


READERS: Final = frozenset({Role.READER, Role.SERVICE, Role.ADMIN})
GATEWAYS: Final = frozenset({Role.SERVICE, Role.ADMIN})
BROKERS: Final = frozenset({Role.BROKER, Role.ADMIN})
ADMINS: Final = frozenset({Role.ADMIN})

_ANYONE: Final = Needs(frozenset(Role))
_READER: Final = Needs(READERS)
_GATEWAY: Final = Needs(GATEWAYS)
_BROKER: Final = Needs(BROKERS)
_ADMIN: Final = Needs(ADMINS)
_PROCESS: Final = Needs(READERS | BROKERS)
"""Every process of the installation, and no application."""
_GROUP: Final = Needs(ADMINS, True, groups=("group",))
_GROUP_READ: Final = Needs(READERS, True, groups=("group",))
_PUSH: Final = _ADMIN
"""Servers send it to clients; none takes it from anybody."""


def _reads(topics: str) -> Needs:
    return Needs(READERS, True, Action.CONSUME, topics)


def _consumes(topics: str, *groups: str) -> Needs:
    return Needs(ADMINS, True, Action.CONSUME, topics, groups)


def _produces(topics: str) -> Needs:
    return Needs(ADMINS, True, Action.PRODUCE, topics)


NEEDS: Final[dict[RequestCode, Needs]] = {
    RequestCode.HELLO: _ANYONE,
    RequestCode.HEARTBEAT: _ANYONE,
    RequestCode.CONFIG_RELOAD: _ADMIN,
    RequestCode.GATEWAY_RELOAD: _ADMIN,
    RequestCode.KEY_LIST: _READER,
    RequestCode.PRODUCE: Needs(GATEWAYS, True, Action.PRODUCE, by_item=True),
    # For a group it counts as the group's: a reader pulls for none.
    RequestCode.PULL: Needs(ADMINS, True, Action.CONSUME, groups=("group?",), by_item=True),
    RequestCode.FILTER_SET: _ANYONE,
    RequestCode.PULL_COLUMNS: Needs(READERS, True, Action.CONSUME, by_item=True),
    # A reader sees the whole log; only READ_OPEN and READ_FILTER choose what.
    RequestCode.READ_OPEN: _READER,
    RequestCode.READ_FILTER: _READER,
    RequestCode.READ: _READER,
    RequestCode.READ_CLOSE: _READER,
    RequestCode.READ_AT: _READER,
    RequestCode.TOPIC_CREATE: Needs(
        ADMINS, True, Action.USE, "topic", flag="by_use", flag_roles=frozenset({Role.SERVICE})
    ),
    RequestCode.TOPIC_LIST: Needs(READERS, is_narrowed=True),
    RequestCode.QUEUE_BOUNDS: _reads("topics"),
    RequestCode.TOPIC_UPDATE: _ADMIN,
    RequestCode.TOPIC_GROW: _ADMIN,
    RequestCode.QUEUES_REMOVE: _ADMIN,
    RequestCode.TOPIC_DELETE: _ADMIN,
    RequestCode.TOPIC_PAUSE: _ADMIN,
    RequestCode.TOPIC_READERS: _READER,
    RequestCode.TOPIC_FIRST_GROUP: _consumes("topics", "group"),
    RequestCode.BROKER_STATUS: _READER,
    RequestCode.CONNECTION_LIST: _READER,
    RequestCode.STATISTICS: _READER,
    RequestCode.BACKLOG: _READER,
    RequestCode.ALARM_LIST: _READER,
    # Who registers a broker takes over its queues.
    RequestCode.BROKER_REGISTER: _BROKER,
    RequestCode.BROKER_UNREGISTER: _BROKER,
    # Who may connect may know where queues of topics are that it sees: names and addresses, no messages.
    RequestCode.ROUTE_GET: _ANYONE,
    RequestCode.CLUSTER_GET: _ANYONE,
    RequestCode.ORDER_GET: _ANYONE,
    RequestCode.ORDER_SET: _ADMIN,
    # Who forgets a broker gives up what it alone keeps.
    RequestCode.BROKER_FORGET: _ADMIN,
    RequestCode.KEPT_COUNTS: _BROKER,
    RequestCode.SPREAD_DIGEST: _BROKER,
    RequestCode.SPREAD_PAGE: _BROKER,
    RequestCode.PROCESS_HERE: _PROCESS,
    RequestCode.PROCESS_LEAVE: _PROCESS,
    RequestCode.REGISTRY_VIEW: _PROCESS,
    RequestCode.REGISTRY_LEAVES: _PUSH,
    RequestCode.GROUP_JOIN: _consumes("subscriptions", "group"),
    RequestCode.GROUP_LEAVE: _GROUP,
    RequestCode.GROUP_CHANGED: _PUSH,
    RequestCode.BOUNDS_CHANGED: _PUSH,
    RequestCode.GROUP_MEMBERS: _GROUP_READ,
    RequestCode.GROUP_LIST: Needs(READERS, is_narrowed=True),
    RequestCode.GROUP_UPDATE: _ADMIN,
    RequestCode.GROUP_DELETE: _ADMIN,
    RequestCode.GROUP_PAUSE: _ADMIN,
    RequestCode.QUEUE_LEASE: _consumes("queues", "group"),
    RequestCode.QUEUE_RELEASE: _GROUP,
    RequestCode.OFFSET_REPORT: _GROUP,
    RequestCode.OFFSET_GET: _GROUP_READ,
    RequestCode.OFFSET_RESET: _GROUP,
    RequestCode.OFFSET_CLONE: Needs(ADMINS, True, groups=("source", "target")),
    RequestCode.SHARED_OPEN: _consumes("subscriptions", "group"),
    # These name a member that SHARED_OPEN made on the same connection.
    RequestCode.SHARED_PULL: _ANYONE,
    RequestCode.SHARED_ACK: _ANYONE,
    RequestCode.SHARED_NACK: _ANYONE,
    RequestCode.SHARED_EXTEND: _ANYONE,
    RequestCode.SHARED_CLOSE: _ANYONE,
    RequestCode.SHARED_STATE: _GROUP_READ,
    # The copy that it makes can be read by the group: who may not read the original must not ask for it.
    RequestCode.SEND_BACK: _consumes("messages", "group"),
    RequestCode.DELAY: _produces("topic"),
    RequestCode.DLQ_LIST: _GROUP_READ,
    # It writes to topics that only the dead letters themselves name.
    RequestCode.DLQ_RESEND: _ADMIN,
    RequestCode.DLQ_PURGE: _GROUP,
    # An id says nothing of its topic before the message is read.
    RequestCode.MESSAGE_GET: _READER,
    RequestCode.MESSAGE_FIND: _reads("topic"),
    RequestCode.MESSAGE_BACKWARDS: _reads("topic"),
    RequestCode.OFFSET_AT: _reads("topic"),
    RequestCode.TABLE_GET: _reads("topic"),
    RequestCode.TABLE_SCAN: _reads("topic"),
    RequestCode.TABLE_PUT: _produces("topic"),
    RequestCode.TABLE_DELETE: _produces("topic"),
    RequestCode.TABLE_WATCH: _reads("topic"),
    RequestCode.TABLE_CHANGED: _PUSH,
    RequestCode.TABLE_UNWATCH: _ANYONE,
    RequestCode.SESSION_OPEN: _GATEWAY,
    RequestCode.SESSION_WRITE: _GATEWAY,
    RequestCode.SESSION_TAKEN: _PUSH,
    RequestCode.SESSION_WILLS: _PUSH,
    RequestCode.SESSION_LIST: _READER,
    RequestCode.SESSION_SHOW: _READER,
    RequestCode.SESSION_DROP: _ADMIN,
    RequestCode.SESSION_KICK: _ADMIN,
    # It names records by their place, whatever topic they are of.
    RequestCode.SESSION_RECORDS: _READER,
    # Topics of MQTT, whatever log topic they are in.
    RequestCode.RETAINED_PUT: _GATEWAY,
    RequestCode.RETAINED_SCAN: _READER,
    RequestCode.RETAINED_GET: _READER,
    # Members are MQTT sessions: only gateways speak for them.
    RequestCode.SHARE_JOIN: _GATEWAY,
    RequestCode.SHARE_LEAVE: _GATEWAY,
    RequestCode.SHARE_SETTLE: _GATEWAY,
    RequestCode.SHARE_READ: _GATEWAY,
    RequestCode.SHARE_LIST: _READER,
    RequestCode.CLIENT_LIST: _READER,
    RequestCode.CLIENT_BUSIEST: _READER,
    RequestCode.CLIENT_KICK: _ADMIN,
    RequestCode.BAN_ADD: _ADMIN,
    RequestCode.BAN_REMOVE: _ADMIN,
    RequestCode.BAN_LIST: _READER,
    RequestCode.BAN_CHANGED: _PUSH,
    RequestCode.FLAPPING_LIST: _READER,
    RequestCode.QUOTA_SET: _ADMIN,
    RequestCode.QUOTA_REMOVE: _ADMIN,
    RequestCode.QUOTA_LIST: _READER,
    RequestCode.QUOTA_CHANGED: _PUSH,
    # Who says what others have sent can make them wait.
    RequestCode.QUOTA_SPEND: _GATEWAY,
    # A replica gets the whole log, and what it acknowledges is what is confirmed.
    RequestCode.REPLICA_HELLO: _BROKER,
    RequestCode.REPLICA_FETCH: _BROKER,
    RequestCode.REPLICA_TABLES: _BROKER,
    RequestCode.REPLICA_LIST: _READER,
    RequestCode.REPLICA_STATUS: Needs(READERS | BROKERS),
    RequestCode.REPLICA_SWITCH: _ADMIN,
    RequestCode.REPLICA_PROMOTE: _ADMIN,
}


def names_in(ext_fields: Mapping[str, Any], field: str) -> list[str] | None:
    """The names in a header's field: a text, texts, or rows that begin with one; None if it names nothing.

    Raises WireError (MISSING_FIELD) for anything else, so that no name goes by unseen.
    """
    value = ext_fields.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)):
        names = [item[0] if isinstance(item, (list, tuple)) and item else item for item in value]
        if all(isinstance(name, str) for name in names):
            return names
    raise WireError(f"field {field!r} names nothing", Code.MISSING_FIELD)
