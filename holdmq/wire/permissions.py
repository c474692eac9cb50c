"""What each request needs: the one table of the RPC's permissions.

Every request code has a line, so that a new one cannot be forgotten (tests/holdmq/wire). A line says
which role may send it at all, and what an access key of role `client` must be allowed: to produce to or
consume from the topics, and to use the groups, that fields of the request's header name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from holdmq.errors import Code, WireError
from holdmq.wire.codes import RequestCode


class Role(IntEnum):
    """Who a principal is; a higher role may do what a lower one may."""

    CLIENT = 0
    """An application: what its entry's patterns allow."""
    SERVICE = 1
    """Gateways, brokers, the Spark job, the console: every topic and group, registration, status."""
    ADMIN = 2
    """People and tools: settings too."""


class Action(Enum):
    """What is done to a topic."""

    PRODUCE = "produce to"
    CONSUME = "consume from"
    USE = "produce to or consume from"


class Needs(NamedTuple):
    """What a request needs.

    `role` is the least role. Of a CLIENT, `action` is needed on every topic in the header's field
    `topics`, and use of every group in the fields `groups`; a field holds a name, names, or rows that
    begin with one. A field that is absent, None or "" stands for all of them, which a CLIENT may not ask
    for, unless the name given here ends in "?". `client_if` names a flag with which CLIENT is enough.
    `by_item`: the handler decides for each of its runs or queues.
    """

    role: Role = Role.CLIENT
    action: Action | None = None
    topics: str = ""
    groups: tuple[str, ...] = ()
    client_if: str = ""
    by_item: bool = False


_ANYONE: Final = Needs()
_SERVICE: Final = Needs(Role.SERVICE)
_ADMIN: Final = Needs(Role.ADMIN)
_GROUP: Final = Needs(groups=("group",))
_PUSH: Final = _ADMIN
"""Brokers send it to clients; no server takes it from anybody."""


def _consumes(topics: str, *groups: str) -> Needs:
    return Needs(action=Action.CONSUME, topics=topics, groups=groups)


def _produces(topics: str) -> Needs:
    return Needs(action=Action.PRODUCE, topics=topics)


NEEDS: Final[dict[RequestCode, Needs]] = {
    RequestCode.HELLO: _ANYONE,
    RequestCode.HEARTBEAT: _ANYONE,
    RequestCode.PRODUCE: Needs(action=Action.PRODUCE, by_item=True),
    RequestCode.PULL: Needs(action=Action.CONSUME, groups=("group?",), by_item=True),
    RequestCode.FILTER_SET: _ANYONE,
    RequestCode.PULL_COLUMNS: Needs(action=Action.CONSUME, by_item=True),
    # A reader sees the whole log; only READ_OPEN and READ_FILTER choose what.
    RequestCode.READ_OPEN: _SERVICE,
    RequestCode.READ_FILTER: _SERVICE,
    RequestCode.READ: _SERVICE,
    RequestCode.READ_CLOSE: _SERVICE,
    RequestCode.READ_AT: _SERVICE,
    RequestCode.TOPIC_CREATE: Needs(Role.ADMIN, Action.USE, "topic", client_if="by_use"),
    RequestCode.TOPIC_LIST: _SERVICE,
    RequestCode.QUEUE_BOUNDS: _consumes("topics"),
    RequestCode.TOPIC_UPDATE: _ADMIN,
    RequestCode.TOPIC_GROW: _ADMIN,
    RequestCode.QUEUES_REMOVE: _ADMIN,
    RequestCode.TOPIC_DELETE: _ADMIN,
    RequestCode.TOPIC_PAUSE: _ADMIN,
    RequestCode.BROKER_STATUS: _SERVICE,
    RequestCode.CONNECTION_LIST: _SERVICE,
    RequestCode.STATISTICS: _SERVICE,
    RequestCode.BACKLOG: _SERVICE,
    RequestCode.ALARM_LIST: _SERVICE,
    RequestCode.BROKER_REGISTER: _SERVICE,
    RequestCode.BROKER_UNREGISTER: _SERVICE,
    # Who may connect may know where queues are: names and addresses, no messages.
    RequestCode.ROUTE_GET: _ANYONE,
    RequestCode.CLUSTER_GET: _ANYONE,
    RequestCode.ORDER_GET: _ANYONE,
    RequestCode.ORDER_SET: _ADMIN,
    RequestCode.GROUP_JOIN: _consumes("subscriptions", "group"),
    RequestCode.GROUP_LEAVE: _GROUP,
    RequestCode.GROUP_CHANGED: _PUSH,
    RequestCode.GROUP_MEMBERS: _GROUP,
    RequestCode.GROUP_LIST: _SERVICE,
    RequestCode.GROUP_UPDATE: _ADMIN,
    RequestCode.GROUP_DELETE: _ADMIN,
    RequestCode.GROUP_PAUSE: _ADMIN,
    RequestCode.QUEUE_LEASE: _consumes("queues", "group"),
    RequestCode.QUEUE_RELEASE: _GROUP,
    RequestCode.OFFSET_REPORT: _GROUP,
    RequestCode.OFFSET_GET: _GROUP,
    RequestCode.OFFSET_RESET: _GROUP,
    RequestCode.OFFSET_CLONE: Needs(groups=("source", "target")),
    RequestCode.SHARED_OPEN: _consumes("subscriptions", "group"),
    # These name a member that SHARED_OPEN made on the same connection.
    RequestCode.SHARED_PULL: _ANYONE,
    RequestCode.SHARED_ACK: _ANYONE,
    RequestCode.SHARED_NACK: _ANYONE,
    RequestCode.SHARED_EXTEND: _ANYONE,
    RequestCode.SHARED_CLOSE: _ANYONE,
    RequestCode.SHARED_STATE: _GROUP,
    # The copy that it makes can be read by the group: who may not read the original must not ask for it.
    RequestCode.SEND_BACK: _consumes("messages", "group"),
    RequestCode.DELAY: _produces("topic"),
    RequestCode.DLQ_LIST: _GROUP,
    # It writes to topics that only the dead letters themselves name.
    RequestCode.DLQ_RESEND: _ADMIN,
    RequestCode.DLQ_PURGE: _GROUP,
    # An id says nothing of its topic before the message is read.
    RequestCode.MESSAGE_GET: _SERVICE,
    RequestCode.MESSAGE_FIND: _consumes("topic"),
    RequestCode.MESSAGE_BACKWARDS: _consumes("topic"),
    RequestCode.OFFSET_AT: _consumes("topic"),
    RequestCode.TABLE_GET: _consumes("topic"),
    RequestCode.TABLE_SCAN: _consumes("topic"),
    RequestCode.TABLE_PUT: _produces("topic"),
    RequestCode.TABLE_DELETE: _produces("topic"),
    RequestCode.TABLE_WATCH: _consumes("topic"),
    RequestCode.TABLE_CHANGED: _PUSH,
    RequestCode.TABLE_UNWATCH: _ANYONE,
    RequestCode.SESSION_OPEN: _SERVICE,
    RequestCode.SESSION_WRITE: _SERVICE,
    RequestCode.SESSION_TAKEN: _PUSH,
    RequestCode.SESSION_WILLS: _PUSH,
    RequestCode.SESSION_LIST: _SERVICE,
    RequestCode.SESSION_SHOW: _SERVICE,
    RequestCode.SESSION_DROP: _ADMIN,
    # It names records by their place, whatever topic they are of.
    RequestCode.SESSION_RECORDS: _SERVICE,
    # Topics of MQTT, whatever log topic they are in.
    RequestCode.RETAINED_PUT: _SERVICE,
    RequestCode.RETAINED_SCAN: _SERVICE,
    RequestCode.RETAINED_GET: _SERVICE,
    # Members are MQTT sessions: only gateways speak for them.
    RequestCode.SHARE_JOIN: _SERVICE,
    RequestCode.SHARE_LEAVE: _SERVICE,
    RequestCode.SHARE_SETTLE: _SERVICE,
    RequestCode.SHARE_READ: _SERVICE,
    RequestCode.SHARE_LIST: _SERVICE,
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
