from __future__ import annotations

import pytest

from gateway.ground.counters import HELP, Counters
from gateway.ground.system_topics import Totals, is_system_filter, system_messages


@pytest.mark.parametrize(
    ("topic_filter", "is_ours"),
    [
        ("$SYS", True),
        ("$SYS/#", True),
        ("$SYS/broker/+", True),
        ("$SYSTEM/x", False),
        ("#", False),
        ("+/x", False),
    ],
)
def test_what_begins_with_sys_is_the_gateway_s_own(topic_filter: str, is_ours: bool) -> None:
    assert is_system_filter(topic_filter) is is_ours


def test_numbers_have_the_names_that_mosquitto_has_for_them_and_their_own() -> None:
    counters = Counters()
    counters.sessions = 3
    counters.messages_in_qos0_total, counters.messages_in_qos1_total, counters.messages_in_qos2_total = (
        1,
        20,
        300,
    )
    counters.bytes_out_total = 77
    counters.messages_dropped_slow_total = 2
    said = system_messages(Totals(counters.snapshot(), 4, 61), "1.2.3")
    assert said["$SYS/broker/version"] == "HoldMQ 1.2.3"
    assert said["$SYS/broker/uptime"] == "61 seconds"
    assert said["$SYS/broker/clients/connected"] == "3"
    assert said["$SYS/broker/messages/received"] == said["$SYS/broker/publish/messages/received"] == "321"
    assert said["$SYS/broker/publish/messages/dropped"] == "2"
    assert said["$SYS/broker/bytes/sent"] == "77"
    assert said["$SYS/gateway/workers"] == "4"
    assert said["$SYS/gateway/sessions"] == "3"
    assert {f"$SYS/gateway/{name}" for name in HELP} <= said.keys()
