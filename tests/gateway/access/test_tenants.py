"""How a client gets its tenant, by every way of saying who it is, and what is its own then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from access_files import password_file, written
from odd_plugins import Gated, OfTenant
from packet_stream import PacketStream
from scram_client import ScramClient

from gateway.access.checking import check_access
from gateway.access.scram_file import make_verifier
from gateway.access.user_file import write_users
from gateway.session.scram import METHOD
from holdmq.config.access import AccessSection
from holdmq.config.model import Config
from holdmq.errors import ConfigError
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Auth,
    Connect,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    publishes,
)

Start = Callable[..., Awaitable[Any]]


@pytest.fixture
def tenants(tmp_path: Path) -> str:
    return written(tmp_path / "tenants", "ada:acme\nmeter-*:acme\nbea:beta\n")


@pytest.fixture
def users(tmp_path: Path) -> str:
    return password_file(tmp_path / "users", ada="x", bea="x", nora="x")


async def test_a_user_with_a_password_is_his_tenants(start_worker: Start, users: str, tenants: str) -> None:
    running = await start_worker(access={"password_file": users, "tenants_file": tenants})
    sessions = running.worker.clients
    for version in (MQTT_3_1_1, MQTT_5):
        for user in ("ada", "bea", "nora"):
            await running.client("c1", version, username=user, password=b"x")
    assert [sessions.session(name).principal for name in ("$%acme/c1", "$%beta/c1", "c1")] == [
        "ada", "bea", "nora",
    ]  # fmt: skip
    assert sessions.session("$%acme/c1").own_id == "c1"
    assert sessions.session("c1").own_id == "c1"


async def test_a_scram_user_is_his_tenants(start_worker: Start, tmp_path: Path, tenants: str) -> None:
    write_users(tmp_path / "scram", {"ada": str(make_verifier("pencil"))}, "")
    access = {"scram_file": str(tmp_path / "scram"), "tenants_file": tenants}
    running = await start_worker(access=access)
    device = PacketStream(*await asyncio.open_connection("127.0.0.1", running.port))
    running.clients.append(type("Open", (), {"writer": device.writer}))
    client = ScramClient("ada", "pencil")
    first = Properties(authentication_method=METHOD, authentication_data=client.first())
    device.send(Connect(client_id="c1", version=MQTT_5, properties=first))
    challenge = await device.next()
    final = client.final(challenge.properties.authentication_data or b"")
    device.send(Auth(0x18, Properties(authentication_method=METHOD, authentication_data=final)))
    # Behind the last AUTH, before it is known whose it is.
    device.send(Publish("early/1", b"x", 1, packet_id=1, properties=Properties(topic_alias=1)))
    assert (await device.next()).reason_code == 0
    assert (await device.next()).packet_ids == [1]
    device.send(Subscribe(7, [Subscription("early/#", 1)]))
    assert (await device.next()).reason_codes == [1]
    device.send(Publish("", b"y", 0, properties=Properties(topic_alias=1)))
    (message,) = publishes(await device.next())
    assert (message.topic, message.payload) == ("early/1", b"y")
    assert running.worker.clients.session("$%acme/c1").principal == "ada"
    assert "acme%early" in {route.topic for route in running.worker.routes.all()}


async def test_a_plug_in_says_whose_the_user_is_and_counts_before_the_file(
    start_worker: Start, tenants: str
) -> None:
    Gated.reset()
    OfTenant.tenants = {"ada": "gamma", "eve": "gamma", "odd": "a/b", "none": None, "list": ["acme"]}
    access = {"plugins": [{"class_path": "odd_plugins.OfTenant"}], "tenants_file": tenants}
    running = await start_worker(access=access)
    for user, client_id in (("ada", "$%gamma/c"), ("eve", "$%gamma/c2"), ("none", "c"), ("bea", "$%beta/c")):
        await running.client(client_id.rpartition("/")[2], MQTT_5, username=user, password=b"")
        assert running.worker.clients.session(client_id).principal == user
    for user in ("odd", "list"):
        refused = await running.client("c", MQTT_5, username=user, password=b"", refused=True)
        assert refused.connack.reason_code == 0x88, "what it says is no answer"


async def test_plug_ins_that_differ_let_nobody_in(start_worker: Start) -> None:
    OfTenant.tenants = {"ada": "acme"}
    plugins = [
        {"class_path": "odd_plugins.OfTenant"},
        {"class_path": "odd_plugins.OfTenant", "name": "other", "options": {"suffix": "2"}},
    ]
    running = await start_worker(access={"plugins": plugins})
    refused = await running.client("c", MQTT_5, username="ada", password=b"", refused=True)
    assert refused.connack.reason_code == 0x88


async def test_a_remembered_answer_has_the_tenant_too(start_worker: Start) -> None:
    OfTenant.tenants = {"ada": "acme"}
    running = await start_worker(access={"plugins": [{"class_path": "odd_plugins.OfTenant"}]})
    for _ in range(2):
        await running.client("c", MQTT_5, username="ada", password=b"")
        assert running.worker.clients.session("$%acme/c") is not None
    assert running.worker.counters.access_cached_total == 1


async def test_a_plug_in_is_asked_in_the_tenants_own_words(
    start_worker: Start, tenants: str, users: str
) -> None:
    Gated.reset(**{"publish no/1": False, "subscribe no/#": False})
    access = {
        "password_file": users,
        "tenants_file": tenants,
        "plugins": [{"class_path": "odd_plugins.TopicsOnly"}],
    }
    running = await start_worker(access=access)
    client = await running.client("c", MQTT_5, username="ada", password=b"x")
    assert (await client.subscribe("yes/#", "$share/g/no/#", "no/#")).reason_codes == [1, 0x87, 0x87]
    client.send(Publish("yes/1", b"x", 1, packet_id=1), Publish("no/1", b"x", 1, packet_id=2))
    answers = [item for item in [await client.next() for _ in range(3)] if not isinstance(item, Publish)]
    assert getattr(answers[-1], "reason_code", 0) == 0x87
    assert set(Gated.asked) == {"subscribe yes/#", "subscribe no/#", "publish yes/1", "publish no/1"}


async def test_a_tenants_topics_take_no_place_of_others(
    start_worker: Start, users: str, tenants: str
) -> None:
    running = await start_worker(mqtt_topics_max=1, access={"password_file": users, "tenants_file": tenants})
    for user in ("ada", "bea", "nora"):
        client = await running.client("c", MQTT_5, username=user, password=b"x")
        for number, topic in enumerate(("one/x", "two/x"), 1):
            client.send(Publish(topic, b"x", 1, packet_id=number))
            assert await client.acked(1) == [number]
    topics = {route.topic for route in running.worker.routes.all()}
    assert topics >= {"acme%one", "beta%one", "one", "acme%mqtt-other", "beta%mqtt-other", "mqtt-other"}
    assert not topics.intersection({"acme%two", "beta%two", "two"})


async def test_a_user_who_is_taken_away_or_given_to_another_is_disconnected(
    start_worker: Start, users: str, tenants: str, tmp_path: Path
) -> None:
    OfTenant.tenants = {"eve": "gamma"}
    running = await start_worker(
        access={
            "password_file": users,
            "tenants_file": tenants,
            "plugins": [{"class_path": "odd_plugins.OfTenant"}],
            "reload_interval_s": 0.05,
        }
    )
    sessions = running.worker.clients
    for user in ("ada", "bea", "nora", "eve"):
        await running.client("c", MQTT_5, username=user, password=b"x")
    written(tmp_path / "tenants", "bea:acme\nnora:acme\n")
    await running.until(lambda: running.worker.counters.tenants_changed_total == 3)
    assert sessions.client_ids() == ["$%gamma/c"], "what a plug-in said is not the file's"
    await running.client("c", MQTT_5, username="bea", password=b"x")
    assert sessions.session("$%acme/c").principal == "bea"


async def test_what_is_written_with_connect_is_the_tenants(
    start_worker: Start, users: str, tenants: str
) -> None:
    running = await start_worker(access={"password_file": users, "tenants_file": tenants})
    behind = (
        Publish("a/1", b"1", 1, packet_id=1),
        Subscribe(7, [Subscription("a/#", 1)]),
        Publish("b/1", b"2", 1, packet_id=2),
    )
    client = await running.client("c", MQTT_5, username="ada", password=b"x", behind=behind)
    while not (isinstance(item := await client.next(), PubAck) or getattr(item, "packet_ids", None) == [2]):
        pass
    topics = {route.topic for route in running.worker.routes.all()}
    assert topics >= {"acme%a", "acme%b"}
    assert not topics.intersection({"a", "b"})
    assert list(running.worker.clients.session("$%acme/c").outbound.subscriptions) == ["$%acme/a/#"]


async def test_a_claim_of_a_token_is_the_tenant_when_a_plug_in_of_ones_own_says_so(
    start_worker: Start,
) -> None:
    key = "a key of thirty-two bytes, at least, for HS256"
    plugin = {
        "class_path": "odd_plugins.TokenOfTenant",
        "options": {"secret_key": key, "user_claim": "user"},
    }
    running = await start_worker(access={"plugins": [plugin]})

    def token(secret: str, **claims: Any) -> bytes:
        return jwt.encode(
            {"user": "ada", "exp": time.time() + 60, **claims}, secret, algorithm="HS256"
        ).encode()

    await running.client("c1", MQTT_5, username="ada", password=token(key, tenant="acme"))
    assert running.worker.clients.session("$%acme/c1") is not None
    await running.client("c2", MQTT_5, username="ada", password=token(key))
    assert running.worker.clients.session("c2") is not None
    forged = token("another key of thirty-two bytes, or more", tenant="beta")
    refused = await running.client("c3", MQTT_5, username="ada", password=forged, refused=True)
    assert refused.connack.reason_code == 0x86


def test_a_file_that_is_of_no_use_is_told_at_once(tmp_path: Path) -> None:
    section = AccessSection(tenants_file=written(tmp_path / "tenants", "ada\n"))
    with pytest.raises(ConfigError, match=r"tenants \(access.tenants_file\), line 1: not of the form"):
        check_access(Config(access=section))
