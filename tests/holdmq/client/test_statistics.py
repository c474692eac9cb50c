"""What brokers counted, added up."""

from __future__ import annotations

from holdmq.client.statistics import (
    BacklogView,
    CameBack,
    StatisticsView,
    TrafficRates,
    group_backlogs,
    traffic,
)
from holdmq.wire.statistics_headers import BacklogRow, CountsRow, GroupTopicRow


def counts(name: str, messages: int, minute: list[int] | None = None) -> CountsRow:
    """Everywhere as many messages in, ten bytes each."""
    traffic_of = [messages, 10 * messages, 0, 0]
    return CountsRow(
        name, -1, [*traffic_of, 0, 0, 0, 0], [*traffic_of, 0, 0, 0, 0],
        minute or [*traffic_of, 0, 0, 0, 0], traffic_of, traffic_of,
    )  # fmt: skip


def view(covered_ms: list[int], *rows: CountsRow) -> StatisticsView:
    return StatisticsView(covered_ms, counts("", 0), list(rows), [], [], [], [], [], [])


def test_rates_are_those_of_each_brokers_own_windows_together() -> None:
    first = view([1000, 60_000, 3_600_000, 86_400_000], counts("t", 600))
    second = view([2000, 2000, 2000, 2000], counts("t", 600), counts("u", 2))
    t, u = traffic([first, second], lambda one: one.topics)
    assert (t.name, u.name) == ("t", "u")
    assert t.second == TrafficRates(900, 9000, 0, 0, 0, 0)
    assert t.minute == TrafficRates(310, 3100, 0, 0, 0, 0)
    assert round(t.hour.messages_in, 3) == round(600 / 3600 + 300, 3)
    assert u.day == TrafficRates(1, 10, 0, 0, 0, 0)


def test_what_came_back_is_added_up_and_an_older_broker_says_nothing_of_it() -> None:
    newer = [1, 1, 8, 80, 0, 0, 0, 0, 4, 40, 5, 3, 2]
    first = view([1000] * 4)
    first.group_topics = [GroupTopicRow("g", "t", newer, newer, newer, [0, 0, 8, 80, 4, 40], [0] * 6)]
    second = view([1000] * 4)
    second.group_topics = [GroupTopicRow("g", "t", [1] * 8, [1] * 8, [1] * 8, [1] * 4, [1] * 4)]
    (found,) = traffic([first, second], lambda one: one.group_topics)
    assert (found.name, found.topic, found.back) == ("g", "t", CameBack(5, 3, 2))
    assert (found.second.messages_out, found.second.messages_replayed, found.hour.bytes_replayed) == (
        9,
        4,
        40,
    )


def test_latencies_are_means_over_brokers_of_the_last_minute() -> None:
    first = view([1000] * 4, counts("t", 1, [1, 1, 1, 1, 2, 3000, 0, 0]))
    second = view([1000] * 4, counts("t", 1, [1, 1, 1, 1, 1, 3000, 0, 0]))
    (t,) = traffic([first, second], lambda one: one.topics)
    assert (t.put_ms, t.get_ms) == (2.0, None)


def test_a_window_of_no_time_is_no_rate() -> None:
    (t,) = traffic([view([0, 0, 0, 0], counts("t", 0))], lambda one: one.topics)
    assert t.second == TrafficRates(0, 0, 0, 0, 0, 0)


def test_backlogs_are_added_over_topics_and_brokers_and_aged_by_each_brokers_clock() -> None:
    first = BacklogView(
        [BacklogRow("g", "", "t", 3, 1_000, 2), BacklogRow("g", "shared", "u", 4, 0, 1)], 5_000, 0
    )
    second = BacklogView(
        [BacklogRow("g", "shared", "t", 1, 9_000, 1), BacklogRow("h", "", "t", 9, 0, 1)], 10_000, 0
    )
    h, g = group_backlogs([first, second])
    assert (h.group, h.messages, h.age_ms) == ("h", 9, 0)
    assert (g.group, g.mode, g.messages, g.age_ms, g.topics) == ("g", "shared", 8, 4_000, ["t", "u"])
