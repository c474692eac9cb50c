"""Settings that change while services run: by `holdmq config reload`, and by SIGHUP."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here
from mqtt_client import MqttClient
from processes import SERVICES, Stack, free_port, wait_until

from holdmq.client.sync import SyncAdmin, SyncProducer
from holdmq.errors import Code, RecordError, RemoteError
from holdmq.message import Message
from holdmq.mqtt import PubAck, Publish

BEFORE = "[broker]\ntopics_max = 1\ntopic_queues_default = 2\n[registry]\nscan_interval_s = 600\n"


@contextmanager
def configured(directory: Path, text: str, *services: str) -> Iterator[Stack]:
    """Services that read a file, beside what a test's stack gives them as --set."""
    stack = Stack(directory)
    file(stack).write_text(text)
    try:
        for name in services:
            stack.start(name, "--config", str(file(stack)))
        yield stack
    finally:
        for name in reversed(list(stack.processes)):
            stack.stop(name)


def file(stack: Stack) -> Path:
    return stack.directory / "holdmq.toml"


def reload(stack: Stack, name: str, *options: str) -> Any:
    return run_here(
        "config", "reload", name, "--admin", f"127.0.0.1:{stack.admin_ports[name]}", "--json", *options
    )


def came_of(stack: Stack, name: str) -> dict[str, Any]:
    (result,) = json.loads(reload(stack, name).stdout)
    return dict(result)


@pytest.fixture
def brokered(tmp_path: Path) -> Iterator[Stack]:
    with configured(tmp_path, BEFORE, "registry", "broker") as stack:
        yield stack


def test_a_running_broker_takes_what_can_change_and_names_what_waits(brokered: Stack) -> None:
    with SyncAdmin([brokered.registry]) as admin:
        admin.create_topic("first")
        with pytest.raises(RemoteError, match=r"broker\.topics_max \(1\)") as refused:
            admin.create_topic("second")
        assert refused.value.code == Code.TOPIC_LIMIT
        file(brokered).write_text(
            "[broker]\ntopics_max = 3\ntopic_queues_default = 5\nshared_window = 128\n"
            "[storage]\nretention_age_s = 86400\n[alarms]\ndead_letters = 5\n"
        )
        result = came_of(brokered, "broker")
        assert result == {
            "service": "broker",
            "changed": [
                "alarms.dead_letters",
                "broker.topic_queues_default",
                "broker.topics_max",
                "storage.retention_age_s",
            ],
            "waiting": ["broker.shared_window"],
            "error": "",
        }
        admin.create_topic("second")
        assert [topic.queues for topic in admin.topics(names=["second"])] == [5]
        with pytest.raises(RemoteError, match="86400000 ms"):
            admin.create_topic("third", retention_ms=2 * 86_400_000)
    assert brokered.metric("broker", "holdmq_config_keys_waiting") == 1
    assert brokered.metric("broker", 'holdmq_config_reloads_total{result="applied"}') == 1


def test_a_wrong_file_changes_nothing_and_is_told_by_key(brokered: Stack) -> None:
    file(brokered).write_text("[broker]\ntopics_max = 3\ntopic_queues_default = 50000\n")
    outcome = reload(brokered, "broker")
    assert outcome.returncode == 1
    (result,) = json.loads(outcome.stdout)
    assert result["changed"] == []
    assert 'the value 50000 of "broker.topic_queues_default"' in result["error"]
    assert str(file(brokered)) in result["error"]
    file(brokered).write_text("[alarms]\nsmtp_host = 'mail'\n[broker]\ntopics_max = 3\n")
    (result,) = json.loads(reload(brokered, "broker").stdout)
    assert "set alarms.mail_from" in result["error"], "keys that do not go together are no less wrong"
    with SyncAdmin([brokered.registry]) as admin:
        admin.create_topic("first")
        with pytest.raises(RemoteError, match=r"topics_max \(1\)"):
            admin.create_topic("second")
    assert brokered.metric("broker", 'holdmq_config_reloads_total{result="refused"}') == 2


def test_sighup_does_it_too_and_the_log_has_the_answer(brokered: Stack) -> None:
    file(brokered).write_text(BEFORE.replace("600", "1").replace("topics_max = 1", "topics_max = 2"))
    for name, key in (("registry", "registry.scan_interval_s"), ("broker", "broker.topics_max")):
        brokered.processes[name].send_signal(signal.SIGHUP)
        wait_until(said(brokered, name, [key]), f"{name} takes {key}")


def test_the_registry_forgets_brokers_by_the_new_expiry_at_once(brokered: Stack) -> None:
    file(brokered).write_text("[registry]\nscan_interval_s = 0.1\nbroker_expiry_s = 0.2\n")
    result = came_of(brokered, "registry")
    assert result["changed"] == ["registry.broker_expiry_s", "registry.scan_interval_s"]
    # It registers once a second, and so is gone between two times.
    wait_until(lambda: brokered.metric("registry", "holdmq_registry_brokers") == 0, "the broker expires")


def test_the_level_of_the_log_changes(brokered: Stack) -> None:
    file(brokered).write_text(BEFORE + "[log]\nlevel = 'error'\n")
    assert came_of(brokered, "broker")["changed"] == ["log.level"]
    before = brokered.log("broker").count("was read again")
    file(brokered).write_text(BEFORE)
    assert came_of(brokered, "broker")["changed"] == ["log.level"]
    wait_until(lambda: brokered.log("broker").count("was read again") > before, "info is logged again")


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Stack]:
    with configured(tmp_path, "[gateway]\nkeepalive_max_s = 50\n", *SERVICES) as stack:
        yield stack


def test_every_worker_takes_what_changed_and_so_does_one_that_is_started_again(whole: Stack) -> None:
    def granted() -> set[int | None]:
        clients = [MqttClient(whole.mqtt_port, f"k{n}") for n in range(12)]
        found = {client.connack.properties.server_keep_alive for client in clients}
        for client in clients:
            client.disconnect()
        return found

    assert granted() == {50}
    file(whole).write_text("[gateway]\nkeepalive_max_s = 40\nreceive_max = 9\n[access]\nsys_topics = true\n")
    result = came_of(whole, "gateway")
    assert result["changed"] == ["gateway.keepalive_max_s"]
    assert result["waiting"] == ["access.sys_topics", "gateway.receive_max"]
    wait_until(lambda: granted() == {40}, "all workers have it")
    whole.kill_workers()
    wait_until(lambda: granted() == {40}, "workers that are started later have it")


def test_a_gateway_with_a_wrong_file_stays_as_it_was(whole: Stack) -> None:
    file(whole).write_text("[gateway]\nkeepalive_max_s = 0\n")
    outcome = reload(whole, "gateway")
    assert outcome.returncode == 1
    assert "gateway.keepalive_max_s" in json.loads(outcome.stdout)[0]["error"]
    file(whole).write_text("[gateway]\nkeepalive_max_s = 30\n")
    whole.processes["gateway"].send_signal(signal.SIGHUP)
    wait_until(said(whole, "gateway", ["gateway.keepalive_max_s"]), "SIGHUP does it, too")
    client = MqttClient(whole.mqtt_port, "after")
    wait_until(
        lambda: MqttClient(whole.mqtt_port, "x").connack.properties.server_keep_alive == 30,
        "the worker has it",
    )
    client.disconnect()


def test_a_rate_is_set_and_taken_away_while_a_client_publishes(whole: Stack) -> None:
    client = MqttClient(whole.mqtt_port, "busy")

    def seconds_for(count: int) -> float:
        began = time.monotonic()
        for _ in range(count):
            client.publish("rated", b"x")
        return time.monotonic() - began

    seconds_for(3)
    file(whole).write_text("[gateway]\nkeepalive_max_s = 50\npublish_rate_max = 5\n")
    assert came_of(whole, "gateway")["changed"] == ["gateway.publish_rate_max"]
    wait_until(lambda: seconds_for(10) > 1.0, "ten messages take their time at 5/s", 30)
    file(whole).write_text("")
    came_of(whole, "gateway")
    wait_until(lambda: seconds_for(10) < 1.0, "no rate is kept any more", 30)


def test_messages_below_the_least_size_are_refused_on_every_way_as_soon_as_the_broker_reads_it(
    whole: Stack,
) -> None:
    device, old = (MqttClient(whole.mqtt_port, f"v{version}", version=version) for version in (5, 4))
    device.publish("least/a", b"1")
    old.publish("least/a", b"2")
    with SyncProducer([whole.registry]) as producer:
        producer.send(Message("least", b"3"))
        file(whole).write_text("[broker]\nmessage_bytes_min = 4\n")
        assert came_of(whole, "broker")["changed"] == ["broker.message_bytes_min"]

        def refused() -> bool:
            device.send(Publish("least/a", b"no", 1, packet_id=9))
            return device.wait_for(PubAck).reason_code == 0x83

        wait_until(refused, "the gateway has heard of it")
        device.send(Publish("least/a", b"\x00" * 3, 1, packet_id=10, retain=True))
        assert device.wait_for(PubAck).reason_code == 0x83
        device.send(Publish("least/a", b"", 1, packet_id=11, retain=True))
        assert device.wait_for(PubAck).reason_code == 0
        device.publish("least/a", b"four")
        with pytest.raises(RecordError, match="message_bytes_min is 4") as error:
            producer.send(Message("least", b"no"))
        assert error.value.code == Code.MESSAGE_TOO_SMALL
        producer.send(Message("least", b"five!"))
        old.publish("least/a", b"no")  # acknowledged, dropped, counted
        counter = 'holdmq_gateway_refused_total{reason="publish_too_small"}'
        wait_until(lambda: whole.metric("gateway", counter) >= 3, "they are counted")
        # Another start: the broker itself says it in HELLO, and refuses whoever does not listen.
        whole.stop("broker")
        whole.start("broker", "--config", str(file(whole)))
        with SyncProducer([whole.registry]) as after, pytest.raises(RecordError):
            after.send(Message("least", b"no"))


def test_services_are_told_from_afar_and_say_what_changed_and_what_waits(whole: Stack) -> None:
    def afar(*words: str) -> tuple[int, list[dict[str, Any]]]:
        done = run_here(
            *("config", "reload", "--json", "--set", f'client.registries=["{whole.registry}"]', *words)
        )
        return done.returncode, json.loads(done.stdout)

    file(whole).write_text(
        "[broker]\ntopics_max = 7\nshared_window = 128\n[registry]\nbroker_expiry_s = 30\n"
        "[gateway]\nkeepalive_max_s = 40\nreceive_max = 9\n"
    )
    code, found = afar("--broker", "broker-0", "--registry", whole.registry, "--gateway", "*")
    assert code == 0
    assert {row["service"]: (row["changed"], row["waiting"]) for row in found} == {
        "broker": (["broker.topics_max"], ["broker.shared_window"]),
        "registry": (["registry.broker_expiry_s"], []),
        "gateway": (["gateway.keepalive_max_s"], ["gateway.receive_max"]),
    }
    client = MqttClient(whole.mqtt_port, "afar")
    wait_until(
        lambda: MqttClient(whole.mqtt_port, "y").connack.properties.server_keep_alive == 40,
        "the workers have it",
    )
    client.disconnect()
    file(whole).write_text("[broker]\ntopics_max = 0\n[gateway]\nkeepalive_max_s = 0\n")
    code, found = afar("--broker", "broker-0", "--gateway", "*")
    assert code == 1
    assert ["broker.topics_max" in row["error"] for row in found] == [True, True]
    assert afar("--broker", "broker-0", "--gateway", "nowhere")[1][0]["service"] == "broker"


def test_the_console_takes_bounds_of_queries_and_names_what_waits(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.admin_ports["console"] = free_port()
    stack.set("console.admin_port", stack.admin_ports["console"])
    port = free_port()
    stack.set("console.port", port)
    file(stack).write_text("")
    stack.start("registry")
    stack.start("console", "--config", str(file(stack)))

    def rows_of_three() -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/v1/sql",
            json.dumps({"sql": "select * from range(3)"}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 # the address is ours
            return len(json.load(answer)["rows"])

    try:
        assert rows_of_three() == 3
        file(stack).write_text("[console]\nsql_rows_max = 2\nstreams_max = 5\n")
        result = came_of(stack, "console")
        assert (result["changed"], result["waiting"]) == (["console.sql_rows_max"], ["console.streams_max"])
        assert rows_of_three() == 2
        file(stack).write_text("[console]\nsql_rows_max = 0\n")
        assert "console.sql_rows_max" in came_of(stack, "console")["error"]
        assert rows_of_three() == 2
    finally:
        stack.stop("console")
        stack.stop("registry")


def said(stack: Stack, name: str, keys: list[str]) -> Callable[[], bool]:
    def holds() -> bool:
        lines = [json.loads(line) for line in stack.log(name).splitlines() if line.startswith("{")]
        return any(line.get("changed") == keys for line in lines)

    return holds
