"""A gateway of several workers as an operator meets it: traces, bans, draining."""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run_process
from guides import examples_of
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import MQTT_3_1_1, Disconnect
from holdmq.service.admin import CONTROL_HEADER

REFERENCE = "other.example:1883"
NAME = "gateway-0.gateways"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {
        "gateway.flapping_connects_max": 10,
        "gateway.drain_rate": 2,
        "gateway.drain_s": 100,
        "gateway.server_reference": REFERENCE,
        "security.hosts": NAME,
    }
    with running_stack(tmp_path_factory.mktemp("control"), **settings) as stack:
        yield stack


def command(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    return run_process(*words, "--admin", f"127.0.0.1:{stack.admin_ports['gateway']}")


@contextlib.contextmanager
def running(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process for the block, killed at its end: waiting for it would hide why the block failed."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_client_is_traced_whichever_worker_it_comes_to(stack: Stack) -> None:
    admin = f"127.0.0.1:{stack.admin_ports['gateway']}"
    words = ["trace", "traced", "--seconds", "600", "--json", "--admin", admin]
    # As a script's background job, which has SIGINT ignored.
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    with running([*ignoring, sys.executable, "-m", "holdmq.cli", *words]) as tracing:
        assert tracing.stdout is not None
        assert json.loads(tracing.stdout.readline())["workers"] == 2
        wait_until(lambda: stack.metric("gateway", "holdmq_gateway_traces") == 1, "both workers trace")
        seen: list[dict[str, Any]] = []
        workers: set[int] = set()
        for n in range(40):  # the kernel chooses the worker; 2⁻⁴⁰ that it is always the same
            client = MqttClient(stack.mqtt_port, "traced", clean=True, expiry_s=0)
            client.publish("traces/t", b"%d" % n)
            client.disconnect()
            while True:
                row = json.loads(tracing.stdout.readline())
                workers.add(row["worker"])
                seen.append(row)
                if row.get("event") == "closed":
                    break
            if len(workers) == 2:
                break
        tracing.send_signal(signal.SIGINT)
        assert tracing.wait(40) == 0
    assert workers == {0, 1}
    first = [row["packet"] for row in seen[: seen.index(next(r for r in seen if "event" in r))]]
    assert first == ["CONNECT", "CONNACK", "PUBLISH", "PUBACK", "DISCONNECT"]
    wait_until(
        lambda: stack.metric("gateway", "holdmq_gateway_traces") == 0, "the trace ends with its reader"
    )


def test_what_cannot_be_traced_is_said_in_a_sentence(stack: Stack) -> None:
    done = command(stack, "trace", "c", "--topic", "a/#/b")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    wrong = run_process("trace", "c", "--admin", "127.0.0.1:1")
    assert wrong.returncode == 1
    assert "no gateway answers at 127.0.0.1:1" in wrong.stderr


def test_a_client_that_connects_too_often_is_banned_by_every_worker_until_it_is_let_in_again(
    stack: Stack,
) -> None:
    codes: list[int] = []
    for _ in range(60):
        client = MqttClient(stack.mqtt_port, "flapping", clean=True, expiry_s=0)
        codes.append(client.connack.reason_code)
        client.close()
        if codes[-10:] == [0x8A] * 10:
            break
    assert codes[:10] == [0] * 10
    assert codes[-10:] == [0x8A] * 10
    old = MqttClient(stack.mqtt_port, "flapping", clean=True, version=MQTT_3_1_1)
    assert old.connack.reason_code == 0x87  # return code 5
    (ban,) = json.loads(command(stack, "ban", "list", "--json").stdout)
    assert (ban["principal"], ban["address"], ban["connects"]) == ("flapping", "127.0.0.1", 11)
    assert "flapping" in command(stack, "ban", "list").stdout
    assert MqttClient(stack.mqtt_port, "another", clean=True).connack.reason_code == 0
    assert json.loads(command(stack, "ban", "clear", "flapping", "--json").stdout) == {"lifted": 1}

    wait_until(lambda: stack.metric("gateway", "holdmq_gateway_bans") == 0, "every worker lets it in")
    for _ in range(8):
        assert MqttClient(stack.mqtt_port, "flapping", clean=True).connack.reason_code == 0
    assert command(stack, "ban", "clear").returncode == 2


def test_a_page_whose_name_points_here_can_neither_trace_nor_see_nor_lift_bans(stack: Stack) -> None:
    """As a browser asks for a page that DNS rebinding made one site with the admin port, header and all."""
    port = stack.admin_ports["gateway"]

    def asked(method: str, path: str, host: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=40)
        try:
            connection.request(method, path, headers={"Host": f"{host}:{port}", CONTROL_HEADER: "1"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    while not json.loads(command(stack, "ban", "list", "--json").stdout):
        MqttClient(stack.mqtt_port, "kept", clean=True, expiry_s=0).close()
    rebound = (
        ("GET", "/trace?client=kept&seconds=600"),
        ("POST", "/bans?all=1"),
        ("GET", "/bans"),
        ("GET", "/metrics"),
        ("GET", "/healthz"),
        ("GET", "/none"),
    )
    for method, path in rebound:
        status, text = asked(method, path, "evil.example")
        assert status == 421, path
        assert b"security.hosts" in text
        assert b"kept" not in text
    assert stack.metric("gateway", "holdmq_gateway_traces") == 0
    assert stack.metric("gateway", "holdmq_admin_misdirected_requests_total") == len(rebound)
    assert json.loads(asked("GET", "/bans", "127.0.0.1")[1])["principal"] == "kept"
    assert asked("POST", "/bans?all=1", NAME) == (200, b'{"lifted": 1}\n')


def test_ping_says_that_a_message_went_through_a_gateway_and_came_back(stack: Stack) -> None:
    done = run_process("ping", f"127.0.0.1:{stack.mqtt_port}", "--topic", "pinged/by/test")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        f"127.0.0.1:{stack.mqtt_port} took a message on pinged/by/test and gave it out again" in done.stdout
    )


def test_what_the_page_shows_runs(stack: Stack) -> None:
    commands = [
        shlex.split(line.removeprefix("$ "), comments=True)
        for example in examples_of("protection.md", "console")
        for line in example.code.splitlines()
        if line.startswith("$ ")
    ]
    assert {tuple(words[:2]) for words in commands} == {("holdmq", "ban"), ("holdmq", "trace")}
    for _, *words in commands:
        if words[0] == "trace":
            words += ["--seconds", "1"]
        done = command(stack, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout


def test_draining_sends_clients_away_at_the_configured_rate_and_serves_those_that_are_left(
    stack: Stack,
) -> None:
    clients = [MqttClient(stack.mqtt_port, f"d{n}") for n in range(12)]
    for client in clients:
        client.subscribe("drain/#")
    gateway = stack.processes["gateway"]
    began = time.monotonic()
    gateway.send_signal(signal.SIGTERM)
    wait_until(lambda: stack.http("gateway", "/readyz")[0] != 200, "it is not ready any more")
    told: dict[int, float] = {}
    answered = 0
    deadline = time.monotonic() + 100
    while len(told) < len(clients) and time.monotonic() < deadline:
        for n, client in enumerate(clients):
            if n in told:
                continue
            try:
                packet = client.next(0.02)
            except TimeoutError:
                continue
            assert isinstance(packet, Disconnect)
            assert packet.reason_code == 0x9C
            assert packet.properties.server_reference == REFERENCE
            told[n] = time.monotonic()
            staying = next((c for m, c in enumerate(clients) if m not in told), None)
            if len(told) < len(clients) // 2 and staying is not None:
                # Sent away just now, it is not answered, and finds its DISCONNECT when its turn comes.
                with contextlib.suppress(ConnectionError):
                    staying.publish("elsewhere", b"x")
                    answered += 1
    assert len(told) == len(clients)
    assert answered
    # Of two workers at 2 a second each one has six clients at least.
    assert max(told.values()) - began > 2.0
    assert gateway.wait(100) == 0
    del stack.processes["gateway"]
    stack.start("gateway")
    again = MqttClient(stack.mqtt_port, "d0")
    assert again.connack.session_present
