from __future__ import annotations

import pytest

from holdmq.errors import Code, RemoteError
from holdmq.wire.headers import OrderRow, RouteRow
from registry.core.order import OrderTable


def rows(*topics: str, queues: int = 4, order: bool = True) -> dict[str, RouteRow]:
    return {t: RouteRow(t, "a", queues, queues, 6, "log", 1, order) for t in topics}


def test_what_is_learnt_is_listed_and_survives_the_file() -> None:
    table = OrderTable()
    assert table.learn("a", {}, rows("t", "u", "%OWN")) == {"t", "u", "%OWN"}
    assert table.learn("a", rows("t", "u", "%OWN"), rows("t", "u", "%OWN")) == frozenset()
    assert table.learn("b", {}, rows("t", queues=2)) == {"t"}
    assert table.listed() == [OrderRow("t", {"a": 4, "b": 2}), OrderRow("u", {"a": 4})]
    assert table.listed(["%OWN"]) == [OrderRow("%OWN", {"a": 4})]
    assert table.listed(["u", "none"]) == [OrderRow("u", {"a": 4})]
    again = OrderTable()
    assert again.load(table.content(), table.version) == ""
    assert again.content() == table.content()
    assert (again.version, again.rows) == (table.version, 4)


def test_after_a_restart_a_topic_stays_ordered_until_it_is_deleted_or_set() -> None:
    table = OrderTable()
    assert table.load({"orderTopics": {"t": {"a": 4, "gone": 4}}}, 7) == ""
    assert table.learn("a", {}, rows("t", order=False)) == frozenset()
    assert table.learn("a", rows("t"), {}) == {"t"}
    assert table.get("t") == {"gone": 4}


def test_brokers_of_ordered_topics_are_bounded() -> None:
    table = OrderTable(rows_max=2)
    assert table.learn("a", {}, rows("t", "u", "v")) == {"t", "u"}
    assert (table.rows, table.refused) == (2, 1)
    with pytest.raises(RemoteError, match="ORDER_ROWS_MAX"):
        table.replace("w", {"a": 1})
    assert table.replace("t", {"b": 1}) == {"t"}
    assert table.replace("t", {}) == {"t"}
    assert table.replace("w", {"a": 1}) == {"w"}


@pytest.mark.parametrize(
    ("topic", "queues", "code"),
    [("a.b", {"a": 1}, Code.TOPIC_INVALID), ("t", {"a": 0}, Code.LIMIT_EXCEEDED), ("t", {"a": "x"}, 28)],
)
def test_what_cannot_be_is_refused(topic: str, queues: dict[str, int], code: int) -> None:
    table = OrderTable()
    with pytest.raises(RemoteError) as caught:
        table.replace(topic, queues)
    assert caught.value.code == code
    assert len(table) == 0


@pytest.mark.parametrize("content", [{}, {"orderTopics": {"t": 1}}, {"orderTopics": {"t": {"a": -1}}}])
def test_a_file_of_another_shape_is_told(content: dict[str, object]) -> None:
    assert OrderTable().load(content, 1)


def test_who_asks_for_a_cluster_is_told_of_its_brokers_and_of_those_that_are_not_known() -> None:
    table = OrderTable()
    table.learn("a", {}, rows("t", "u"))
    table.learn("b", {}, rows("t", queues=2))
    table.learn("unplaced", {}, rows("t", queues=1))
    assert table.place("a", "plant") == {"t", "u"}
    assert table.place("a", "plant") == frozenset()
    assert table.place("b", "office") == {"t"}
    assert table.place("nobody", "office") == frozenset()
    version = table.version
    again = OrderTable()
    assert again.load(table.content(), version) == ""
    for one in (table, again):
        assert one.get("t", "plant") == {"a": 4, "unplaced": 1}
        assert one.get("t", "office") == {"b": 2, "unplaced": 1}
        assert one.get("t") == {"a": 4, "b": 2, "unplaced": 1}
        assert one.listed(cluster="office") == [OrderRow("t", {"b": 2, "unplaced": 1})]
        assert one.content()["clusters"] == {"a": "plant", "b": "office"}
    table.learn("b", rows("t"), {})
    table.place("b", "office")
    assert table.content()["clusters"] == {"a": "plant"}


def test_an_order_for_a_cluster_leaves_the_others_alone() -> None:
    table = OrderTable()
    table.replace("t", {"a": 4})
    table.place("a", "plant")
    assert table.replace("t", {"b": 2}, "office") == {"t"}
    assert table.replace("t", {"b": 2}, "office") == frozenset()
    assert table.get("t") == {"a": 4, "b": 2}
    assert table.replace("t", {"c": 1}, "office") == {"t"}
    assert (table.get("t"), table.rows) == ({"a": 4, "c": 1}, 2)
    assert table.content()["clusters"] == {"a": "plant", "c": "office"}
    assert table.replace("t", {}, "office") == {"t"}
    assert table.get("t") == {"a": 4}
    assert table.replace("t", {}) == {"t"}
    assert table.content() == {"orderTopics": {}, "clusters": {}}


def test_clusters_of_another_shape_are_told() -> None:
    for clusters in ({"a": 1}, ["a"]):
        assert "clusters" in OrderTable().load({"orderTopics": {"t": {"a": 4}}, "clusters": clusters}, 1)
