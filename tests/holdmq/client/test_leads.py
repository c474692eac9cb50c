from __future__ import annotations

from holdmq.client.leads import Leads
from holdmq.wire.headers import BrokerRow


def row(broker: str, address: str, epoch: int = 0, broker_id: int = 0) -> BrokerRow:
    return BrokerRow("c", broker, broker_id, address, epoch)


def test_a_higher_epoch_is_followed_and_a_lower_one_is_not_believed() -> None:
    leads = Leads()
    assert leads.hear([row("b", "one", 3)]) == ({"b": row("b", "one", 3)}, frozenset())
    assert leads.hear([row("b", "two", 4)]) == ({"b": row("b", "two", 4)}, frozenset())
    assert leads.hear([row("b", "one", 3)]) == ({"b": row("b", "two", 4)}, {"b"})
    assert leads.hear([row("b", "one")]) == ({"b": row("b", "two", 4)}, {"b"}), "of an old registry"
    assert leads.epoch("b") == 4


def test_without_copies_a_broker_is_where_it_was_said_last() -> None:
    leads = Leads()
    leads.hear([row("b", "one")])
    assert leads.hear([row("b", "two")]) == ({"b": row("b", "two")}, frozenset())
    assert leads.newer([row("b", "three")]) == {}
    assert leads.epoch("b") == leads.epoch("none") == 0


def test_of_several_ids_the_highest_epoch_counts_and_then_the_lowest_id() -> None:
    leads = Leads()
    slaves = [row("b", "slave", 0, 1), row("b", "master", 0, 0)]
    assert leads.hear(slaves).rows == {"b": row("b", "master")}
    copies = [row("b", "old", 2, 0), row("b", "new", 3, 1)]
    assert leads.hear(copies).rows == {"b": row("b", "new", 3, 1)}


def test_another_registry_is_asked_for_news_alone() -> None:
    leads = Leads()
    leads.hear([row("b", "one", 3), row("c", "c", 1), row("d", "d", 5)])
    elsewhere = [row("b", "two", 4), row("c", "x", 1), row("d", "x", 4), row("e", "new", 9)]
    assert leads.newer(elsewhere) == {"b": row("b", "two", 4)}
    assert leads.hear([row("b", "one", 3)]).rows == {"b": row("b", "two", 4)}


def test_who_is_doubted_or_forgotten_may_lead_in_any_epoch() -> None:
    leads = Leads()
    leads.hear([row("b", "one", 7), row("c", "one", 7)])
    again = [row("b", "two", 1), row("c", "two", 1)]
    assert leads.hear(again, ["b"]) == ({"b": row("b", "two", 1), "c": row("c", "one", 7)}, {"c"})
    leads.forget("c")
    assert leads.hear(again) == ({"b": row("b", "two", 1), "c": row("c", "two", 1)}, frozenset())
