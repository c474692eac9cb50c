"""Plug-ins that are slow, hang, block or fail: what waits, what is refused, and that nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from access_files import QUICK, password_file
from odd_plugins import Blocking, Gated, TopicsOnly, Unmakeable

from gateway.access.core.answers import Answers
from gateway.access.user_file import write_users
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
    encode,
)

Start = Callable[..., Awaitable[Any]]


def asking(name: str, **settings: Any) -> dict[str, Any]:
    return {"plugins": [{"class_path": f"odd_plugins.{name}"}], "ask_timeout_s": 60, **settings}


@pytest.fixture(autouse=True)
def _as_at_first() -> Iterator[None]:
    Gated.reset()
    Blocking.let_go.clear()
    Unmakeable.is_broken = True
    yield
    Gated.reset()
    Blocking.let_go.set()


async def ping(client: Any) -> None:
    client.send(PingReq())
    assert isinstance(await client.next(), PingResp)


async def test_what_a_client_sends_while_it_is_asked_about_waits_in_order(start_worker: Start) -> None:
    running = await start_worker(access=asking("TopicsOnly", ask_threads=1), allow_anonymous=True)
    client = await running.client("c1", MQTT_5)
    Gated.reset(is_open=False, **{"publish b": False, "subscribe d": False})
    client.send(
        Publish("a", b"1", 1, packet_id=1),
        Publish("b", b"2", 1, packet_id=2),
        Subscribe(3, [Subscription("c", 1), Subscription("d", 1)]),
        Publish("a", b"4", 1, packet_id=4),
        PingReq(),
    )
    await running.until(lambda: Gated.asked == ["publish a"])
    assert running.broker.bodies == []
    Gated.gate.set()
    got = [await client.next() for _ in range(5)]
    # SUBACK waits for brokers, PINGRESP for nothing: neither is part of the order (4.6).
    (suback,) = [item for item in got if isinstance(item, SubAck)]
    assert suback.reason_codes == [1, 0x87]
    in_order = [item for item in got if not isinstance(item, SubAck | PingResp)]
    assert [type(item).__name__ for item in in_order] == ["AckRun", "PubAck", "AckRun"]
    assert in_order[1].reason_code == 0x87
    assert running.broker.bodies == [b"1", b"4"]
    assert Gated.asked == ["publish a", "publish b", "subscribe c", "subscribe d"]


async def test_others_go_on_while_one_is_asked_about(start_worker: Start) -> None:
    running = await start_worker(access=asking("Gated"), allow_anonymous=True)
    other = await running.client("other", MQTT_5, will=None)
    Gated.reset(is_open=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    running.clients.append(type("Open", (), {"writer": writer}))
    writer.write(encode(Connect(client_id="slow", username="slow", version=MQTT_3_1_1), MQTT_3_1_1))
    await running.until(lambda: "slow" in Gated.asked)
    await ping(other)
    assert running.worker.clients.session("slow") is None
    Gated.gate.set()
    assert await asyncio.wait_for(reader.readexactly(4), 40) == b"\x20\x02\x00\x00"


async def test_a_client_that_leaves_while_it_is_asked_about_is_forgotten(start_worker: Start) -> None:
    running = await start_worker(access=asking("Gated"))
    Gated.reset(is_open=False)
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(encode(Connect(client_id="gone", username="gone", version=MQTT_3_1_1), MQTT_3_1_1))
    await running.until(lambda: Gated.asked)
    writer.close()
    Gated.gate.set()
    await running.until(lambda: not running.worker.reception.connections)
    await running.client("next", MQTT_5, username="next")
    assert running.worker.clients.session("gone") is None


async def test_answers_are_remembered_for_their_time_only(start_worker: Start) -> None:
    running = await start_worker(
        access=asking("Gated", cache_age_s=5, cache_refused_age_s=0), allow_anonymous=True
    )
    for _ in range(2):
        await running.client("c1", MQTT_5, username="ada")
    assert Gated.asked == ["ada"]
    Gated.answers["eve"] = False
    for _ in range(2):
        await running.client("c2", MQTT_5, username="eve", refused=True)
    assert Gated.asked == ["ada", "eve", "eve"]
    Gated.answers["ada"] = False
    client_port = running.port

    async def refused() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", client_port)
        writer.write(encode(Connect(client_id="c1", username="ada", version=MQTT_3_1_1), MQTT_3_1_1))
        answer = await reader.readexactly(4)
        writer.close()
        await writer.wait_closed()
        return answer[3] == 4

    async with asyncio.timeout(40):
        while not await refused():
            await asyncio.sleep(0.05)


async def test_an_answer_that_counts_once_is_enough_for_what_waited_for_it(start_worker: Start) -> None:
    running = await start_worker(
        access=asking("TopicsOnly", cache_age_s=0, cache_refused_age_s=0), allow_anonymous=True
    )
    Gated.answers["publish b"] = False
    client = await running.client("c1", MQTT_5)
    client.send(*[Publish(topic, b"x", 1, packet_id=n) for n, topic in enumerate("aba", 1)])
    assert await client.acked(1) == [1]
    assert (await client.next()).reason_code == 0x87
    assert await client.acked(1) == [3]
    asked = len(Gated.asked)
    client.send(Publish("a", b"x", 1, packet_id=4))
    assert await client.acked(1) == [4]
    assert Gated.asked[asked:] == ["publish a"]
    assert (await client.subscribe("a", "b")).reason_codes == [1, 1]


async def test_a_refused_publish_is_asked_about_again_as_soon_as_refusals_are(start_worker: Start) -> None:
    running = await start_worker(access=asking("TopicsOnly", cache_refused_age_s=0), allow_anonymous=True)
    Gated.answers["publish a"] = False
    client = await running.client("c1", MQTT_5)
    client.send(Publish("a", b"1", 1, packet_id=1))
    assert (await client.next()).reason_code == 0x87
    Gated.answers["publish a"] = True
    client.send(Publish("a", b"2", 1, packet_id=2))
    assert await client.acked(1) == [2]


async def test_a_permission_that_has_aged_is_asked_for_again(start_worker: Start) -> None:
    running = await start_worker(access=asking("TopicsOnly", cache_age_s=0.2), allow_anonymous=True)
    client = await running.client("c1", MQTT_5)
    assert (await client.subscribe("a", "b")).reason_codes == [1, 1]
    client.send(Publish("x", b"1", 1, packet_id=1))
    assert await client.acked(1) == [1]
    Gated.answers.update({"subscribe a": False, "publish x": False})
    await running.until(lambda: running.worker.counters.filters_revoked_total)
    assert list(running.worker.clients.session("c1").outbound.subscriptions) == ["b"]
    client.send(Publish("x", b"2", 1, packet_id=2))
    answer = await client.next()
    assert isinstance(answer, PubAck)
    assert answer.reason_code == 0x87


async def test_while_nobody_can_say_a_subscription_in_force_stays(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(access=asking("TopicsOnly", cache_age_s=0.2), allow_anonymous=True)
    client = await running.client("c1", MQTT_5)
    assert (await client.subscribe("a")).reason_codes == [1]

    async def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(Gated, "topic_filtering", fails)
    await running.until(lambda: running.worker.counters.access_failures_total)
    await ping(client)
    assert list(running.worker.clients.session("c1").outbound.subscriptions) == ["a"]


async def test_a_filter_whose_answer_ages_while_others_are_asked_about_is_asked_about_with_them(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(access=asking("TopicsOnly"), allow_anonymous=True)
    client = await running.client("c1", MQTT_5)
    assert (await client.subscribe("a")).reason_codes == [1]
    Gated.reset(is_open=False)

    async def fails(plugin: Any, **question: Any) -> None:
        await Gated.topic_filtering(plugin, **question)
        raise ConnectionError("gone")

    monkeypatch.setattr(TopicsOnly, "topic_filtering", fails)
    client.send(Subscribe(2, [Subscription("a", 1), Subscription("b", 1)]))
    await running.until(lambda: Gated.asked == ["subscribe b"])
    running.worker.access._answers = Answers(100)  # as if all others' answers had come since
    Gated.gate.set()
    assert (await client.next()).reason_codes == [0x87, 0x87]
    assert Gated.asked == ["subscribe b", "subscribe a"]


async def test_a_topic_that_nobody_could_decide_is_asked_about_again(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(access=asking("TopicsOnly"), allow_anonymous=True)
    client = await running.client("c1", MQTT_5)

    async def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(Gated, "topic_filtering", fails)
        client.send(Publish("a", b"1", 1, packet_id=1), Subscribe(2, [Subscription("b", 1)]))
        refused = [await client.next() for _ in range(2)]
        assert refused[0].reason_code == 0x87
        assert refused[1].reason_codes == [0x87]
    client.send(Publish("a", b"2", 1, packet_id=3))
    assert (await client.next()).packet_ids == [3]  # a run of acknowledgements: without a refusal
    assert (await client.subscribe("b")).reason_codes == [1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Hanging", "Hanging: no answer within 1.5 s"),
        ("Raising", "Raising: RuntimeError: the data base is on fire"),
        ("Unmakeable", "Unmakeable: ConnectionError: no server at 192.0.2.1"),
        ("Misfit", "Misfit: TypeError: Misfit.authenticate() got an unexpected keyword argument 'session'"),
        ("Cancelling", "Cancelling: CancelledError"),
        ("Sending", "Sending: UsageError: a plug-in of HoldMQ's gateway decides on access and cannot send"),
        ("Starting", "Starting: UsageError: a plug-in of HoldMQ's gateway decides on access and cannot send"),
    ],
)
async def test_a_plugin_without_an_answer_refuses_and_is_named(
    start_worker: Start, name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start_worker(access=asking(name, ask_timeout_s=1.5 if name == "Hanging" else 60))
    answer = await running.client("c1", MQTT_5, username="ada", refused=True)
    assert answer.connack.reason_code == 0x88
    old = await running.client("c1", MQTT_3_1_1, username="ada", refused=True)
    assert old.connack.reason_code == 0x88  # return code 3
    assert running.worker.counters.access_failures_total == 2
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Misfit", "Cancelling"])
async def test_a_plugin_that_fails_keeps_no_place_at_its_thread(
    start_worker: Start, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.access.askers.ASKED_AT_A_TIME", 2)
    users = password_file(tmp_path / "passwd", ada="secret")
    running = await start_worker(access=asking(name, ask_threads=1, password_file=users))
    for n in range(3):
        refused = await running.client("c1", MQTT_5, username=f"u{n}", refused=True)
        assert refused.connack.reason_code == 0x88
    await running.client("c2", MQTT_5, username="ada", password=b"secret")


async def test_a_password_that_is_no_text_is_refused_where_plugins_decide(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.access.askers.ASKED_AT_A_TIME", 1)
    users = tmp_path / "passwd"
    write_users(users, {name: QUICK.hash(word) for name, word in (("ada", b"\xff"), ("eve", b"x"))}, "")
    running = await start_worker(access=asking("TopicsOnly", ask_threads=1, password_file=str(users)))
    ada = await running.client("c1", MQTT_5, username="ada", password=b"\xff")
    ada.send(Publish("a", b"1", 1, packet_id=1))
    assert (await ada.next()).reason_code == 0x87
    eve = await running.client("c2", MQTT_5, username="eve", password=b"x")
    eve.send(Publish("a", b"1", 1, packet_id=1))
    assert await eve.acked(1) == [1]
    assert running.worker.counters.access_failures_total == 0


async def test_a_plugin_that_can_be_made_later_is(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access.askers.START_AGAIN_S", 0.0)
    running = await start_worker(access=asking("Unmakeable", ask_threads=1))
    await running.client("c1", MQTT_5, username="ada", refused=True)
    Unmakeable.is_broken = False
    await running.client("c1", MQTT_5, username="ada")


async def test_a_plugin_that_blocks_costs_its_thread_and_nothing_else(
    start_worker: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start_worker(access=asking("Blocking", ask_timeout_s=3, ask_threads=1))
    worker = running.worker
    blocked = asyncio.ensure_future(running.client("c1", MQTT_5, username="block", refused=True))
    await running.until(lambda: worker.counters.access_asks_waiting)
    refused = await blocked
    assert refused.connack.reason_code == 0x88
    assert worker.counters.access_threads_lost == 1
    await running.client("c2", MQTT_5, username="ada")
    assert "a plug-in blocks its thread, which is given up" in capsys.readouterr().out
    Blocking.let_go.set()
    await running.until(lambda: worker.counters.access_threads_lost == 0)


async def test_more_questions_than_may_wait_are_refused_at_once(start_worker: Start) -> None:
    running = await start_worker(access=asking("Gated", asks_max=16))
    Gated.reset(is_open=False)
    waiting = [asyncio.ensure_future(running.client(f"c{n}", MQTT_5, username=f"u{n}")) for n in range(16)]
    await running.until(lambda: running.worker.counters.access_asks_total == 16)
    refused = await running.client("more", MQTT_5, username="more", refused=True)
    assert refused.connack.reason_code == 0x88
    Gated.gate.set()
    for client in waiting:
        assert not (await client).connack.reason_code


async def test_answers_that_do_not_fit_are_forgotten_oldest_first(start_worker: Start) -> None:
    running = await start_worker(access=asking("TopicsOnly", cache_entries_max=100), allow_anonymous=True)
    client = await running.client("c1", MQTT_5)
    for n in range(120):
        client.send(Subscribe(n + 1, [Subscription(f"f/{n}", 0)]))
    for _ in range(120):
        assert isinstance(await client.next(), SubAck)
    await running.until(lambda: running.worker.counters.access_answers == 100)


async def test_a_will_is_asked_about_when_its_client_comes(start_worker: Start) -> None:
    running = await start_worker(access=asking("TopicsOnly"), allow_anonymous=True)
    Gated.answers["publish gone/2"] = False
    await running.client("c1", MQTT_5, will=Will("gone/1", b"x"))
    refused = await running.client("c2", MQTT_5, will=Will("gone/2", b"x"), refused=True)
    assert refused.connack.reason_code == 0x87
    assert Gated.asked == ["publish gone/1", "publish gone/2"]
