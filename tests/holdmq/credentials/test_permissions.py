"""The table of permissions: complete, and about fields that exist."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields
from typing import Any

import pytest

import holdmq.wire
from holdmq.credentials.access_keys import AccessKey, Grants
from holdmq.credentials.permissions import NEEDS, Role, names_in
from holdmq.errors import Code, RemoteError, WireError
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header

OTHER_HEADERS = {
    RequestCode.GROUP_LEAVE: "GroupRequest",
    RequestCode.GROUP_MEMBERS: "GroupRequest",
    RequestCode.TABLE_PUT: "TableChangeRequest",
    RequestCode.TABLE_DELETE: "TableChangeRequest",
    RequestCode.DELAY: "",  # producers' delays go through PRODUCE
}
"""Requests whose header is not named like their code; "" = there is none yet."""


def _headers() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(holdmq.wire.__path__):
        content = vars(importlib.import_module(f"holdmq.wire.{module.name}"))
        found |= {name: kind for name, kind in content.items() if isinstance(kind, type)}
    return {name: kind for name, kind in found.items() if issubclass(kind, Header)}


def test_every_request_code_has_its_line() -> None:
    assert set(RequestCode) == set(NEEDS), (
        "say in holdmq/credentials/permissions.py what the new requests need"
    )


def test_the_fields_that_the_table_names_are_fields_of_the_requests_header() -> None:
    headers = _headers()
    for code, needs in NEEDS.items():
        named = {name.removesuffix("?") for name in (needs.topics, *needs.groups, needs.flag) if name}
        camel = "".join(part.capitalize() for part in code.name.split("_")) + "Request"
        header = OTHER_HEADERS.get(code, camel)
        if named and header:
            known = {field.name for field in fields(headers[header])}
            assert named <= known, f"{code.name}: {header} has no {', '.join(named - known)}"


def test_what_changes_settings_or_is_only_pushed_takes_an_admin() -> None:
    admins = {
        code.name for code, needs in NEEDS.items() if needs.roles == {Role.ADMIN} and not needs.by_patterns
    }
    assert {"TOPIC_DELETE", "TOPIC_UPDATE", "QUEUES_REMOVE", "GROUP_DELETE", "ORDER_SET"} <= admins
    assert {"GROUP_CHANGED", "TABLE_CHANGED"} <= admins


ANYONE = [
    "HELLO",
    "HEARTBEAT",
    "FILTER_SET",
    "ROUTE_GET",
    "CLUSTER_GET",
    "ORDER_GET",
    "TABLE_UNWATCH",
    "SHARED_PULL",
    "SHARED_ACK",
    "SHARED_NACK",
    "SHARED_EXTEND",
    "SHARED_CLOSE",
]
READS = [
    "PULL_COLUMNS",
    "READ_OPEN",
    "READ_FILTER",
    "READ",
    "READ_CLOSE",
    "READ_AT",
    "QUEUE_BOUNDS",
    "TOPIC_LIST",
    "BROKER_STATUS",
    "CONNECTION_LIST",
    "TOPIC_READERS",
    "STATISTICS",
    "BACKLOG",
    "ALARM_LIST",
    "GROUP_MEMBERS",
    "GROUP_LIST",
    "OFFSET_GET",
    "OFFSET_AT",
    "SHARED_STATE",
    "DLQ_LIST",
    "MESSAGE_GET",
    "MESSAGE_FIND",
    "MESSAGE_BACKWARDS",
    "TABLE_GET",
    "TABLE_SCAN",
    "TABLE_WATCH",
    "BAN_LIST",
    "QUOTA_LIST",
    "KEY_LIST",
    "CLIENT_LIST",
    "CLIENT_BUSIEST",
    "FLAPPING_LIST",
    "SESSION_LIST",
    "SESSION_SHOW",
    "SESSION_RECORDS",
    "RETAINED_SCAN",
    "RETAINED_GET",
    "SHARE_LIST",
    "REPLICA_LIST",
    "REPLICA_STATUS",
]
OF_BROKERS = [
    "BROKER_REGISTER",
    "BROKER_UNREGISTER",
    "KEPT_COUNTS",
    "SPREAD_DIGEST",
    "SPREAD_PAGE",
    "REPLICA_HELLO",
    "REPLICA_FETCH",
    "REPLICA_STATUS",
    "REPLICA_TABLES",
]
OF_GATEWAYS = [
    "PRODUCE",
    "QUOTA_SPEND",
    "SESSION_OPEN",
    "SESSION_WRITE",
    "RETAINED_PUT",
    "SHARE_JOIN",
    "SHARE_LEAVE",
    "SHARE_SETTLE",
    "SHARE_READ",
]
OF_PROCESSES = ["PROCESS_HERE", "PROCESS_LEAVE", "REGISTRY_VIEW"]
MAY = {
    Role.CLIENT: {*ANYONE},
    Role.READER: {*ANYONE, *READS, *OF_PROCESSES},
    Role.BROKER: {*ANYONE, *OF_BROKERS, *OF_PROCESSES},
    Role.SERVICE: {*ANYONE, *READS, *OF_GATEWAYS, *OF_PROCESSES},
    Role.ADMIN: set(RequestCode.__members__),
}
"""What each role may send for every topic and group: written down a second time, on purpose."""
BY_PATTERNS = [
    "PRODUCE",
    "PULL",
    "PULL_COLUMNS",
    "TOPIC_CREATE",
    "QUEUE_BOUNDS",
    "GROUP_JOIN",
    "GROUP_LEAVE",
    "GROUP_MEMBERS",
    "QUEUE_LEASE",
    "QUEUE_RELEASE",
    "OFFSET_REPORT",
    "TOPIC_FIRST_GROUP",
    "OFFSET_GET",
    "OFFSET_RESET",
    "OFFSET_CLONE",
    "OFFSET_AT",
    "SHARED_OPEN",
    "SHARED_STATE",
    "SEND_BACK",
    "DELAY",
    "DLQ_LIST",
    "DLQ_PURGE",
    "MESSAGE_FIND",
    "MESSAGE_BACKWARDS",
    "TABLE_GET",
    "TABLE_SCAN",
    "TABLE_PUT",
    "TABLE_DELETE",
    "TABLE_WATCH",
]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("code", list(RequestCode), ids=lambda code: code.name)
def test_each_role_may_send_what_it_needs_and_nothing_else(role: Role, code: RequestCode) -> None:
    grants = Grants(AccessKey("somebody", "s" * 43, roles=frozenset({role})))
    named = {"group": "g", "source": "g", "target": "g", "topic": "t", "topics": ["t"]}
    fields = {**named, "subscriptions": [["t", "*"]], "queues": [["t", 0]], "messages": [["t", 0]]}
    # What a handler decides by item is asked of it in tests/broker/app/test_permissions.py.
    by_item = {"PRODUCE", "PULL_COLUMNS"} - MAY[role]
    if code.name in MAY[role] | by_item:
        grants.check(code, fields)
        return
    with pytest.raises(RemoteError) as caught:
        grants.check(code, fields)
    assert caught.value.code == Code.NOT_PERMITTED
    assert (code.name in BY_PATTERNS) == ("of its entry in the keys file" in str(caught.value)) or (
        code is RequestCode.TOPIC_CREATE
    )


def test_what_patterns_open_is_what_the_table_says() -> None:
    assert {code.name for code, needs in NEEDS.items() if needs.by_patterns} == set(BY_PATTERNS)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("t", ["t"]),
        (["a", "b"], ["a", "b"]),
        ([["a", 0, 1], ("b", 2)], ["a", "b"]),
        ([], []),
        ("", None),
        (None, None),
    ],
)
def test_names_are_a_text_texts_or_rows_that_begin_with_one(value: object, names: list[str] | None) -> None:
    assert names_in({"f": value}, "f") == names


@pytest.mark.parametrize("value", [7, {"a": 1}, [7], [[7, "a"]], [[]], [None]])
def test_a_field_that_hides_its_names_is_refused(value: object) -> None:
    with pytest.raises(WireError, match="'f' names nothing"):
        names_in({"f": value}, "f")
