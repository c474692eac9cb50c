"""Processes that are killed: another one tells it, once, by mail and webhook."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes import Stack, wait_until
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
    it.start("broker")
    assert told(hook) == ("over", "broker_lost", "broker-0")
    assert "over: broker lost of broker-0" in mail_server.next()["Subject"]
    kill(it, "gateway")
    state, kind, name = told(hook)
    assert (state, kind) == ("raised", "gateway_lost")
    assert name.endswith(f":{it.mqtt_port}"), "two workers are one gateway"
    assert nothing_more(hook)
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
