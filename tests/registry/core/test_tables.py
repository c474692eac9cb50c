from __future__ import annotations

import random

import pytest

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.wire.headers import BrokerRow, OrderRow, RouteRow, TopicRow
from registry.core import tables as module
from registry.core.tables import BrokerKey, RegistryTables


def topic(name: str, queues: int = 4) -> TopicRow:
    return TopicRow(name, queues, queues, 6, "log", 1, False)


def route(name: str, broker: str, queues: int = 4) -> RouteRow:
    return RouteRow(name, broker, queues, queues, 6, "log", 1)


def broker(name: str = "a", broker_id: int = 0, address: str = "h:1", cluster: str = "c") -> BrokerRow:
    return BrokerRow(cluster, name, broker_id, address)


def test_a_broker_enters_every_table_and_leaves_every_table() -> None:
    tables = RegistryTables()
    tables.register(broker(), [topic("t"), topic("%SESSION", 64)], "conn", 0.0)
    assert tables.routes(["t", "none"]) == ([route("t", "a")], "")
    assert tables.brokers() == [broker()]
    assert tables.clusters() == {"c": ["a"]}
    assert tables.topics() == ["%SESSION", "t"]
    assert (tables.broker_count, tables.topic_count, tables.route_count) == (1, 2, 2)
    assert tables.unregister("a", 0)
    assert tables.size() == 0
    assert tables.route_count == 0
    assert not tables.unregister("a", 0)


def test_a_registration_replaces_what_the_broker_said_before() -> None:
    tables = RegistryTables()
    tables.register(broker(), [topic("t"), topic("gone")], "conn", 0.0)
    assert tables.register(broker(address="h:2"), [topic("t", 8), topic("new")], "conn2", 1.0) == "h:1"
    assert tables.routes() == ([route("new", "a"), route("t", "a", 8)], "")
    assert tables.brokers() == [broker(address="h:2")]


def test_the_version_rises_with_changes_only() -> None:
    tables = RegistryTables()
    tables.register(broker(), [topic("t")], "conn", 0.0)
    version = tables.version
    tables.register(broker(), [topic("t")], "conn", 30.0)
    assert tables.version == version
    tables.register(broker(), [topic("t", 5)], "conn", 60.0)
    assert tables.version == version + 1
    tables.unregister("a", 0)
    assert tables.version == version + 2


def test_who_was_silent_too_long_is_dropped_and_others_stay() -> None:
    tables = RegistryTables()
    tables.register(broker("a"), [topic("t")], "ca", 0.0)
    tables.register(broker("b"), [topic("t")], "cb", 100.0)
    assert tables.expire(120.0, 120.0) == []
    assert tables.silent_ms(120.0) == {"a": 120_000, "b": 20_000}
    assert tables.expire(120.1, 120.0) == [BrokerKey("a", 0)]
    assert tables.routes(["t"])[0] == [route("t", "b")]
    assert tables.brokers() == [broker("b")]


def test_a_registration_keeps_a_broker_from_expiring() -> None:
    tables = RegistryTables()
    for second in range(0, 600, 30):
        tables.register(broker(), [], "conn", float(second))
        assert tables.expire(second + 29.0, 120.0) == []


def test_a_closed_connection_takes_its_brokers_along() -> None:
    tables = RegistryTables()
    tables.register(broker("a"), [topic("t")], "one", 0.0)
    tables.register(broker("b"), [topic("t")], "one", 0.0)
    tables.register(broker("z"), [topic("t")], "two", 0.0)
    assert tables.connection_closed("one") == [BrokerKey("a", 0), BrokerKey("b", 0)]
    assert [row.broker for row in tables.brokers()] == ["z"]
    assert tables.connection_closed("one") == []


def test_an_old_connection_s_end_does_not_drop_a_broker_that_came_back() -> None:
    tables = RegistryTables()
    tables.register(broker(), [topic("t")], "old", 0.0)
    tables.register(broker(), [topic("t")], "new", 1.0)
    assert tables.connection_closed("old") == []
    assert tables.broker_count == 1
    assert tables.connection_closed("new") == [BrokerKey("a", 0)]
    assert tables.size() == 0


def test_the_highest_epoch_has_the_name() -> None:
    tables = RegistryTables()
    tables.register(broker(address="a:1")._replace(epoch=3), [topic("t")], "old", 0.0)
    tables.register(broker(address="b:1")._replace(epoch=5), [topic("t", 8)], "new", 1.0)
    assert tables.brokers() == [broker(address="b:1")._replace(epoch=5)]
    with pytest.raises(HoldMQError, match="led in epoch 5 at b:1") as refused:
        tables.register(broker(address="a:1")._replace(epoch=3), [topic("t")], "old", 2.0)
    assert refused.value.code == Code.NOT_LEADER
    assert isinstance(refused.value, RemoteError)
    assert refused.value.ext_fields == {"epoch": 5, "leader": "b:1"}
    assert not tables.unregister("a", 0, 3), "who led before takes nobody out"
    assert tables.connection_closed("old") == []
    assert tables.routes(["t"]) == ([route("t", "a", 8)], "")


def test_the_highest_epoch_has_the_name_whatever_the_ids() -> None:
    tables = RegistryTables()
    tables.register(broker()._replace(epoch=3), [topic("t", 4), topic("gone")], "old", 0.0)
    new = broker(broker_id=1, address="h:2")._replace(epoch=5)
    assert tables.register(new, [topic("t", 8)], "new", 1.0) == "h:1"
    assert tables.brokers() == [new]
    assert tables.routes() == ([route("t", "a", 8)], "")
    assert (tables.route_count, tables.topic_count) == (1, 1)
    assert tables.connection_closed("old") == []
    assert tables.unregister("a", 1, 5)
    assert tables.size() == 0


def test_who_takes_over_from_another_id_needs_no_place_of_his_own() -> None:
    tables = RegistryTables(brokers_max=1, routes_max=1)
    tables.register(broker()._replace(epoch=3), [topic("t")], "old", 0.0)
    with pytest.raises(RemoteError, match="BROKERS_MAX"):
        tables.register(broker("b")._replace(epoch=1), [], "b", 1.0)
    tables.register(broker(broker_id=1)._replace(epoch=4), [topic("u")], "new", 2.0)
    assert tables.topics() == ["u"]


def test_a_leader_that_leads_anew_at_its_old_address_is_news() -> None:
    tables = RegistryTables()
    tables.register(broker()._replace(epoch=3), [topic("t")], "old", 0.0)
    version = tables.version
    tables.take_changed()
    tables.register(broker()._replace(epoch=4), [topic("t")], "old", 1.0)
    assert tables.version > version
    assert tables.take_changed() == (set(), True)


def test_the_room_of_a_name_is_that_of_the_process_that_leads() -> None:
    tables = RegistryTables()
    tables.register(broker(address="a:1")._replace(epoch=3, room="east"), [topic("t")], "old", 0.0)
    tables.take_changed()
    tables.register(broker(address="b:1")._replace(epoch=5, room="west"), [topic("t")], "new", 1.0)
    assert [row.room for row in tables.brokers()] == ["west"]
    version = tables.version
    tables.register(broker(address="b:1")._replace(epoch=5, room="north"), [topic("t")], "new", 2.0)
    assert [row.room for row in tables.brokers()] == ["north"]
    assert tables.version > version
    with pytest.raises(HoldMQError, match="machine room 'a room' must be 1 to 64 letters"):
        tables.register(broker("b")._replace(room="a room"), [], "b", 3.0)


def test_an_epoch_that_is_over_stays_so_while_nobody_leads() -> None:
    tables = RegistryTables()
    tables.register(broker()._replace(epoch=5), [topic("t")], "conn", 0.0)
    assert tables.expire(100.0, 60.0) == [BrokerKey("a", 0)]
    for epoch, hint in ((0, "restart the registries"), (4, "says 4$")):
        with pytest.raises(HoldMQError, match=f"led in epoch 5; .*{hint}"):
            tables.register(broker()._replace(epoch=epoch), [topic("t")], "conn", 101.0)
    tables.register(broker()._replace(epoch=5), [topic("t")], "conn", 102.0)
    assert tables.unregister("a", 0, 5)


def test_the_names_whose_epochs_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPOCHS_MAX", 1)
    tables = RegistryTables()
    tables.register(broker()._replace(epoch=1), [topic("t")], "conn", 0.0)
    tables.register(broker()._replace(epoch=2), [topic("t")], "conn", 0.0)
    with pytest.raises(HoldMQError, match="EPOCHS_MAX"):
        tables.register(broker("b")._replace(epoch=1), [topic("t")], "conn", 0.0)
    tables.register(broker("b"), [topic("t")], "conn", 0.0)


def test_the_lowest_id_speaks_for_a_broker_s_name() -> None:
    tables = RegistryTables()
    tables.register(broker(broker_id=1, address="h:2"), [topic("t", 2)], "slave", 0.0)
    assert tables.routes(["t"])[0] == [route("t", "a", 2)]
    tables.register(broker(), [topic("t", 4), topic("m")], "master", 0.0)
    assert tables.routes()[0] == [route("m", "a"), route("t", "a", 4)]
    tables.connection_closed("master")
    assert tables.routes() == ([route("t", "a", 2)], "")
    assert tables.brokers() == [broker(broker_id=1, address="h:2")]
    tables.connection_closed("slave")
    assert tables.size() == 0


def test_a_name_belongs_to_one_cluster() -> None:
    tables = RegistryTables()
    tables.register(broker(), [], "conn", 0.0)
    with pytest.raises(HoldMQError, match="belongs to cluster 'c'") as caught:
        tables.register(broker(cluster="other"), [], "conn2", 0.0)
    assert caught.value.code == Code.NOT_PERMITTED


def test_brokers_are_bounded_and_a_known_one_may_still_register() -> None:
    tables = RegistryTables(brokers_max=2)
    tables.register(broker("a"), [], 1, 0.0)
    tables.register(broker("b"), [], 2, 0.0)
    with pytest.raises(HoldMQError, match="BROKERS_MAX") as caught:
        tables.register(broker("z"), [], 3, 0.0)
    assert caught.value.code == Code.LIMIT_EXCEEDED
    tables.register(broker("b"), [topic("t")], 4, 0.0)


def test_routes_are_bounded_and_a_refusal_changes_nothing() -> None:
    tables = RegistryTables(routes_max=3)
    tables.register(broker("a"), [topic("t"), topic("u")], 1, 0.0)
    with pytest.raises(HoldMQError, match="ROUTES_MAX"):
        tables.register(broker("b"), [topic("t"), topic("u")], 2, 0.0)
    assert tables.connection_closed(2) == []
    tables.register(broker("a"), [topic("t"), topic("u"), topic("v")], 1, 0.0)
    with pytest.raises(HoldMQError, match="ROUTES_MAX"):
        tables.register(broker("a"), [topic(f"t{i}") for i in range(4)], 1, 0.0)
    assert tables.route_count == 3
    assert len(tables.routes()[0]) == 3


def pages(tables: RegistryTables, topics: list[str] | None, max_bytes: int) -> list[list[RouteRow]]:
    found: list[list[RouteRow]] = []
    after = ""
    while True:
        rows, after = tables.routes(topics, after, max_bytes)
        found.append(rows)
        if not after:
            return found


@pytest.mark.parametrize("topics", [None, ["b", "none", "a", "c", "b"]])
def test_an_answer_comes_in_pages_that_split_no_topic(topics: list[str] | None) -> None:
    tables = RegistryTables()
    for name in "xy":
        tables.register(broker(name), [topic(t) for t in "abc"], name, 0.0)
    for max_bytes in (1, 100, 1000):
        found = pages(tables, topics, max_bytes)
        assert [row for page in found for row in page] == [route(t, name) for t in "abc" for name in "xy"]
        assert len(found) == (1 if max_bytes == 1000 else 3)
    assert tables.routes(["none"], "", 1) == ([], "")


def test_a_page_goes_on_after_a_topic_that_is_gone() -> None:
    tables = RegistryTables()
    tables.register(broker(), [topic(t) for t in "abc"], 1, 0.0)
    rows, after = tables.routes(None, "", 1)
    assert (rows, after) == ([route("a", "a")], "a")
    tables.register(broker(), [topic("c")], 1, 0.0)
    assert tables.routes(None, after, 1) == ([route("c", "a")], "")


def test_what_changed_is_told_once_by_topic() -> None:
    tables = RegistryTables()
    tables.register(broker("a"), [topic("t"), topic("u")], 1, 0.0)
    assert tables.take_changed() == ({"t", "u"}, True)
    tables.register(broker("a"), [topic("t"), topic("u", 8)], 1, 0.0)
    assert tables.take_changed() == ({"u"}, False)
    tables.register(broker("a"), [topic("t"), topic("u", 8)], 1, 0.0)
    assert tables.take_changed() == (set(), False)
    tables.unregister("a", 0)
    assert tables.take_changed() == ({"t", "u"}, True)


def ordered(name: str, queues: int = 4) -> TopicRow:
    return topic(name, queues)._replace(order=True)


def absent(name: str, broker: str, queues: int = 4) -> RouteRow:
    return RouteRow(name, broker, 0, queues, 6, "log", 1, True)


def test_an_ordered_topic_keeps_the_queues_of_an_absent_broker() -> None:
    tables = RegistryTables()
    for name in "ab":
        tables.register(broker(name), [ordered("t", 2), topic("u")], name, 0.0)
    tables.connection_closed("b")
    assert tables.routes()[0] == [
        route("t", "a", 2)._replace(order=True),
        absent("t", "b", 2),
        route("u", "a"),
    ]
    assert [row.broker for row in tables.brokers()] == ["a"]
    tables.connection_closed("a")
    assert tables.routes()[0] == [absent("t", "a", 2), absent("t", "b", 2)]
    tables.register(broker("b"), [ordered("t", 3)], "b", 0.0)
    assert tables.routes()[0] == [route("t", "b", 3)._replace(order=True), absent("t", "a", 2)]


def test_a_broker_leaves_an_ordered_topic_that_it_deleted_or_made_unordered() -> None:
    tables = RegistryTables()
    tables.register(broker("a"), [ordered("t"), ordered("u")], "a", 0.0)
    tables.register(broker("a"), [topic("u")], "a", 0.0)
    assert len(tables.order) == 0
    tables.connection_closed("a")
    assert tables.routes() == ([], "")


def test_order_can_be_set_for_topics_and_brokers_that_are_absent() -> None:
    tables = RegistryTables()
    tables.register(broker("a"), [topic("t", 2)], "a", 0.0)
    version = tables.version
    assert tables.set_order(OrderRow("t", {"a": 2, "gone": 3}))
    assert not tables.set_order(OrderRow("t", {"a": 2, "gone": 3}))
    assert tables.version == version + 1
    assert tables.routes()[0] == [route("t", "a", 2)._replace(order=True), absent("t", "gone", 3)]
    tables.register(broker("a"), [topic("t", 4)], "a", 1.0)
    assert tables.routes()[0][0] == route("t", "a", 4)._replace(order=True)
    with pytest.raises(HoldMQError, match="'a' has no topic 'u'"):
        tables.set_order(OrderRow("u", {"a": 1}))
    assert tables.set_order(OrderRow("t", {}))
    assert tables.routes()[0] == [route("t", "a", 4)]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (broker("a b"), "broker name"),
        (broker(""), "broker name"),
        (broker("a", cluster="x" * 65), "cluster name"),
        (broker("a", -1), "broker id -1"),
        (broker("a", address="nowhere"), "host:port"),
        (broker("a", address="h:port"), "host:port"),
        (broker("a", address="h" * 400 + ":1"), "host:port"),
    ],
)
def test_a_bad_broker_is_refused_by_what_is_wrong(row: BrokerRow, fault: str) -> None:
    tables = RegistryTables()
    with pytest.raises(HoldMQError, match=fault):
        tables.register(row, [], 1, 0.0)
    assert tables.size() == 0


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "host.example:65535", "[::1]:9876", "::1:9876", "unix:/run/b"]
)
def test_addresses_of_every_kind_are_taken(address: str) -> None:
    tables = RegistryTables()
    tables.register(broker(address=address), [], 1, 0.0)
    assert tables.brokers()[0].address == address


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (topic("a.b"), Code.TOPIC_INVALID),
        (topic(""), Code.TOPIC_INVALID),
        (topic("%"), Code.TOPIC_INVALID),
        (topic("t", -1), Code.LIMIT_EXCEEDED),
        (topic("t", module.QUEUES_MAX + 1), Code.LIMIT_EXCEEDED),
    ],
)
def test_a_bad_topic_refuses_the_registration(row: TopicRow, code: Code) -> None:
    tables = RegistryTables()
    with pytest.raises(HoldMQError) as caught:
        tables.register(broker(), [topic("good"), row], 1, 0.0)
    assert caught.value.code == code
    assert tables.size() == 0


def test_any_sequence_of_changes_leaves_the_tables_consistent() -> None:
    rng = random.Random(7)
    tables = RegistryTables()
    expected: dict[BrokerKey, tuple[int, float, list[TopicRow]]] = {}
    for step in range(3000):
        now = float(step)
        key = BrokerKey(rng.choice("abc"), rng.randrange(2))
        action = rng.randrange(4)
        if action <= 1:
            topics = [topic(name, rng.randrange(1, 3)) for name in rng.sample("tuvw", rng.randrange(5))]
            connection = rng.randrange(4)
            tables.register(broker(key.broker, key.broker_id), topics, connection, now)
            expected[key] = (connection, now, topics)
        elif action == 2:
            assert tables.unregister(*key) == (expected.pop(key, None) is not None)
        else:
            gone = rng.randrange(4)
            closed = sorted(k for k, (connection, _, _) in expected.items() if connection == gone)
            assert tables.connection_closed(gone) == closed
            for k in closed:
                del expected[k]
        if rng.randrange(10) == 0:
            late = {k for k, (_, seen, _) in expected.items() if now - seen > 20}
            assert set(tables.expire(now, 20)) == late
            expected = {k: v for k, v in expected.items() if k not in late}
        speakers = {name: min(k.broker_id for k in expected if k.broker == name) for name, _ in expected}
        rows = [
            route(t.topic, name, t.read_queues)
            for name, broker_id in speakers.items()
            for t in expected[BrokerKey(name, broker_id)][2]
        ]
        assert sorted(tables.routes()[0]) == sorted(rows)
        assert [(b.broker, b.broker_id) for b in tables.brokers()] == sorted(expected)
        assert tables.route_count == sum(len(topics) for _, _, topics in expected.values())
    for name in "abc":
        for broker_id in range(2):
            tables.unregister(name, broker_id)
    assert tables.size() == 0


def two_clusters() -> RegistryTables:
    """Broker a and c of plant, b of office; the topic t is at all of them, ordered at c and b."""
    tables = RegistryTables()
    tables.register(broker("a", cluster="plant"), [topic("t"), topic("p")], "a", 0.0)
    tables.register(broker("b", cluster="office"), [ordered("t", 2), topic("o")], "b", 1.0)
    tables.register(broker("c", cluster="plant"), [ordered("t", 3)], "c", 0.0)
    return tables


def test_who_asks_for_a_cluster_is_answered_as_if_there_were_no_other() -> None:
    tables = two_clusters()
    for name, brokers, topics in (
        ("plant", "ac", "pt"),
        ("office", "b", "ot"),
        ("", "abc", "opt"),
        ("x", "", ""),
    ):
        assert [row.broker for row in tables.brokers(name)] == list(brokers)
        assert sorted(tables.silent_ms(2.0, name)) == list(brokers)
        assert tables.topics(name) == list(topics)
        routes, _ = tables.routes(cluster=name)
        assert {row.broker for row in routes} == set(brokers)
        assert {row.topic for row in routes} == set(topics)
    pages, after = tables.routes(max_bytes=1, cluster="office")
    assert ([row.topic for row in pages], after) == (["o"], "p")
    assert tables.routes(after=after, cluster="office") == ([route("t", "b", 2)._replace(order=True)], "")


def test_queues_of_an_absent_broker_are_told_to_its_cluster_alone() -> None:
    tables = two_clusters()
    tables.connection_closed("c")
    assert absent("t", "c", 3) in tables.routes(cluster="plant")[0]
    assert absent("t", "c", 3) in tables.routes()[0]
    assert tables.routes(["t"], cluster="office")[0] == [route("t", "b", 2)._replace(order=True)]
    tables.connection_closed("b")
    assert tables.routes(cluster="office")[0] == [absent("t", "b", 2)]
    # It comes back in another cluster, where its queues are from then on.
    tables.register(broker("c", cluster="office"), [ordered("t", 3)], "c", 2.0)
    tables.connection_closed("c")
    assert tables.routes(["t"], cluster="plant")[0] == [route("t", "a")]
    assert {row.broker for row in tables.routes(["t"], cluster="office")[0]} == {"b", "c"}


def test_a_topic_that_is_made_ordered_in_one_cluster_is_not_in_another() -> None:
    tables = RegistryTables()
    for name, cluster in (("a", "plant"), ("b", "office")):
        tables.register(broker(name, cluster=cluster), [topic("t")], name, 0.0)
    assert tables.set_order(OrderRow("t", {"a": 4, "gone": 4}), "plant")
    assert [row.order for row in tables.routes(cluster="plant")[0]] == [True, True]
    assert tables.routes(cluster="office")[0] == [route("t", "b")]
    with pytest.raises(HoldMQError, match="'b' is of cluster 'office', not 'plant'"):
        tables.set_order(OrderRow("t", {"b": 4}), "plant")
    # Without a cluster all brokers are set, and those that are registered are of theirs.
    assert tables.set_order(OrderRow("t", {"b": 4}))
    assert tables.order.get("t", "plant") == {}
