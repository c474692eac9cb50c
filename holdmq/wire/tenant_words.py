"""A tenant's words: an application names topics and groups in its own, brokers in whole names.

Where one becomes the other is this table alone: which fields of which request, answer and push name a topic
or group. So all above a connection (routes, leases, retries, statistics) is in the tenant's words::

    application    orders, %RETRY%readers
    ───────────    TenantWords, at each connection
    brokers        acme%orders, %RETRY%acme%readers

Lists are narrowed to what is the tenant's, whatever the access key sees: another's `orders` must not be taken
for its own. Requests about the whole cluster (sessions, quotas, a read of the log) are refused, as their
answers would be others' too. Records keep whole names; who decodes them shortens those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdmq.errors import RemoteError, UsageError
from holdmq.names.tenants import SEPARATOR, check_tenant, in_tenant, own_name_fault, tenant_of, within
from holdmq.wire.codes import RequestCode

Shape = Callable[["TenantWords", Any], Any]
Fields = Mapping[str, Shape]


class TenantWords:
    """What a client of one tenant says and hears. Raises UsageError for a name that no tenant may have."""

    __slots__ = ("_prefix", "tenant")

    def __init__(self, tenant: str) -> None:
        check_tenant(tenant)
        self.tenant = tenant
        self._prefix = re.compile(rf"(?<![A-Za-z0-9_-]){re.escape(tenant + SEPARATOR)}(?=[A-Za-z0-9_|-])")

    # Names

    def whole(self, name: str) -> str:
        """Return the whole name of what the tenant calls `name`; UsageError if it is none of its words."""
        fault = own_name_fault(self.tenant, name)
        if fault is not None:
            raise UsageError(fault)
        return in_tenant(self.tenant, name)

    def own(self, name: str) -> str:
        """Return how the tenant calls what has this whole name; others' stays as it is."""
        return within(self.tenant, name)

    def is_own(self, name: str) -> bool:
        """Whether this whole name is one of the tenant's."""
        return tenant_of(name) == self.tenant

    def own_text(self, sentence: str) -> str:
        """Return a sentence with the tenant's names in its own words."""
        return self._prefix.sub("", sentence)

    # Requests and answers

    def asked(self, code: int, ext_fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a request says to brokers. UsageError for one that is about the whole cluster."""
        fields = _ASKED.get(code)
        if fields is None:
            raise UsageError(
                f"{RequestCode(code).name} is about the whole cluster: ask without the tenant {self.tenant!r}"
            )
        return self._said(fields, ext_fields)

    def answered(self, code: int, asked: Mapping[str, Any], ext_fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an answer says to the tenant; `asked` are the request's fields in its words."""
        found = self._said(_ANSWERED.get(code, {}), ext_fields)
        for names in _COLUMNS.get(code, ()):
            _narrow_column(self, found, names)
        search = asked.get("search")
        if isinstance(search, str) and search:
            _narrow_search(found, search.lower())
        return found

    def told(self, code: int, ext_fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a broker's push says to the tenant."""
        return self._said(_TOLD.get(code, {}), ext_fields)

    def refused(self, error: RemoteError) -> RemoteError:
        """Return an error in the tenant's words."""
        text = self.own_text(error.remark)
        return error if text == error.remark else RemoteError(error.code, text, error.ext_fields)

    def _said(self, fields: Fields, ext_fields: Mapping[str, Any]) -> dict[str, Any]:
        said = dict(ext_fields)
        for name, shape in fields.items():
            if name in said:
                said[name] = shape(self, said[name])
        return said


# Shapes of what is asked: a name, names, rows with names in some columns. "" and None name nothing.


def _name(words: TenantWords, value: Any) -> Any:
    return words.whole(value) if isinstance(value, str) and value else value


def _names(words: TenantWords, value: Any) -> Any:
    return value if value is None else [_name(words, name) for name in value]


def _rows(*columns: int) -> Shape:
    def shape(words: TenantWords, value: Any) -> Any:
        return [_replaced(row, columns, lambda cell: _name(words, cell)) for row in value]

    return shape


# Shapes of what is answered: the same, and sentences. What is ill-typed stays so, for the header to say.


def _own_name(words: TenantWords, value: Any) -> Any:
    return words.own(value) if isinstance(value, str) else value


def _own_rows(*columns: int, texts: tuple[int, ...] = (), subscriptions: int | None = None) -> Shape:
    """Rows in the order of what was asked: each stays."""

    def shape(words: TenantWords, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        found = [_replaced(row, columns, lambda cell: _own_name(words, cell)) for row in value]
        if texts:
            found = [_replaced(row, texts, lambda cell: _own_text(words, cell)) for row in found]
        if subscriptions is not None:
            found = [
                _replaced(row, (subscriptions,), lambda cell: _own_rows(0)(words, cell)) for row in found
            ]
        return found

    return shape


def _listed(*columns: int) -> Shape:
    """Rows of a list: those whose first such column is not the tenant's are left out."""

    def shape(words: TenantWords, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        own = [row for row in value if _is_own(words, row[columns[0]] if len(row) > columns[0] else None)]
        return _own_rows(*columns)(words, own)

    return shape


def _listed_names(words: TenantWords, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [words.own(name) for name in value if _is_own(words, name)]


def _connections(words: TenantWords, value: Any) -> Any:
    """Connections that send to, read, or are members of what is the tenant's; they show nothing else."""
    if not isinstance(value, list):
        return value
    found = []
    for row in value:
        shown = _replaced(row, (_SUBSCRIPTIONS,), lambda cell: _listed(0, 2)(words, cell))
        shown = _replaced(shown, _USED_TOPICS, lambda cell: _listed_names(words, cell))
        if any(shown[column] for column in (_SUBSCRIPTIONS, *_USED_TOPICS) if column < len(shown)):
            found.append(shown)
    return found


def _replaced(row: Any, columns: tuple[int, ...], say: Callable[[Any], Any]) -> list[Any]:
    found = list(row)
    for column in columns:
        if column < len(found):
            found[column] = say(found[column])
    return found


def _own_text(words: TenantWords, value: Any) -> Any:
    return words.own_text(value) if isinstance(value, str) else value


def _is_own(words: TenantWords, name: Any) -> bool:
    return isinstance(name, str) and words.is_own(name)


def _narrow_column(words: TenantWords, found: dict[str, Any], names: str) -> None:
    """Of `names` and their `values`, keep what is the tenant's."""
    known, values = found.get(names), found.get("values")
    if not isinstance(known, list) or not isinstance(values, list) or len(known) != len(values):
        return
    own = [(name, value) for name, value in zip(known, values, strict=True) if _is_own(words, name)]
    found[names] = [words.own(name) for name, _ in own]
    found["values"] = [value for _, value in own]


def _narrow_search(found: dict[str, Any], text: str) -> None:
    """Keep what has the text in its own name: brokers looked for it in the tenant's, too."""
    names, values = found.get("names"), found.get("values")
    if isinstance(names, list) and isinstance(values, list):
        kept = [(name, value) for name, value in zip(names, values, strict=True) if text in name.lower()]
        found["names"], found["values"] = [name for name, _ in kept], [value for _, value in kept]
    for listed in ("topics", "stats", "groups"):
        rows = found.get(listed)
        if isinstance(rows, list):
            found[listed] = [row for row in rows if text in row[0].lower()]


_SUBSCRIPTIONS: Final = 7
"""Columns of a ConnectionRow."""
_USED_TOPICS: Final = (10, 11)
_TOPIC_ROW: Final = _own_rows(0, 13)
"""A TopicRow names its first reader, too."""
_FIRST: Final = _own_rows(0)
_GROUP: Final[Fields] = {"group": _name}
_TOPIC: Final[Fields] = {"topic": _name}
_PLAIN: Final[Fields] = {}

_ASKED: Final[dict[int, Fields]] = {
    RequestCode.HELLO: _PLAIN,
    RequestCode.HEARTBEAT: _PLAIN,
    RequestCode.PRODUCE: {"runs": _rows(0)},
    RequestCode.PULL: {"queues": _rows(0), "group": _name},
    RequestCode.FILTER_SET: {"add": _rows(1), "remove": _rows(1)},
    RequestCode.PULL_COLUMNS: {"queues": _rows(0)},
    RequestCode.TOPIC_CREATE: _TOPIC,
    RequestCode.TOPIC_LIST: {"names": _names},
    RequestCode.QUEUE_BOUNDS: {"topics": _names},
    RequestCode.TOPIC_UPDATE: _TOPIC,
    RequestCode.TOPIC_GROW: _TOPIC,
    RequestCode.QUEUES_REMOVE: _TOPIC,
    RequestCode.TOPIC_DELETE: _TOPIC,
    RequestCode.TOPIC_PAUSE: _TOPIC,
    RequestCode.TOPIC_READERS: _TOPIC,
    RequestCode.TOPIC_FIRST_GROUP: {"group": _name, "topics": _names},
    # Of brokers, not of what they hold.
    RequestCode.BROKER_STATUS: _PLAIN,
    RequestCode.REPLICA_LIST: _PLAIN,
    RequestCode.CONNECTION_LIST: _PLAIN,
    RequestCode.STATISTICS: {"topics": _names, "groups": _names},
    RequestCode.BACKLOG: {"groups": _names},
    RequestCode.ROUTE_GET: {"topics": _names},
    RequestCode.CLUSTER_GET: _PLAIN,
    RequestCode.ORDER_GET: {"topics": _names},
    RequestCode.ORDER_SET: _TOPIC,
    RequestCode.GROUP_JOIN: {"group": _name, "subscriptions": _rows(0)},
    RequestCode.GROUP_LEAVE: _GROUP,
    RequestCode.GROUP_MEMBERS: _GROUP,
    RequestCode.GROUP_LIST: {"names": _names},
    RequestCode.GROUP_UPDATE: _GROUP,
    RequestCode.GROUP_DELETE: _GROUP,
    RequestCode.GROUP_PAUSE: _GROUP,
    RequestCode.QUEUE_LEASE: {"group": _name, "queues": _rows(0)},
    RequestCode.QUEUE_RELEASE: {"group": _name, "queues": _rows(0)},
    RequestCode.OFFSET_REPORT: {"group": _name, "offsets": _rows(0)},
    RequestCode.OFFSET_GET: {"group": _name, "topics": _names},
    RequestCode.OFFSET_RESET: {"group": _name, "topic": _name},
    RequestCode.OFFSET_CLONE: {"source": _name, "target": _name, "topics": _names},
    RequestCode.SHARED_OPEN: {"group": _name, "subscriptions": _rows(0)},
    RequestCode.SHARED_PULL: _PLAIN,
    RequestCode.SHARED_ACK: _PLAIN,
    RequestCode.SHARED_NACK: _PLAIN,
    RequestCode.SHARED_EXTEND: _PLAIN,
    RequestCode.SHARED_CLOSE: _PLAIN,
    RequestCode.SHARED_STATE: _GROUP,
    RequestCode.SEND_BACK: {"group": _name, "messages": _rows(0)},
    RequestCode.DLQ_LIST: _GROUP,
    RequestCode.DLQ_RESEND: {"group": _name, "topic": _name},
    RequestCode.DLQ_PURGE: _GROUP,
    # Whose the message is that it names is seen once it is read.
    RequestCode.MESSAGE_GET: _PLAIN,
    RequestCode.MESSAGE_FIND: _TOPIC,
    RequestCode.MESSAGE_BACKWARDS: _TOPIC,
    RequestCode.OFFSET_AT: _TOPIC,
    RequestCode.TABLE_GET: _TOPIC,
    RequestCode.TABLE_SCAN: _TOPIC,
    RequestCode.TABLE_PUT: _TOPIC,
    RequestCode.TABLE_DELETE: _TOPIC,
    RequestCode.TABLE_WATCH: _TOPIC,
    RequestCode.TABLE_UNWATCH: _PLAIN,
}
"""What a tenant's client may send, and where that names topics and groups."""

_ANSWERED: Final[dict[int, Fields]] = {
    RequestCode.PRODUCE: {"results": _own_rows(texts=(2,))},
    RequestCode.PULL: {"queues": _FIRST},
    RequestCode.PULL_COLUMNS: {"queues": _FIRST},
    RequestCode.TOPIC_CREATE: {"topics": _TOPIC_ROW},
    RequestCode.TOPIC_LIST: {"topics": _listed(0, 13), "stats": _listed(0)},
    RequestCode.QUEUE_BOUNDS: {"queues": _FIRST},
    RequestCode.TOPIC_UPDATE: {"topics": _TOPIC_ROW},
    RequestCode.TOPIC_GROW: {"topics": _TOPIC_ROW},
    RequestCode.QUEUES_REMOVE: {"topics": _TOPIC_ROW},
    RequestCode.TOPIC_DELETE: {"topics": _TOPIC_ROW},
    RequestCode.TOPIC_PAUSE: {"topics": _TOPIC_ROW},
    RequestCode.TOPIC_READERS: {"readers": _own_rows(1)},
    RequestCode.TOPIC_FIRST_GROUP: {"topics": _own_rows(0, 1)},
    RequestCode.CONNECTION_LIST: {"connections": _connections},
    RequestCode.STATISTICS: {
        "topics": _listed(0),
        "groups": _listed(0),
        "queues": _listed(0),
        "group_topics": _listed(0, 1),
    },
    RequestCode.BACKLOG: {"backlog": _listed(0, 2)},
    RequestCode.ROUTE_GET: {"routes": _listed(0)},
    RequestCode.CLUSTER_GET: {"topics": _listed_names},
    RequestCode.ORDER_GET: {"topics": _listed(0)},
    RequestCode.GROUP_JOIN: {"group": _own_name},
    RequestCode.GROUP_MEMBERS: {"members": _own_rows(subscriptions=8)},
    RequestCode.GROUP_LIST: {"groups": _listed(0)},
    RequestCode.GROUP_UPDATE: {"groups": _FIRST},
    RequestCode.GROUP_PAUSE: {"groups": _FIRST},
    RequestCode.QUEUE_LEASE: {"queues": _FIRST},
    RequestCode.QUEUE_RELEASE: {"refused": _FIRST},
    RequestCode.OFFSET_REPORT: {"refused": _FIRST},
    RequestCode.OFFSET_GET: {"offsets": _FIRST},
    RequestCode.OFFSET_RESET: {"changes": _FIRST},
    RequestCode.OFFSET_CLONE: {"changes": _FIRST},
    RequestCode.SHARED_OPEN: {"started": _FIRST},
    RequestCode.SHARED_PULL: {"deliveries": _own_rows(1)},
    RequestCode.SHARED_STATE: {"queues": _listed(0, 1), "members": _listed(0)},
    RequestCode.SEND_BACK: {"results": _own_rows(texts=(3,))},
    RequestCode.DLQ_LIST: {"groups": _listed(0)},
    RequestCode.DLQ_RESEND: {"failures": _own_rows(texts=(2,))},
}

_COLUMNS: Final[dict[int, tuple[str, ...]]] = {
    RequestCode.TOPIC_LIST: ("names",),
    RequestCode.GROUP_LIST: ("names",),
}

_TOLD: Final[dict[int, Fields]] = {RequestCode.GROUP_CHANGED: {"group": _own_name}}
"""Other pushes to clients name nothing: TABLE_CHANGED is of a watch, BOUNDS_CHANGED of the broker."""
