"""Fleets against a real server, and against servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdmq.mqtt import (
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    PingReq,
    Properties,
    PublishRun,
    encode,
    encode_pubacks,
)
from loadtest.fleet import Fleet, Tally
from loadtest.plan import FleetPlan, PublishPlan


async def run(plan: PublishPlan) -> Tally:
    fleet = Fleet(plan.fleet, plan)
    await fleet.connect()
    await fleet.publish()
    await fleet.leave()
    return fleet.tally


@asynccontextmanager
async def broken_server(
    *,
    connack: int = 0,
    forge: bool = False,
    pings: list[int] | None = None,
    keep_alive_s: int | None = None,
) -> AsyncIterator[int]:
    """A server that refuses with `connack`, or accepts and never answers, or forges acknowledgements.

    Notes in `pings` the connection of every PINGREQ; wants `keep_alive_s`.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes))
        while data := await reader.read(65536):
            for item in decoder.feed(data):
                if isinstance(item, Connect):
                    told = Properties(server_keep_alive=keep_alive_s)
                    writer.write(encode(ConnAck(reason_code=connack, properties=told), decoder.version))
                elif isinstance(item, PingReq) and pings is not None:
                    pings.append(id(writer))
                elif isinstance(item, PublishRun) and forge:
                    writer.write(encode_pubacks([5]))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize("mqtt", ["3.1", "3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_counted_run_sends_exactly_that_many(peer: tuple[str, int], mqtt: str, qos: int) -> None:
    fleet = FleetPlan(*peer, devices=5, ramp_s=0, mqtt=mqtt)
    tally = await run(PublishPlan(fleet, qos=qos, count=333, seconds=60))
    assert tally.connected == 5
    assert tally.sent == 333
    assert tally.acknowledged == (333 if qos else 0)
    assert tally.publish_latency.count == tally.acknowledged
    assert sum(tally.done_by_second.values()) == 333
    assert not tally.failures
    assert tally.unanswered == 0


async def test_every_message_arrives_at_a_subscriber(peer: tuple[str, int]) -> None:
    import aiomqtt

    async with aiomqtt.Client(*peer) as client:
        await client.subscribe("devices/#", qos=1)
        await run(PublishPlan(FleetPlan(*peer, devices=4, ramp_s=0), count=40, payload_bytes=7, seconds=60))
        topics = []
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            assert len(message.payload) == 7
            topics.append(str(message.topic))
            if len(topics) == 40:
                break
    assert set(topics) == {f"devices/{k}/telemetry" for k in range(4)}


async def test_a_rate_is_kept_and_not_exceeded(
    peer: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.fleet.SETTLE_S", 60.0)
    tally = await run(PublishPlan(FleetPlan(*peer, devices=3, ramp_s=0), rate=200, seconds=1))
    assert 0 < tally.sent <= 200
    assert tally.acknowledged == tally.sent


async def test_a_refused_device_is_counted_by_reason() -> None:
    async with broken_server(connack=0x87) as port:
        fleet = Fleet(FleetPlan("127.0.0.1", port, 3, 0, mqtt="5"))
        await fleet.connect()
        assert dict(fleet.tally.failures) == {"CONNACK 0x87": 3}
        assert fleet.tally.connected == 0


async def test_a_server_that_never_acknowledges_ends_with_unanswered_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadtest.fleet.SETTLE_S", 0.1)
    async with broken_server() as port:
        tally = await run(PublishPlan(FleetPlan("127.0.0.1", port, 2, 0), window=3, seconds=1))
        assert tally.sent == 6
        assert tally.unanswered == 6


async def test_messages_that_wait_too_long_for_a_place_are_skipped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadtest.fleet.SETTLE_S", 0.1)
    monkeypatch.setattr("loadtest.device.OWED_MAX", 5)
    async with broken_server() as port:
        plan = PublishPlan(FleetPlan("127.0.0.1", port, 1, 0), window=1, rate=200, seconds=1)
        tally = await run(plan)
        assert tally.sent == 1
        assert tally.skipped > 5


async def test_a_forged_acknowledgement_fails_the_device() -> None:
    async with broken_server(forge=True) as port:
        tally = await run(PublishPlan(FleetPlan("127.0.0.1", port, 1, 0), window=2, seconds=60))
        assert tally.lost == 1
        assert any("not on its way" in reason for reason in tally.failures)


async def test_nobody_there_is_a_reason_too() -> None:
    fleet = Fleet(FleetPlan("127.0.0.1", 1, 2, 0))
    await fleet.connect()
    assert dict(fleet.tally.failures) == {"Connection refused": 2}


async def all_ping(fleet: Fleet, pings: list[int], devices: int) -> None:
    """Keep a fleet alive until a server has heard every device of it."""
    pinging = asyncio.create_task(fleet.keep_alive())
    async with asyncio.timeout(60):
        while len(set(pings)) < devices:
            await fleet.stay(0.05)
    pinging.cancel()
    await fleet.leave()


async def test_idle_devices_ping_within_their_keep_alive() -> None:
    pings: list[int] = []
    async with broken_server(pings=pings) as port:
        fleet = Fleet(FleetPlan("127.0.0.1", port, 3, 0, keep_alive_s=1))
        await fleet.connect()
        await all_ping(fleet, pings, 3)


async def test_who_comes_late_pings_for_the_turns_that_it_missed_and_nobody_twice() -> None:
    pings: list[int] = []
    async with broken_server(pings=pings) as port:
        fleet = Fleet(FleetPlan("127.0.0.1", port, 8, 0, keep_alive_s=6))
        await fleet.connect()
        for first, last, wanted in ((1, 1, 2), (2, 3, 6), (4, 100, 14)):
            fleet.ping_shares(first, last)
            async with asyncio.timeout(60):
                while len(pings) < wanted:
                    await fleet.stay(0.01)
        fleet.ping_shares(101, 100)
        await fleet.stay(0.1)
        assert len(pings) == 14
        assert len(set(pings[:6])) == 6
        assert len(set(pings[6:])) == 8
        await fleet.leave()


async def test_devices_keep_the_keep_alive_that_the_server_wants() -> None:
    pings: list[int] = []
    async with broken_server(pings=pings, keep_alive_s=1) as port:
        fleet = Fleet(FleetPlan("127.0.0.1", port, 3, 0, mqtt="5", keep_alive_s=600))
        await fleet.connect()
        await all_ping(fleet, pings, 3)


async def test_a_device_that_the_server_drops_is_lost(peer: tuple[str, int]) -> None:
    fleet = Fleet(FleetPlan(*peer, devices=1, ramp_s=0))
    await fleet.connect()
    again = Fleet(FleetPlan(*peer, devices=1, ramp_s=0))
    # The same client id: the server closes the older connection [MQTT-3.1.4-2].
    await again.connect()
    async with asyncio.timeout(60):
        while not fleet.tally.lost:
            await fleet.stay(0.05)
    assert fleet.tally.lost == 1
    assert dict(fleet.tally.failures) == {"closed by the server": 1}
    await again.leave()


@pytest.mark.parametrize("mqtt", ["3.1.1", "5"])
async def test_devices_come_back_to_their_sessions_and_subscriptions(
    peer: tuple[str, int], mqtt: str
) -> None:
    plan = FleetPlan(*peer, devices=3, ramp_s=0, mqtt=mqtt, expiry_s=600, subscribe="cmd/{i}")
    fleet = Fleet(plan)
    await fleet.connect()
    assert (fleet.present, fleet.tally.connected, fleet.tally.resumed) == (3, 3, 0)
    fleet.cut()
    assert fleet.present == 0
    await fleet.reconnect(60, 0.1)
    assert (fleet.present, fleet.tally.connected, fleet.tally.resumed) == (3, 6, 3)
    assert not fleet.tally.failures
    assert fleet.last_connected_at > 0
    await fleet.leave()


async def test_a_cut_is_no_farewell_so_the_wills_are_sent(peer: tuple[str, int]) -> None:
    import aiomqtt

    async with aiomqtt.Client(*peer) as client:
        await client.subscribe("wills/+", qos=1)
        fleet = Fleet(FleetPlan(*peer, devices=2, ramp_s=0, will="wills/{i}"))
        await fleet.connect()
        fleet.cut()
        topics = set()
        async for message in client.messages:
            topics.add(str(message.topic))
            if len(topics) == 2:
                break
    assert topics == {"wills/0", "wills/1"}


async def test_who_is_refused_comes_again_until_its_time_is_over() -> None:
    async with broken_server(connack=0x89) as port:
        fleet = Fleet(FleetPlan("127.0.0.1", port, 2, 0, mqtt="5"))
        await fleet.reconnect(2.0, 0.1)
        assert fleet.present == 0
        assert fleet.tally.failures["CONNACK 0x89"] >= 4
