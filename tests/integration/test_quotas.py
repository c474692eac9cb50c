"""Quotas over real processes: who exceeds one waits or is refused by name, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from access_files import password_file, written
from command_line import flags_of, run_here
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until
from security import ADMIN_SECRET, KEYS, SECRET, SERVICE_SECRET, write_keys

from holdmq.client import Message, Producer
from holdmq.mqtt import MQTT_3_1_1, Publish
from holdmq.rpc.security import Security

RATE = 400
SECONDS = 8.0
LOUD_SECRET = "secret-of-loud-" + "l" * 32
LOUD = f"""
[keys.loud]
secret = "{LOUD_SECRET}"
produce = ["orders"]
"""


class Quoted:
    """A stack with two gateway workers, access keys and users, and its command line."""

    def __init__(self, directory: Path, stack: Stack) -> None:
        self.stack = stack
        self._admin = written(directory / "admin.secret", ADMIN_SECRET)

    def cli(self, *arguments: str) -> CompletedProcess[str]:
        given = ("--set=client.access_key=admin", f"--set=client.secret_file={self._admin}")
        return run_here(*arguments, *flags_of(self.stack), *given)

    def set(self, whose: str, *limits: str) -> None:
        done = self.cli("quota", "set", whose, *limits)
        assert done.returncode == 0, done.stderr

    def remove(self, *names: str) -> None:
        for whose in names:
            assert self.cli("quota", "remove", whose).returncode == 0
        self.followed(len(self.listed()))

    def listed(self) -> dict[str, dict[str, Any]]:
        done = self.cli("quota", "list", "--json")
        assert done.returncode == 0, done.stderr
        return {row["principal"]: row for row in json.loads(done.stdout)}

    def followed(self, count: int) -> None:
        """Every worker knows so many quotas."""
        metric = "holdmq_gateway_fleet_quotas"
        wait_until(lambda: self.stack.metric("gateway", metric) == count, f"{count} quotas", 10.0)
        time.sleep(0.3)

    def connect(self, client_id: str, user: str, **options: Any) -> MqttClient:
        return MqttClient(
            self.stack.mqtt_port, client_id, clean=True, username=user, password=b"x", **options
        )


def stack_of(directory: Path, **more: Any) -> Iterator[Quoted]:
    settings = {
        "gateway.workers": 2,
        "access.password_file": password_file(directory / "users", ada="x", eve="x"),
        "security.keys_file": write_keys(directory / "keys.toml", KEYS + LOUD),
        "client.access_key": "service",
        "client.secret_file": written(directory / "service.secret", SERVICE_SECRET),
        **more,
    }
    with running_stack(directory, **settings) as stack:
        yield Quoted(directory, stack)


@pytest.fixture(scope="module")
def quoted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quoted]:
    for quoted in stack_of(tmp_path_factory.mktemp("quotas")):
        done = quoted.cli("topic", "create", "orders")
        assert done.returncode == 0, done.stderr
        yield quoted


class Flood:
    """An MQTT client that publishes as fast as it is read, until `end`."""

    def __init__(self, client: MqttClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.sent = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        payload = b"x" * 100
        while not self._is_over:
            try:
                self._client.send(*(Publish(self._topic, payload, 0) for _ in range(20)))
            except OSError:
                return
            time.sleep(0.002)

    def end(self) -> None:
        self._is_over = True
        self._client.interrupt()
        self._thread.join(40)


def round_trip_ms(client: MqttClient, topic: str, count: int) -> list[float]:
    """How long each of so many publishes takes to its PUBACK."""
    took = []
    for n in range(1, count + 1):
        began = time.perf_counter()
        client.send(Publish(topic, b"quiet", 1, packet_id=n))
        client.next()
        took.append((time.perf_counter() - began) * 1000)
    return took


def test_the_clients_of_a_user_share_its_rate_over_all_workers_and_lose_nothing(
    quoted: Quoted, topic: str
) -> None:
    quoted.set("user:ada", "--publish-rate", str(RATE))
    quoted.followed(1)
    counted = quoted.connect(f"{topic}-counts", "eve", expiry_s=0)
    counted.subscribe(f"{topic}/#", qos=0)
    floods = [Flood(quoted.connect(f"{topic}-{n}", "ada", expiry_s=0), f"{topic}/{n}") for n in range(8)]
    quiet = quoted.connect(f"{topic}-quiet", "eve", expiry_s=0)
    metric = "holdmq_gateway_messages_in_qos0_total"
    try:
        time.sleep(2.5)  # the burst of a second at each worker, and what is owed for it
        before, began = quoted.stack.metric("gateway", metric), time.monotonic()
        took = round_trip_ms(quiet, f"{topic}-other/x", 50)
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
        rate = (quoted.stack.metric("gateway", metric) - before) / (time.monotonic() - began)
    finally:
        for flood in floods:
            flood.end()
    assert RATE * 0.6 <= rate <= RATE * 1.2, rate
    assert max(took) < 2_000
    view = quoted.listed()["user:ada"]
    assert view["used"]["messages_per_s"] > RATE / 2
    assert view["used"]["waited"] > 0
    assert quoted.stack.metric("gateway", "holdmq_gateway_quota_paused_total") > 0
    quoted.remove("user:ada")


async def produced(quoted: Quoted, name: str, secret: str, seconds: float, count: int) -> tuple[int, float]:
    """How many messages were stored in so many seconds, and the longest that one took."""
    security = Security(access_key=name, secret=secret)
    stored, longest = 0, 0.0
    async with Producer([quoted.stack.registry], security=security) as producer:
        end = time.monotonic() + seconds

        async def one(n: int) -> None:
            nonlocal stored, longest
            while time.monotonic() < end:
                began = time.monotonic()
                await producer.send(Message("orders", b"x" * 100), timeout_s=20.0)
                longest = max(longest, time.monotonic() - began)
                stored += 1
                await asyncio.sleep(0.005 * (n % 2))

        await asyncio.gather(*(one(n) for n in range(count)))
    return stored, longest


def test_producers_of_a_key_keep_its_rate_and_those_of_others_do_not_wait(quoted: Quoted) -> None:
    quoted.set("key:loud", "--publish-rate", str(RATE))

    async def both() -> tuple[tuple[int, float], ...]:
        loud = [produced(quoted, "loud", LOUD_SECRET, SECONDS, 50) for _ in range(2)]
        return tuple(await asyncio.gather(*loud, produced(quoted, "orders", SECRET, SECONDS, 1)))

    *loud, (quiet, longest) = asyncio.run(both())
    stored = sum(count for count, _ in loud)
    # The burst of a second comes on top, and what was lent last.
    assert RATE * SECONDS * 0.7 <= stored <= RATE * (SECONDS + 2.5), stored
    assert quiet > 100
    assert longest < 1.0
    view = quoted.listed()["key:loud"]
    assert view["used"]["waited"] > 0
    shown = quoted.cli("quota", "show", "key:loud")
    assert f"of {RATE}" in shown.stdout
    quoted.remove("key:loud")
    assert quoted.cli("quota", "show", "key:loud").returncode == 1


def test_what_cannot_be_a_quota_is_said(quoted: Quoted) -> None:
    for words, says in (
        (("acme", "--publish-rate", "1"), "tenant:NAME, user:NAME, key:NAME"),
        (("key:loud", "--topics", "1"), "a key has no limit of topics"),
        (("key:loud",), "without a limit"),
    ):
        done = quoted.cli("quota", "set", *words)
        assert done.returncode != 0
        assert says in done.stderr
    assert quoted.cli("quota", "remove", "user:nobody").returncode == 1


QUOTA_EXCEEDED = 0x97
UNAVAILABLE = 0x88
"""What return code 3 of MQTT 3 is decoded as."""


def code_of(quoted: Quoted, client_id: str, user: str, **options: Any) -> int:
    client = quoted.connect(client_id, user, **options)
    client.close()
    return client.connack.reason_code


def test_a_connection_or_session_too_many_is_refused_at_any_worker_also_after_restarts(
    quoted: Quoted, topic: str
) -> None:
    quoted.set("user:ada", "--connections", "3", "--sessions", "2")
    kept = [quoted.connect(f"{topic}-{n}", "ada", expiry_s=600) for n in range(2)]
    assert code_of(quoted, f"{topic}-2", "ada", expiry_s=600) == QUOTA_EXCEEDED
    third = quoted.connect(f"{topic}-3", "ada", expiry_s=0)
    assert third.connack.reason_code == 0
    assert [code_of(quoted, f"{topic}-{n}", "ada", expiry_s=0) for n in range(4, 10)] == [QUOTA_EXCEEDED] * 6
    assert code_of(quoted, f"{topic}-4", "ada", expiry_s=0, version=MQTT_3_1_1) == UNAVAILABLE
    assert code_of(quoted, f"{topic}-5", "eve", expiry_s=0) == 0
    used = quoted.listed()["user:ada"]["used"]
    assert (used["sessions"], used["connections"]) == (2, 3)
    assert used["refused"] >= 8
    quoted.stack.restart("broker", signal.SIGKILL)
    quoted.followed(1)
    wait_until(lambda: quoted.listed()["user:ada"]["used"]["connections"] == 3, "they are claimed", 20.0)
    assert code_of(quoted, f"{topic}-6", "ada", expiry_s=0) == QUOTA_EXCEEDED
    for client in (*kept, third):
        client.close()
    wait_until(lambda: quoted.listed()["user:ada"]["used"]["connections"] == 0, "they are gone", 20.0)
    assert code_of(quoted, f"{topic}-7", "ada", expiry_s=600) == QUOTA_EXCEEDED, "sessions are kept"
    assert code_of(quoted, f"{topic}-7", "ada", expiry_s=0) == 0
    quoted.remove("user:ada")
    assert code_of(quoted, f"{topic}-7", "ada", expiry_s=600) == 0
