"""A tenant's words on the wire: what is asked in them, what is answered, and what stays another's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdmq.credentials.permissions import ADMINS, NEEDS, READERS
from holdmq.errors import Code, RemoteError, UsageError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupSubscription, MemberRow
from holdmq.wire.headers import ConnectionRow, ProduceRun, RouteRow, SubscriptionRow, TopicRow
from holdmq.wire.tenant_words import _ASKED, TenantWords

ACME = TenantWords("acme")


def test_names_are_whole_outside_and_own_inside() -> None:
    assert ACME.whole("orders") == "acme%orders"
    assert ACME.whole("%RETRY%readers") == "%RETRY%acme%readers"
    assert ACME.own("%DLQ%acme%readers") == "%DLQ%readers"
    assert [ACME.is_own(name) for name in ("acme%a", "%RETRY%acme%a", "beta%a", "a", "%SESSION")] == [
        True, True, False, False, False
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("acme%orders", "'acme%orders' is a whole name: with the tenant 'acme' say 'orders'"),
        ("%RETRY%acme%readers", "say '%RETRY%readers'"),
        ("beta%orders", "'beta%orders' is not of the tenant 'acme'"),
        ("%RETAIN", "'%RETAIN' is about the whole cluster"),
    ],
)
def test_a_name_that_is_none_of_its_words_is_refused(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        ACME.whole(name)


def test_a_tenant_has_a_name_that_one_can_have() -> None:
    with pytest.raises(UsageError, match="must be of letters"):
        TenantWords("a%b")


def test_requests_say_whole_names_wherever_they_name_anything() -> None:
    asked = ACME.asked(RequestCode.PRODUCE, {"crc": 1, "runs": [ProduceRun("orders", 0, 1, 2, 3, 4)]})
    assert asked == {"crc": 1, "runs": [["acme%orders", 0, 1, 2, 3, 4]]}
    asked = ACME.asked(
        RequestCode.GROUP_JOIN,
        {"group": "readers", "subscriptions": [GroupSubscription("%RETRY%readers", "*")]},
    )
    assert asked == {"group": "acme%readers", "subscriptions": [["%RETRY%acme%readers", "*"]]}
    assert ACME.asked(RequestCode.ROUTE_GET, {"topics": None})["topics"] is None
    assert ACME.asked(RequestCode.PULL, {"queues": [], "group": ""})["group"] == ""


def test_what_is_about_the_whole_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="RETAINED_SCAN is about the whole cluster"):
        ACME.asked(RequestCode.RETAINED_SCAN, {"filter": "#"})


def test_lists_have_what_is_the_tenants_alone() -> None:
    rows = [
        [name, *RouteRow("", "b", 1, 1, 6, "log", 1)[1:]]
        for name in ("acme%orders", "beta%orders", "orders", "%RETRY%acme%readers")
    ]
    found = ACME.answered(RequestCode.ROUTE_GET, {}, {"routes": rows, "version": 4})
    assert [row[0] for row in found["routes"]] == ["orders", "%RETRY%readers"]
    assert found["version"] == 4
    names = {"names": ["acme%a", "beta%a", "a"], "values": [1, 2, 3]}
    assert ACME.answered(RequestCode.GROUP_LIST, {}, names) == {"names": ["a"], "values": [1]}


def test_a_search_looks_into_own_names() -> None:
    topics = [list(TopicRow(name, 1, 1, 6, "log", 1, False)) for name in ("acme%orders", "acme%meters")]
    found = ACME.answered(RequestCode.TOPIC_LIST, {"search": "ME"}, {"topics": topics})
    assert [row[0] for row in found["topics"]] == ["meters"]
    column = {"names": ["acme%orders", "acme%meters"], "values": [1, 2]}
    found = ACME.answered(RequestCode.TOPIC_LIST, {"search": "acme"}, column)
    assert found == {"names": [], "values": []}


def test_the_first_reader_of_a_topic_and_a_members_subscriptions_are_own_words_too() -> None:
    row = [*TopicRow("acme%orders", 1, 1, 6, "log", 1, False)[:13], "acme%readers"]
    (found,) = ACME.answered(RequestCode.TOPIC_UPDATE, {}, {"topics": [row]})["topics"]
    assert (found[0], found[13]) == ("orders", "readers")
    member = list(MemberRow("c", "", "", "", "", "", 0, 0, [GroupSubscription("acme%orders", "*")]))
    (shown,) = ACME.answered(RequestCode.GROUP_MEMBERS, {}, {"members": [member]})["members"]
    assert shown[8] == [["orders", "*"]]


def test_connections_are_those_that_use_what_is_the_tenants() -> None:
    def row(client: str, subscriptions: list[Any], produces: list[str], reads: list[str]) -> list[Any]:
        return list(
            ConnectionRow("client", client, "", "", "", 0, {}, subscriptions, "", [], produces, reads)
        )

    found = ACME.answered(
        RequestCode.CONNECTION_LIST,
        {},
        {
            "connections": [
                row("reader", [SubscriptionRow("acme%g", "shared", "acme%orders", "*")], [], []),
                row("both", [], ["acme%orders", "beta%orders"], ["orders"]),
                row("other", [SubscriptionRow("g", "shared", "orders", "*")], ["orders"], ["beta%orders"]),
            ]
        },
    )
    reader, both = found["connections"]
    assert reader[7] == [["g", "shared", "orders", "*"]]
    assert (both[10], both[11]) == (["orders"], [])


def test_errors_are_in_own_words() -> None:
    error = RemoteError(Code.TOPIC_UNKNOWN, "no topic 'acme%orders', nor '%DLQ%acme%readers'")
    assert ACME.refused(error).remark == "no topic 'orders', nor '%DLQ%readers'"
    other = RemoteError(Code.NOT_PERMITTED, "'shop-acme%orders' and 'beta%orders' are 50 acme% of it")
    assert ACME.refused(other) is other
    results = {"results": [[1, -1, "topic 'acme%orders' is paused"]]}
    assert ACME.answered(RequestCode.PRODUCE, {}, results) == {
        "results": [[1, -1, "topic 'orders' is paused"]]
    }


def test_an_ill_typed_answer_is_left_for_its_header_to_refuse() -> None:
    assert ACME.answered(RequestCode.ROUTE_GET, {}, {"routes": 7}) == {"routes": 7}
    assert ACME.answered(RequestCode.PULL, {}, {"queues": [[7, 1]]}) == {"queues": [[7, 1]]}
    assert ACME.answered(RequestCode.TOPIC_LIST, {}, {"topics": [[]]}) == {"topics": []}


def test_pushes_are_in_own_words() -> None:
    assert ACME.told(RequestCode.GROUP_CHANGED, {"group": "acme%g", "version": 1})["group"] == "g"
    assert ACME.told(RequestCode.TABLE_CHANGED, {"watch_id": 1}) == {"watch_id": 1}


NOT_IN_WORDS = {
    # Nobody sends these: of producers' delays PRODUCE tells.
    RequestCode.DELAY,
    # Answers are records of the whole log.
    RequestCode.READ_OPEN,
    RequestCode.READ_FILTER,
}


def test_every_request_that_a_pattern_of_names_decides_on_has_its_line() -> None:
    named = {code for code, needs in NEEDS.items() if needs.topics or needs.groups or needs.by_item}
    assert named - _ASKED.keys() == NOT_IN_WORDS - {RequestCode.READ_OPEN, RequestCode.READ_FILTER}
    for code, needs in NEEDS.items():
        fields = {name.removesuffix("?") for name in (needs.topics, *needs.groups) if name}
        if code in _ASKED:
            assert fields <= _ASKED[code].keys(), code.name


def test_no_line_is_of_a_request_that_takes_a_gateway_or_a_broker() -> None:
    for code in _ASKED:
        needs = NEEDS[RequestCode(code)]
        assert needs.by_patterns or needs.roles & (READERS | ADMINS), code
