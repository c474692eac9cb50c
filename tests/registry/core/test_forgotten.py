from __future__ import annotations

import pytest

from holdmq.errors import Code, RemoteError, WireError
from holdmq.wire.forget_headers import TIME_MAX_MS, UNKNOWN, ForgottenRow, LostTopicRow, newest_of
from holdmq.wire.headers import BrokerRow, OrderRow, TopicRow
from holdmq.wire.session_headers import SESSION_TOPIC
from registry.core.forgotten import ForgottenBrokers
from registry.core.order import OrderTable
from registry.core.tables import BrokerKey, KeptHere, RegistryTables


def broker(name: str, epoch: int = 0) -> BrokerRow:
    return BrokerRow("c", name, 0, f"{name}:1", epoch)


def ordered(name: str, queues: int = 4) -> TopicRow:
    return TopicRow(name, queues, queues, 6, "table", 1, True)


def plain(name: str) -> TopicRow:
    return TopicRow(name, 2, 2, 6, "log", 1, False)


def two_brokers() -> RegistryTables:
    """Brokers a and b of which b has gone; its store was made at 100 ms."""
    tables = RegistryTables()
    tables.register(broker("a"), [ordered(SESSION_TOPIC), plain("t")], "ca", 0.0, KeptHere(50, 3, 1))
    topics = [ordered(SESSION_TOPIC), ordered("mine"), plain("t"), plain("u")]
    tables.register(broker("b"), topics, "cb", 1.0, KeptHere(100, 7, 2))
    tables.connection_closed("cb")
    return tables


def write_brokers(tables: RegistryTables, topic: str) -> list[str]:
    return [row.broker for row in tables.routes([topic])[0] if row.write_queues]


def refused(tables: RegistryTables, row: BrokerRow, made_ms: int) -> RemoteError:
    with pytest.raises(RemoteError) as found:
        tables.register(row, [ordered(SESSION_TOPIC)], "again", 9.0, KeptHere(made_ms))
    return found.value


def test_a_look_says_what_is_lost_and_changes_nothing() -> None:
    tables = two_brokers()
    version = tables.version
    found = tables.lost("b", 11.0)
    assert (found.sessions, found.retained, found.silent_ms, found.cluster) == (7, 2, 10_000, "c")
    assert (found.is_known, found.forgotten_ms, found.topics_total, found.queues_total) == (True, 0, 4, 12)
    assert found.topics == [
        LostTopicRow(SESSION_TOPIC, 4, True, 1),
        LostTopicRow("mine", 4, True, 0),
        LostTopicRow("t", 2, False, 1),
        LostTopicRow("u", 2, False, 0),
    ]
    assert tables.version == version
    assert write_brokers(tables, SESSION_TOPIC) == ["a", "b"]


def test_a_registry_that_was_started_since_knows_rows_but_no_numbers() -> None:
    order = OrderTable()
    assert order.load(two_brokers().order.content(), 1) == ""
    tables = RegistryTables()
    tables.order = order
    found = tables.lost("b", 11.0)
    assert (found.is_known, found.sessions, found.retained, found.silent_ms) == (True, *[UNKNOWN] * 3)
    assert [row.topic for row in found.topics] == [SESSION_TOPIC, "mine"]
    assert not tables.lost("never", 11.0).is_known


def test_a_broker_that_is_given_up_leaves_every_ordered_topic_and_all_who_wait_hear_of_it() -> None:
    tables = two_brokers()
    tables.take_changed()
    version = tables.version
    assert tables.forget("b", 1_000)
    assert write_brokers(tables, SESSION_TOPIC) == ["a"]
    assert tables.routes(["mine"])[0] == []
    assert tables.changes.since(version, ["something else"])
    assert tables.take_changed() == ({SESSION_TOPIC, "mine"}, True)
    assert tables.order.forgotten.listed() == [ForgottenRow("b", 1_000)]
    version = tables.version
    assert not tables.forget("b", 2_000), "again changes nothing"
    assert tables.version == version
    assert tables.lost("b", 11.0).forgotten_ms == 1_000


def test_a_broker_that_lives_or_has_copies_is_not_given_up() -> None:
    tables = two_brokers()
    with pytest.raises(RemoteError, match="is registered, at a:1: it lives"):
        tables.lost("a", 1.0)
    tables.register(broker("led", 3), [], "cl", 1.0)
    tables.connection_closed("cl")
    with pytest.raises(RemoteError, match="has copies"):
        tables.lost("led", 1.0)
    with pytest.raises(WireError, match="no broker's name"):
        tables.lost("no name", 1.0)
    with pytest.raises(WireError, match="no time"):
        tables.forget("b", TIME_MAX_MS)


def test_only_a_store_that_was_made_later_may_have_the_name() -> None:
    tables = two_brokers()
    tables.forget("b", 1_000_000)
    error = refused(tables, broker("b"), 100)
    assert (error.code, error.ext_fields) == (Code.BROKER_FORGOTTEN, {"forgotten_ms": 1_000_000})
    assert "999 s before that; start it with an empty directory" in error.remark
    assert "does not say when" in refused(tables, broker("b"), 0).remark, "one of an earlier build"
    assert refused(tables, broker("b"), 1_000_000).code == Code.BROKER_FORGOTTEN
    assert write_brokers(tables, SESSION_TOPIC) == ["a"]
    tables.register(broker("b"), [plain("t")], "cb", 9.0, KeptHere(1_000_001))
    assert tables.order.forgotten.listed() == [ForgottenRow("b", 1_000_000, True)]
    assert refused(tables, broker("b"), 100).code == Code.BROKER_FORGOTTEN, "the old one, as ever"


def test_one_that_came_back_can_be_given_up_again() -> None:
    tables = two_brokers()
    tables.forget("b", 1_000)
    tables.register(broker("b"), [ordered("new")], "cb", 9.0, KeptHere(2_000))
    tables.connection_closed("cb")
    assert tables.lost("b", 9.0).forgotten_ms == 0
    assert write_brokers(tables, "new") == ["b"], "absent, it keeps its rows"
    assert tables.forget("b", 900), "by a clock that is behind"
    assert tables.order.forgotten.listed() == [ForgottenRow("b", 1_001)]


def test_a_registry_that_was_away_hears_it_and_drops_an_old_store_that_came_to_it() -> None:
    tables = two_brokers()
    tables.register(broker("b"), [ordered(SESSION_TOPIC)], "old", 2.0, KeptHere(100))
    told = [ForgottenRow("b", 1_000)]
    assert tables.hear_forgotten(told) == (["b"], [BrokerKey("b", 0)])
    assert write_brokers(tables, SESSION_TOPIC) == ["a"]
    assert [row.broker for row in tables.brokers()] == ["a"]
    assert tables.hear_forgotten(told) == ([], [])
    assert tables.connection_closed("old") == []
    assert refused(tables, broker("b"), 100).code == Code.BROKER_FORGOTTEN
    with pytest.raises(WireError, match="no broker that was given up"):
        tables.hear_forgotten([ForgottenRow("b", 0)])


def test_what_is_heard_late_leaves_the_store_that_came_after_it() -> None:
    for lives in (True, False):
        tables = two_brokers()
        tables.register(broker("b"), [ordered("new")], "cb", 9.0, KeptHere(2_000))
        if not lives:
            tables.connection_closed("cb")
        assert tables.hear_forgotten([ForgottenRow("b", 1_000)]) == ([], [])
        assert write_brokers(tables, "new") == ["b"]
        assert tables.order.forgotten.listed() == [ForgottenRow("b", 1_000, True)]


def test_the_newest_of_what_is_heard_counts_whatever_its_order() -> None:
    found = [ForgottenRow("b", 5, True), ForgottenRow("b", 5), ForgottenRow("b", 7), ForgottenRow("c", 1)]
    for each in (found, found[::-1]):
        assert newest_of(each) == {"b": ForgottenRow("b", 7), "c": ForgottenRow("c", 1)}
    assert newest_of(found[1::-1])["b"].is_back


def test_the_file_keeps_who_was_given_up_and_refuses_what_is_none() -> None:
    tables = two_brokers()
    tables.forget("b", 1_000)
    again = OrderTable()
    assert again.load(tables.order.content(), 1) == ""
    assert again.forgotten.listed() == [ForgottenRow("b", 1_000)]
    assert again.listed([SESSION_TOPIC]) == [OrderRow(SESSION_TOPIC, {"a": 4})]
    assert "forgotten" not in OrderTable().content(), "as a file of an earlier build"
    for wrong in ("b", ["b"], [{"broker": "b"}], [{"broker": "b", "forgottenMs": "1", "isBack": False}]):
        assert OrderTable().load({"orderTopics": {}, "forgotten": wrong}, 1).startswith("forgotten: ")


def test_the_oldest_is_dropped_beyond_the_bound() -> None:
    forgotten = ForgottenBrokers(2)
    for row in (ForgottenRow("b", 5), ForgottenRow("a", 3), ForgottenRow("c", 9)):
        assert forgotten.learn(row)
    assert sorted(forgotten.listed()) == [ForgottenRow("b", 5), ForgottenRow("c", 9)]
