"""The ACL file at publish, subscribe, wills, and over its changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import password_file, written

from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    PingReq,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)

Start = Callable[..., Awaitable[Any]]

NO_SUBSCRIBE = "topic readwrite #\ntopic denyread test/nosubscribe\n"
"""What the public suite of paho asks for: one topic that nobody may subscribe to."""


@pytest.fixture
def acl(tmp_path: Path) -> Callable[[str], str]:
    return lambda text: written(tmp_path / "acl", text)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_one_topic_is_refused_and_everything_else_is_not(
    start_worker: Start, acl: Callable[[str], str], version: int
) -> None:
    running = await start_worker(access={"acl_file": acl(NO_SUBSCRIBE)})
    client = await running.client("c1", version)
    answer = await client.subscribe("test/nosubscribe", "TopicA/+", "#", "+/+")
    assert answer.reason_codes == [0x80, 1, 1, 1]
    client.send(Publish("test/nosubscribe", b"1", 1, packet_id=1))
    assert await client.acked(1) == [1]
    client.send(Publish("TopicA/B", b"2", 1, packet_id=2), PingReq())
    # The filters of #, +/+ and TopicA/+ match the second one only: the first is left out of all.
    assert [
        item.payload for item in [await client.next() for _ in range(3)] if isinstance(item, Publish)
    ] == [b"2"]
    assert running.worker.counters.refused["subscribe_not_authorized"] == 1


async def test_a_refused_publish_is_told_or_dropped_and_counted(
    start_worker: Start, acl: Callable[[str], str]
) -> None:
    running = await start_worker(access={"acl_file": acl("topic read #\ntopic write a/#\n")})
    five = await running.client("c5", MQTT_5)
    five.send(
        Publish("b", b"0", 0), Publish("b", b"1", 1, packet_id=1), Publish("b", b"2", 2, packet_id=2),
        Publish("a/x", b"3", 1, packet_id=3),
    )  # fmt: skip
    answers = [await five.next() for _ in range(3)]
    assert [(type(a), a.packet_id, a.reason_code) for a in answers[:2]] == [
        (PubAck, 1, 0x87),
        (PubRec, 2, 0x87),
    ]
    assert answers[2].packet_ids == [3]
    three = await running.client("c3", MQTT_3_1_1)
    three.send(Publish("b", b"4", 1, packet_id=4), Publish("a/y", b"5", 1, packet_id=5))
    assert await three.acked(2) == [4, 5]
    assert running.broker.bodies == [b"3", b"5"]
    assert running.worker.counters.refused["publish_not_authorized"] == 4


async def test_a_delayed_publish_needs_permission_for_its_topic(
    start_worker: Start, acl: Callable[[str], str]
) -> None:
    running = await start_worker(access={"acl_file": acl("topic write a/#\n")})
    client = await running.client("c1", MQTT_5)
    client.send(Publish("$delayed/60/b", b"1", 1, packet_id=1), Publish("$SYS/a", b"2", 1, packet_id=2))
    assert [(await client.next()).reason_code for _ in range(2)] == [0x87, 0x90]
    client.send(Publish("$delayed/60/a/x", b"3", 1, packet_id=3))
    assert await client.acked(1) == [3]


async def test_a_topic_that_was_answered_before_is_not_decided_again(
    start_worker: Start, acl: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(access={"acl_file": acl("topic write a/#\n")})
    client = await running.client("c1", MQTT_5)
    decided: list[str] = []
    really = type(running.worker.access).publish_verdict

    def deciding(access: Any, permit: Any, topic: str) -> int:
        decided.append(topic)
        return really(access, permit, topic)

    monkeypatch.setattr(type(running.worker.access), "publish_verdict", deciding)
    topics = "a/1", "b", "a/2"
    for n in range(1, 6):
        client.send(*[Publish(topic, b"x", 1, packet_id=n * 10 + k) for k, topic in enumerate(topics)])
        for _ in topics:
            await client.next()
    assert decided == list(topics)


async def test_a_will_is_decided_when_its_client_comes(
    start_worker: Start, acl: Callable[[str], str]
) -> None:
    running = await start_worker(access={"acl_file": acl("topic write a/#\n")})
    await running.client("c1", MQTT_5, will=Will("a/gone", b"x"))
    refused = await running.client("c2", MQTT_5, will=Will("b/gone", b"x"), refused=True)
    assert refused.connack.reason_code == 0x87
    refused = await running.client("c3", MQTT_3_1_1, will=Will("b/gone", b"x"), refused=True)
    assert refused.connack.reason_code == 0x87  # return code 5


async def test_users_have_rules_of_their_own_and_patterns_have_names_in_them(
    start_worker: Start, acl: Callable[[str], str], tmp_path: Path
) -> None:
    users = password_file(tmp_path / "passwd", ada="x", eve="y")
    text = "user ada\ntopic read all/#\npattern readwrite own/%u/%c/#\n"
    running = await start_worker(access={"acl_file": acl(text), "password_file": users})
    ada = await running.client("c1", MQTT_5, username="ada", password=b"x")
    assert (await ada.subscribe("all/#", "own/ada/c1/#", "own/eve/c1/#")).reason_codes == [1, 1, 0x87]
    eve = await running.client("c2", MQTT_5, username="eve", password=b"y")
    assert (await eve.subscribe("all/#", "own/eve/c2/+")).reason_codes == [0x87, 1]


async def test_the_gateways_own_topics_need_a_rule_or_a_key(
    start_worker: Start, acl: Callable[[str], str]
) -> None:
    for access, code in (
        ({}, 0x87),
        ({"acl_file": acl("topic readwrite #\n")}, 0x87),
        ({"sys_topics": True}, 1),
    ):
        running = await start_worker(access=access)
        client = await running.client("c1", MQTT_5)
        assert (await client.subscribe("$SYS/#", "#")).reason_codes == [code, 1]
    running = await start_worker(access={"acl_file": acl("topic read $SYS/#\n")})
    client = await running.client("c1", MQTT_5)
    assert (await client.subscribe("$SYS/#", "#")).reason_codes == [1, 0x87]


async def test_a_permission_that_is_taken_away_ends_publishes_and_subscriptions(
    start_worker: Start, acl: Callable[[str], str]
) -> None:
    path = acl("topic readwrite a/#\ntopic readwrite b/#\n")
    running = await start_worker(access={"acl_file": path, "reload_interval_s": 0.05})
    client = await running.client("c1", MQTT_5)
    assert (await client.subscribe("a/#", "b/#")).reason_codes == [1, 1]
    client.send(Publish("a/x", b"1", 1, packet_id=1))
    assert {type(await client.next()) for _ in range(2)} >= {Publish}
    acl("topic readwrite b/#\ntopic denyread b/secret\n# another size\n")
    await running.until(lambda: running.worker.counters.filters_revoked_total)
    client.send(Publish("a/x", b"2", 1, packet_id=2))
    answer = await client.next()
    assert (type(answer), answer.reason_code) == (PubAck, 0x87)
    client.send(Publish("b/secret", b"3", 1, packet_id=3), Publish("b/x", b"4", 1, packet_id=4))
    got = [await client.next() for _ in range(2)]
    assert [item.payload for item in got if isinstance(item, Publish)] == [b"4"]
    assert list(running.worker.clients.session("c1").outbound.subscriptions) == ["b/#"]


async def test_a_broken_acl_changes_nothing(start_worker: Start, acl: Callable[[str], str]) -> None:
    path = acl("topic readwrite a/#\n")
    running = await start_worker(access={"acl_file": path, "reload_interval_s": 0.05})
    acl("topik a/#\n")
    await running.until(lambda: running.worker.counters.access_reloads_failed_total)
    client = await running.client("c1", MQTT_5)
    assert (await client.subscribe("a/#")).reason_codes == [1]


async def test_a_share_is_allowed_whole_or_not_at_all(start_worker: Start, acl: Callable[[str], str]) -> None:
    running = await start_worker(access={"acl_file": acl(NO_SUBSCRIBE)})
    await running.client("c1", MQTT_5)
    session, access = running.worker.clients.session("c1"), running.worker.access
    assert access.filter_verdict(session, "test/#") == ("test/nosubscribe",)
    assert access.filter_verdict(session, "$share/g/test/#") is None
    assert access.filter_verdict(session, "$share/g/test/nosubscribe") is None
    assert access.filter_verdict(session, "$share/g/other/#") == ()


async def test_a_client_of_version_3_is_told_of_each_filter_in_one_suback(
    start_worker: Start, acl: Callable[[str], str]
) -> None:
    running = await start_worker(access={"acl_file": acl("topic read a\n")})
    client = await running.client("c1", MQTT_3_1_1)
    client.send(Subscribe(7, [Subscription("a", 2), Subscription("b", 0), Subscription("a", 0)]))
    answer = await client.next()
    assert isinstance(answer, SubAck)
    assert (answer.packet_id, answer.reason_codes) == (7, [2, 0x80, 0])
