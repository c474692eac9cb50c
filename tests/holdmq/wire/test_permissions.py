"""The table of permissions: complete, and about fields that exist."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields
from typing import Any

import pytest

import holdmq.wire
from holdmq.errors import WireError
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header
from holdmq.wire.permissions import NEEDS, Role, names_in

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
    assert set(RequestCode) == set(NEEDS), "say in holdmq/wire/permissions.py what the new requests need"


def test_the_fields_that_the_table_names_are_fields_of_the_requests_header() -> None:
    headers = _headers()
    for code, needs in NEEDS.items():
        named = {name.removesuffix("?") for name in (needs.topics, *needs.groups, needs.client_if) if name}
        camel = "".join(part.capitalize() for part in code.name.split("_")) + "Request"
        header = OTHER_HEADERS.get(code, camel)
        if named and header:
            known = {field.name for field in fields(headers[header])}
            assert named <= known, f"{code.name}: {header} has no {', '.join(named - known)}"


def test_what_changes_settings_or_is_only_pushed_takes_an_admin() -> None:
    admins = {code.name for code, needs in NEEDS.items() if needs.role is Role.ADMIN}
    assert {"TOPIC_DELETE", "TOPIC_UPDATE", "QUEUES_REMOVE", "GROUP_DELETE", "ORDER_SET"} <= admins
    assert {"GROUP_CHANGED", "TABLE_CHANGED"} <= admins


def test_what_shows_everything_is_for_services() -> None:
    for name in ("READ_OPEN", "CONNECTION_LIST", "STATISTICS", "BROKER_REGISTER", "BROKER_UNREGISTER"):
        assert NEEDS[RequestCode[name]].role is Role.SERVICE, name


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
