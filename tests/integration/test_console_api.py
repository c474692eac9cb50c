"""The console's API over real processes: what an operator does, and every endpoint under made-up requests."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from mqtt_client import MqttClient
from processes import Stack, free_port, running_stack, wait_until
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from console.identity.accounts import AccountFile
from holdmq.client import Consumer, DeadLetters, Message, Producer, SyncAdmin, SyncProducer
from holdmq.client.groups import GroupAdmin
from holdmq.errors import RemoteError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import BrokerRegisterRequest, TopicRow

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def console_port() -> int:
    """The port at which the console answers."""
    return free_port()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, console_port: int) -> Iterator[Stack]:
    """A registry, a broker and a gateway, and a console with accounts that has begun to start."""
    settings = {"console.port": console_port, "console.admin_port": free_port(), "console.auth": "accounts"}
    with running_stack(tmp_path_factory.mktemp("console"), **settings) as stack:
        AccountFile(stack.directory / "console").add("admin", "admin", PASSWORD)
        stack.start("console", wait=False)
        yield stack


@pytest.fixture(scope="module")
def console(stack: Stack, console_port: int) -> Iterator[httpx.Client]:
    """An admin's client of the console."""
    with httpx.Client(base_url=f"http://127.0.0.1:{console_port}/api/v1/", timeout=60) as client:
        signed = None
        deadline = time.monotonic() + 60
        while signed is None and time.monotonic() < deadline:
            try:
                signed = client.post("session", json={"name": "admin", "password": PASSWORD})
            except httpx.TransportError:
                time.sleep(0.1)
        assert signed is not None
        assert signed.status_code == 200, signed.text
        client.headers["X-HoldMQ-CSRF"] = signed.json()["csrf"]
        yield client


def done(response: httpx.Response) -> Any:
    assert response.is_success, response.text
    return response.json() if response.content else None


def test_a_topic_lives_from_its_first_message_to_its_end(console: httpx.Client) -> None:
    made = done(console.post("topics", json={"topic": "orders", "queues": 2}))
    assert (made["write_queues"], made["perm"], made["removal"]) == (2, "rw", None)
    assert [q["end_offset"] for q in made["queues"]] == [0, 0]
    sent = [
        done(console.post("topics/orders/messages", json={"body": f"n{i}", "keys": ["k"], "tag": f"t/{i}"}))
        for i in range(5)
    ]
    assert len({one["message_id"] for one in sent}) == 5
    assert done(console.get("topics/orders/readers")) == {"readers": [], "total": 0}
    pages: list[dict[str, Any]] = []
    after = ""
    while True:
        page = done(console.get("messages", params={"topic": "orders", "limit": 2, "after": after}))
        pages += page["messages"]
        after = page["next"]
        if after is None:
            break
    assert [base64.b64decode(m["body_base64"]) for m in pages] == [b"n4", b"n3", b"n2", b"n1", b"n0"]
    looking = done(console.get("topics/orders/readers"))
    assert [(one["kind"], one["role"]) for one in looking["readers"]] == [("look-up", "console")]
    tagged = done(console.get("messages", params={"topic": "orders", "tag": "t/3"}))
    assert [m["message_id"] for m in tagged["messages"]] == [sent[3]["message_id"]]
    one = done(console.get(f"messages/{sent[0]['message_id']}"))
    assert (one["topic"], one["keys"], one["size"], one["is_cut"]) == ("orders", ["k"], 2, False)
    deadline = time.monotonic() + 30
    keyed: list[Any] = []
    while len(keyed) < 5 and time.monotonic() < deadline:
        # A message of the last half second may not be found yet.
        keyed = done(console.get("messages", params={"topic": "orders", "key": "k"}))["messages"]
    assert len(keyed) == 5
    assert done(console.put("topics/orders/queues", json={"queues": 4})) == {
        "done": True,
        "step": "grow",
        "waits_for": None,
    }
    shrinking = done(console.put("topics/orders/queues", json={"queues": 3}))
    assert not shrinking["done"]
    assert shrinking["waits_for"]
    assert done(console.get("topics/orders"))["removal"]["to"] == 3
    assert done(console.patch("topics/orders", json={"perm": "r", "retention_ms": 60_000}))["perm"] == "r"
    assert done(console.post("topics/orders/pause"))["is_paused"]
    assert not done(console.post("topics/orders/resume"))["is_paused"]
    listed = done(console.get("topics", params={"q": "ORD", "sort": "-messages_in", "limit": 1}))
    assert ([t["topic"] for t in listed["topics"]], listed["total"], listed["next"]) == (["orders"], 1, None)
    assert done(console.delete("topics/orders", params={"force": "1"}))["done"]
    assert console.get("topics/orders").status_code == 404


def test_a_group_is_made_moved_and_deleted(console: httpx.Client) -> None:
    done(console.post("topics", json={"topic": "bills", "queues": 1}))
    for i in range(3):
        done(console.post("topics/bills/messages", json={"body": str(i)}))
    made = done(console.post("groups", json={"group": "billing", "retry_max_times": 3}))
    assert (made["settings"]["retry_max_times"], made["members"]) == (3, 0)
    dry = done(console.post("groups/billing/reset", json={"topic": "bills", "to": "earliest"}))
    assert (dry["dry_run"], [m["after"] for m in dry["moved"]]) == (True, [0])
    assert done(console.get("groups/billing"))["lag"] == 0
    done(console.post("groups/billing/reset", json={"topic": "bills", "to": "earliest", "dry_run": False}))
    assert done(console.get("groups/billing"))["lag"] == 3
    assert done(console.post("groups/billing/pause"))["is_paused"]
    assert not done(console.post("groups/billing/resume"))["is_paused"]
    assert "billing" in [g["group"] for g in done(console.get("groups", params={"sort": "-lag"}))["groups"]]
    assert console.delete("groups/billing").status_code == 204
    assert console.get("groups/billing").status_code == 404


def test_clients_are_found_shown_and_sent_away_and_the_audit_log_says_by_whom(
    stack: Stack, console: httpx.Client
) -> None:
    clients = [MqttClient(stack.mqtt_port, f"api-{n}", clean=True, expiry_s=0) for n in range(5)]
    clients[0].subscribe("plant/#")
    wanted = {"client": "api-", "limit": 3, "sort": "-client_id", "protocol": "5"}
    first = done(console.get("clients", params=wanted))
    assert [row["client_id"] for row in first["clients"]] == ["api-4", "api-3", "api-2"]
    assert first["total"] == 5
    rest = done(console.get("clients", params={**wanted, "after": first["next"]}))
    assert ([row["client_id"] for row in rest["clients"]], rest["next"]) == (["api-1", "api-0"], None)
    shown = done(console.get("clients/api-0"))
    assert shown["filters"] == [{"filter": "plant/#", "qos": 1}]
    assert shown["bytes_in"] > 0
    assert console.get("clients/nobody").status_code == 404
    assert console.post("clients/kick", json={}).status_code == 400
    assert console.get("clients", params={"after": "7"}).status_code == 400
    assert console.get("clients", params={"address": "here"}).status_code == 400
    assert done(console.post("clients/kick", json={"client": "api-*", "dry_run": True}))["clients"] == 5
    assert done(console.post("clients/api-1/disconnect"))["clients"] == 1
    assert (
        done(console.post("clients/kick", json={"client": "api-*", "address": "127.0.0.1"}))["clients"] == 4
    )
    audit = done(console.get("audit", params={"q": "clients/kick"}))["rows"]
    assert {(row["account"], row["status"]) for row in audit} == {("admin", 200), ("admin", 400)}
    MqttClient.close_all()


def test_services_reload_and_the_busiest_are_told(stack: Stack, console: httpx.Client) -> None:
    def reloaded(service: str, name: str = "") -> list[tuple[str, str, str]]:
        body = {"service": service, "name": name}
        found = done(console.post("configuration/reload", json=body))["reloaded"]
        return [(row["service"], row["name"], row["error"]) for row in found]

    assert reloaded("broker") == reloaded("broker", "broker-0") == [("broker", "broker-0", "")]
    assert reloaded("registry") == [("registry", stack.registry, "")]
    ((service, _, error),) = reloaded("gateway")
    assert (service, error) == ("gateway", "")
    # It connects to what its own configuration names, and to nothing that somebody asks for.
    refused = console.post("configuration/reload", json={"service": "registry", "name": "192.0.2.1:1"})
    assert refused.status_code == 404
    client = MqttClient(stack.mqtt_port, "busy")
    client.publish("busy/x", *[b"1"] * 50)
    (busy,) = [
        row
        for row in done(console.get("clients-busiest", params={"by": "client", "limit": 1000}))["busiest"]
        if row["name"] == "busy"
    ]
    assert (busy["messages_in"], busy["connections"], busy["error"]) == (50, 1, 0)
    assert done(console.get("clients-busiest"))["busiest"][0]["name"] == ""
    client.disconnect()


def test_tenants_are_listed_shown_and_removed(stack: Stack, console: httpx.Client) -> None:
    for tenant in ("tenantA", "tenantB"):
        with SyncAdmin([stack.registry], tenant=tenant) as admin:
            admin.create_topic("orders")
    with SyncProducer([stack.registry], tenant="tenantA") as producer:
        producer.send(Message("orders", b"x"))
    done(console.put("quotas/tenant/tenantA", json={"topics": 3}))
    listed = done(console.get("tenants", params={"q": "tenant", "sort": "-messages", "limit": 1}))
    (first,) = listed["tenants"]
    assert (first["tenant"], first["topics"], first["messages"]) == ("tenantA", 1, 1)
    assert (listed["total"], listed["next"]) == (2, "1")
    assert first["quota"]["topics"] == 3
    assert first["quota"]["used"]["topics"] == 1
    shown = done(console.get("tenants/tenantB"))
    assert (shown["topics"], shown["quota"], shown["access_keys"]) == (["orders"], None, [])
    assert console.get("tenants/nobody").status_code == 404
    assert console.get("tenants/no%25body").status_code == 400
    assert console.get("tenants", params={"sort": "colour"}).status_code == 400
    gone = done(console.delete("tenants/tenantA"))
    assert (gone["topics"], gone["had_quota"], gone["left"]) == (["orders"], True, [])
    assert console.delete("tenants/tenantA").status_code == 404
    assert done(console.get("tenants/tenantB"))["topics"] == ["orders"]


def test_quotas_are_set_shown_and_removed(stack: Stack, console: httpx.Client) -> None:
    assert done(console.put("quotas/user/api%2Fada", json={"connections": 3}))["name"] == "api/ada"
    (found,) = done(console.get("quotas"))["quotas"]
    assert (found["kind"], found["name"], found["connections"], found["by"]) == (
        "user",
        "api/ada",
        3,
        "admin",
    )
    assert (found["used"]["connections"], found["is_own"], found["lacking"]) == (0, True, [])
    assert console.put("quotas/user/x", json={"topics": 3}).status_code == 400
    assert console.put("quotas/user/x", json={"colour": 3}).status_code == 400
    assert done(console.delete("quotas/user/api%2Fada"))["kind"] == "user"
    assert console.delete("quotas/user/api%2Fada").status_code == 404
    assert done(console.get("quotas"))["quotas"] == []


def test_clients_are_banned_and_let_in_again(stack: Stack, console: httpx.Client) -> None:
    made = done(
        console.post("bans", json={"kind": "pattern", "value": "api/*", "reason": "why", "seconds": 60})
    )
    assert (made["by"], made["reason"]) == ("admin", "why")
    assert MqttClient(stack.mqtt_port, "api/1", clean=True).connack.reason_code == 0x8A
    found = done(console.get("bans"))
    assert (found["bans"], found["flapping"]) == ([made], [])
    assert console.post("bans", json={"kind": "address", "value": "here"}).status_code == 400
    assert done(console.delete("bans/pattern/api%2F*"))["value"] == "api/*"
    assert console.delete("bans/pattern/api%2F*").status_code == 404
    assert console.delete("bans/colour/red").status_code == 400
    wait_until(lambda: stack.metric("gateway", "holdmq_gateway_fleet_bans") == 0, "gateways know")
    assert MqttClient(stack.mqtt_port, "api/1", clean=True).connack.reason_code == 0
    MqttClient.close_all()


def test_a_broker_that_is_lost_is_given_up_once_somebody_says_so(stack: Stack, console: httpx.Client) -> None:
    async def come_and_go() -> None:
        client = Client(stack.registry, "broker", "gone")
        row = TopicRow("of-the-lost", 4, 4, 6, "log", 1, True)
        registered = BrokerRegisterRequest(
            "holdmq", "gone", 0, "127.0.0.1:1", 1, [row], made_ms=1, sessions=7, retained=2
        )
        try:
            await client.call(RequestCode.BROKER_REGISTER, registered)
        finally:
            await client.close()

    asyncio.run(come_and_go())
    wait_until(lambda: console.post("brokers/gone/forget", json={}).status_code == 200, "it is gone")
    seen = done(console.post("brokers/gone/forget", json={}))
    assert (seen["sessions"], seen["retained"], seen["forgotten_ms"], seen["told"]) == (7, 2, None, [])
    assert seen["topics"] == [{"topic": "of-the-lost", "queues": 4, "is_ordered": True, "others": 0}]
    given_up = done(console.post("brokers/gone/forget", json={"accept_loss": True}))
    assert given_up["forgotten_ms"] > 0
    assert given_up["told"] == [stack.registry]
    with pytest.raises(RemoteError, match="was given up"):
        asyncio.run(come_and_go())
    lives = console.post("brokers/broker-0/forget", json={"accept_loss": True})
    assert (lives.status_code, lives.json()["error"]["code"]) == (409, "NOT_FORGOTTEN")
    assert "it lives" in lives.json()["error"]["message"]
    assert console.post("brokers/nobody/forget", json={"accept_loss": True}).status_code == 404


def test_the_rest_of_the_cluster_is_shown(console: httpx.Client) -> None:
    cluster = done(console.get("cluster"))
    assert [b["broker"] for b in cluster["brokers"]] == ["broker-0"]
    assert [(b["epoch"], b["room"]) for b in cluster["brokers"]] == [(0, "")]
    assert done(console.get("clusters"))["clusters"] == [{"cluster": "holdmq", "brokers": ["broker-0"]}]
    listed = done(console.get("brokers", params={"cluster": "holdmq"}))["brokers"]
    assert [b["broker"] for b in listed] == ["broker-0"]
    assert console.get("brokers", params={"cluster": "other"}).status_code == 404
    assert done(console.get("replicas")) == {
        "shards": [{"broker": "broker-0", "copies": 1, "epoch": 0, "leader": "", "ok": True, "replicas": []}]
    }
    refused = console.post("replicas/broker-0/switch", json={"to": "b"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "ONE_COPY")
    assert console.post("replicas/nobody/switch", json={"to": "b"}).status_code == 404
    assert done(console.get("alarms"))["history"] == []
    assert done(console.get("sessions", params={"prefix": "x"})) == {
        "sessions": [],
        "total": None,
        "next": None,
    }
    assert console.get("sessions/nobody").status_code == 404
    assert not done(console.post("sessions/nobody/disconnect"))["was_connected"]
    assert done(console.get("dead-letters")) == {"groups": [], "total": 0, "next": None}
    assert done(console.get("retained", params={"filter": "a/#"}))["retained"] == []
    assert console.get("tables/none").status_code == 404
    assert done(console.get("connections", params={"role": "console"}))["connections"]
    (itself, *_) = done(console.get("connections", params={"kind": "console"}))["connections"]
    assert (itself["kinds"], itself["principal"]) == (["console"], "")
    assert done(console.get("connections", params={"kind": "spark"}))["connections"] == []
    busiest = done(console.get("connections/busiest"))
    assert (busiest["access_keys"], "notice" in busiest) == ([], False)
    changes = done(console.get("audit"))["rows"]
    assert changes[-1]["path"] == "/api/v1/session"
    assert PASSWORD not in str(changes)


async def give_up(registries: list[str], bodies: list[str]) -> None:
    """Let the group `mailing` give messages of the topic `letters` up."""
    async with GroupAdmin(registries) as groups, DeadLetters(registries) as letters:
        await groups.update("mailing", retry_max_times=0)
        async with (
            Consumer(registries, "mailing", lambda _: False, ["letters"], start="earliest"),
            Producer(registries) as producer,
        ):
            for body in bodies:
                await producer.send(Message("letters", body.encode()))
            while (await letters.groups()).get("mailing", (0, 0))[0] < len(bodies):
                await asyncio.sleep(0.05)


def test_a_dead_letter_says_whether_when_and_by_whom_it_was_sent_again(
    console: httpx.Client, stack: Stack
) -> None:
    asyncio.run(asyncio.wait_for(give_up([stack.registry], ["a", "b", "c"]), 60))
    at = "dead-letters/mailing"
    found = done(console.get(at))["letters"]
    assert [letter["resent"] for letter in found] == [None] * 3
    places = [{"broker": "broker-0", "offset": found[1]["offset"]}]
    asked = done(console.post(f"{at}/resend", json={"places": places}))
    assert asked == {"resent": 1, "repeated": 0, "failures": []}
    first, second, third = (letter["resent"] for letter in done(console.get(at))["letters"])
    assert (first, second["by"], third) == (None, "admin", None)
    assert second["at_ms"] >= found[1]["failed_ms"]
    asked = done(console.post(f"{at}/resend", json={"places": places}))
    assert asked == {"resent": 0, "repeated": 1, "failures": []}
    stack.stop("broker")
    stack.start("broker")
    # The first moment stands, whoever asked again and whatever has died since.
    assert [letter["resent"] for letter in done(console.get(at))["letters"]] == [None, second, None]
    assert done(console.post(f"{at}/purge")) == {"purged": 3}


LEFT_OUT = {
    # These end the sign-in that the others need, or do not end themselves.
    ("POST", "/api/v1/session"),
    ("DELETE", "/api/v1/session"),
    ("PUT", "/api/v1/session/password"),
    ("GET", "/api/v1/stream"),
}
REQUESTS_PER_ENDPOINT = 8
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


def test_whatever_is_asked_is_answered_as_the_openapi_document_says(console: httpx.Client) -> None:
    described = schemathesis.openapi.from_dict(done(console.get("openapi.json")))
    asked = 0

    def ask(operation: Any) -> None:
        nonlocal asked

        @settings(
            max_examples=REQUESTS_PER_ENDPOINT,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy())
        def one(case: Any) -> None:
            nonlocal asked
            response = case.call(
                base_url=str(console.base_url).removesuffix("/api/v1/"),
                headers={"X-HoldMQ-CSRF": console.headers["X-HoldMQ-CSRF"]},
                cookies=dict(console.cookies),
                timeout=60,
            )
            asked += 1
            case.validate_response(response, checks=list(CHECKS))

        one()

    for result in described.get_all_operations():
        operation = result.ok()
        if (operation.method.upper(), operation.path) not in LEFT_OUT:
            ask(operation)
    assert asked > 100
