"""Processes that are killed: another one tells it, once, by mail and webhook."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Stack, end_all, free_port, wait_until
from receivers import HookServer, MailServer

StackMaker = Callable[..., Stack]
LOST_S = 1


@pytest.fixture
def hook() -> Iterator[HookServer]:
    server = HookServer()
    yield server
    server.close()


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    server = MailServer()
    yield server
    server.close()


def alarms(hook: HookServer, mail_server: MailServer | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "alarms.interval_s": 0.2,
        "alarms.lost_after_s": LOST_S,
        "alarms.webhook_url": hook.url,
    }
    if mail_server is not None:
        found |= {
            "alarms.smtp_host": "127.0.0.1",
            "alarms.smtp_port": mail_server.port,
            "alarms.smtp_security": "none",
            "alarms.mail_from": "holdmq@example.org",
            "alarms.mail_to": '["ops@example.org"]',
        }
    return found


def told(hook: HookServer) -> tuple[str, str, str]:
    """The next document's one notice: state, kind, name."""
    (one,) = hook.next()["alarms"]
    return one["state"], one["kind"], one["name"]


def nothing_more(hook: HookServer) -> bool:
    try:
        hook._posts.get(timeout=LOST_S + 1)
    except queue.Empty:
        return True
    return False


def sees(stack: Stack, processes: int) -> bool:
    return f"holdmq_registry_processes {processes}.0" in stack.http("registry", "/metrics")[1]


def listed(stack: Stack) -> list[tuple[str, str, str, bool]]:
    """What `holdmq alarm list --over` lists: who tells, kind, name, whether it is over."""
    words = [
        "alarm",
        "list",
        "--over",
        "--json",
        "--set",
        f"client.registries={json.dumps([stack.registry])}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "holdmq.cli", *words], capture_output=True, text=True, check=True, timeout=60
    )
    return [(one["broker"], one["kind"], one["name"], one["ended_ms"] > 0) for one in json.loads(done.stdout)]


def kill(stack: Stack, name: str) -> None:
    process = stack.processes.pop(name)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_broker_and_a_killed_gateway_are_told_once_each_and_so_are_their_returns(
    holdmq_stack: StackMaker, hook: HookServer, mail_server: MailServer
) -> None:
    it = holdmq_stack(**alarms(hook, mail_server))
    wait_until(lambda: sees(it, 2), "all are watched")
    kill(it, "broker")
    assert told(hook) == ("raised", "broker_lost", "broker-0")
    assert "raised: broker lost of broker-0" in mail_server.next()["Subject"]
    teller = f"registry 127.0.0.1:{it.registry_port}"
    assert listed(it) == [(teller, "broker_lost", "broker-0", False)], "no broker lives, and it is listed"
    it.start("broker")
    assert told(hook) == ("over", "broker_lost", "broker-0")
    assert "over: broker lost of broker-0" in mail_server.next()["Subject"]
    kill(it, "gateway")
    state, kind, name = told(hook)
    assert (state, kind) == ("raised", "gateway_lost")
    assert name.endswith(f":{it.mqtt_port}"), "two workers are one gateway"
    assert nothing_more(hook)
    assert listed(it) == [(teller, kind, name, False), (teller, "broker_lost", "broker-0", True)]
    # The registry starts again: what it told is not told again, and that it is over is.
    it.stop("registry")
    it.start("registry")
    assert nothing_more(hook)
    it.start("gateway")
    assert told(hook) == ("over", "gateway_lost", name)


def test_what_is_stopped_in_order_raises_nothing(holdmq_stack: StackMaker, hook: HookServer) -> None:
    it = holdmq_stack(**alarms(hook))
    wait_until(lambda: sees(it, 2), "all are watched")
    for name in ("gateway", "broker"):
        it.stop(name)
    wait_until(
        lambda: "holdmq_registry_processes 0.0" in it.http("registry", "/metrics")[1], "they have left"
    )
    assert "holdmq_registry_processes_lost 0.0" in it.http("registry", "/metrics")[1]
    assert nothing_more(hook)


def test_a_registry_that_loses_all_at_once_says_that_it_sees_nobody(
    holdmq_stack: StackMaker, hook: HookServer
) -> None:
    it = holdmq_stack(**{**alarms(hook), "alarms.lost_after_s": 5})
    wait_until(lambda: sees(it, 2), "all are watched")
    kill(it, "gateway")  # its workers end a little later
    wait_until(lambda: sees(it, 1), "the gateway is gone")
    kill(it, "broker")
    assert told(hook) == ("raised", "cannot_see", "cluster")
    assert nothing_more(hook)


def test_a_second_registry_tells_that_the_first_died_and_goes_on_with_what_that_told(
    tmp_path: Path, hook: HookServer
) -> None:
    ports = [free_port(), free_port()]
    names = [f"127.0.0.1:{port}" for port in ports]
    stacks = []
    for index, port in enumerate(ports):
        directory = tmp_path / str(index)
        directory.mkdir()
        given = {**alarms(hook), "registry.port": port, "client.registries": json.dumps(names)}
        stacks.append(Stack(directory, given))
    first, second = stacks
    try:
        first.start("registry")
        first.start("broker")
        time.sleep(0.01)  # whoever runs for longest is on duty
        second.start("registry")
        for stack in stacks:
            wait_until(lambda stack=stack: sees(stack, 1), "the broker is watched")
        kill(first, "broker")
        posted = hook.next()
        assert posted["broker"] == f"registry {names[0]}"
        assert [one["kind"] for one in posted["alarms"]] == ["broker_lost"]
        assert nothing_more(hook), "the other registry knows it as well, and is silent"
        kill(first, "registry")
        posted = hook.next()
        assert posted["broker"] == f"registry {names[1]}"
        assert [(one["kind"], one["name"]) for one in posted["alarms"]] == [("registry_lost", names[0])]
        first.start("broker")
        assert told(hook) == ("over", "broker_lost", "broker-0")
        first.start("registry")
        assert told(hook) == ("over", "registry_lost", names[0])
        # Stopped in order it is not missed.
        first.stop("registry")
        assert nothing_more(hook)
    finally:
        end_all(stacks)


def test_the_only_registry_that_is_killed_is_told_by_a_broker_and_one_that_stops_is_not(
    holdmq_stack: StackMaker, hook: HookServer
) -> None:
    it = holdmq_stack(("registry", "broker"), **alarms(hook))
    kill(it, "registry")
    posted = hook.next()
    assert posted["broker"] == "broker-0"
    (alarm,) = posted["alarms"]
    assert (alarm["state"], alarm["kind"], alarm["name"]) == ("raised", "registry_lost", it.registry)
    it.start("registry")
    assert told(hook) == ("over", "registry_lost", it.registry)
    wait_until(lambda: sees(it, 1), "the broker is registered again")
    it.stop("registry")
    assert nothing_more(hook)
    it.start("registry")


def test_a_killed_spark_job_is_told_and_one_that_stops_is_not(
    holdmq_stack: StackMaker, hook: HookServer
) -> None:
    it = holdmq_stack(("registry", "broker"), **alarms(hook))
    it.start("stats")
    wait_until(lambda: sees(it, 2), "the job is watched")
    kill(it, "stats")
    assert told(hook) == ("raised", "spark_lost", str(it.directory / "stats"))
    it.start("stats")
    assert told(hook) == ("over", "spark_lost", str(it.directory / "stats"))
    it.stop("stats")
    assert nothing_more(hook)
