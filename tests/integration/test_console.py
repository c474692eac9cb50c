"""A fleet of the load test through a real installation, and the console's word on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from processes import free_port

from loadtest.plan import FleetPlan, PublishPlan
from loadtest.processes import run


def wait_for(client: httpx.Client, path: str, holds: Callable[[Any], bool]) -> Any:
    """Return the answer of `path` once `holds` is true of it."""
    deadline = time.monotonic() + 60
    seen: Any = None
    while time.monotonic() < deadline:
        try:
            seen = client.get(path).json()
        except httpx.TransportError as error:
            seen = error
        else:
            if holds(seen):
                return seen
        time.sleep(0.1)
    pytest.fail(f"{path} answers {seen}")


def counted(answer: Any) -> list[tuple[str, int, int]]:
    """Topics, and the messages that came and that are there."""
    return [(t["topic"], t["messages_in"], t["messages_stored"]) for t in answer.get("topics", ())]


def test_the_console_shows_topics_brokers_gateways_and_connections(holdmq_stack: Any) -> None:
    port, admin_port = free_port(), free_port()
    stack = holdmq_stack(**{"console.port": port, "console.admin_port": admin_port})
    stack.start("console", wait=False)
    plan = PublishPlan(FleetPlan("127.0.0.1", stack.mqtt_port, 8, 0, mqtt="5"), count=400, seconds=100)
    tally = run(plan, processes=1)
    assert tally.acknowledged == 400
    assert not tally.failures
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=40) as client:
        # What the console shows may be some seconds old.
        wait_for(client, "/api/v1/topics", lambda a: counted(a) == [("devices", 400, 400)])
        brokers = wait_for(client, "/api/v1/brokers", lambda a: bool(a.get("brokers")))["brokers"]
        assert [(b["broker"], b["reachable"], b["writable"]) for b in brokers] == [("broker-0", True, True)]
        wait_for(
            client, "/api/v1/brokers", lambda a: a.get("brokers", [{}])[0].get("log_bytes", 0) > 400 * 100
        )
        wait_for(
            client,
            "/api/v1/gateways",
            lambda a: [g["brokers"] for g in a.get("gateways", ())] == [["broker-0"]] * 2,
        )
        wait_for(
            client,
            "/api/v1/connections",
            lambda a: {"gateway", "console"} <= {row["role"] for row in a.get("connections", ())},
        )
        stack.stop("broker")
        gone = wait_for(
            client,
            "/api/v1/brokers",
            lambda a: not a.get("brokers") or not a["brokers"][0]["reachable"],
        )
        assert gone["notice"]
