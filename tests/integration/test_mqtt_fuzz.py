"""Mutated packets against a gateway's process: it does not crash, hang or grow, and others notice nothing.

`make test` sends a few thousand; the long form is
`MQTT_FUZZ_PACKETS=1000000 .venv/bin/pytest -s --timeout 3600 tests/integration/test_mqtt_fuzz.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from mqtt_client import MqttClient
from mqtt_mutations import Mutator
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import MQTT_3_1, MQTT_3_1_1, MQTT_5

PACKETS = int(os.environ.get("MQTT_FUZZ_PACKETS", "6000"))
PER_STREAM = 20
AT_ONCE = 16
ANSWER_S = 0.3
"""How long a client waits for its CONNACK; whose CONNECT was cut waits in vain."""
END_S = 100.0
"""How long a connection may live after its client closed its half."""
GROWTH_BYTES = 24 << 20
"""What the worker may grow after the first quarter: tables fill up to their bounds."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {"gateway.workers": 1, "gateway.unauthenticated_s": 5, "gateway.log_connections": "false"}
    with running_stack(tmp_path_factory.mktemp("fuzz"), **settings) as stack:
        yield stack


async def _one(port: int, data: bytes) -> int:
    """Send a stream, close our half once there is an answer, and read to the end; how many bytes came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = 0
    try:
        writer.write(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                received = len(await reader.read(1 << 16))
        writer.write_eof()
        async with asyncio.timeout(END_S):
            while part := await reader.read(1 << 16):
                received += len(part)
    except (ConnectionError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
    finally:
        writer.close()
    return received


async def _send_all(port: int, streams: Iterator[bytes], progress: Any) -> int:
    answered = 0

    async def sender(lane: int) -> None:
        nonlocal answered
        own = b"fl%02d-" % lane  # client ids of its own: nobody takes another's session over
        for data in streams:
            received = await _one(port, data.replace(b"fuzz-", own, 1))
            answered += received > 0
            progress()

    async with asyncio.TaskGroup() as group:
        for lane in range(AT_ONCE):
            group.create_task(sender(lane))
    return answered


@pytest.mark.mqtt("MQTT-4.13.1-1")
@pytest.mark.timeout(3600 if PACKETS > 100_000 else 600)
@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_a_worker_survives_mutated_packets_and_does_not_grow(stack: Stack, version: int) -> None:
    port = stack.mqtt_port
    (worker,) = map(psutil.Process, stack.workers())
    steady = MqttClient(port, f"steady-{version}", clean=True, expiry_s=0)
    steady.subscribe(f"steady/{version}")
    sizes: list[int] = []
    total = -(-PACKETS // PER_STREAM)
    done = 0

    def progress() -> None:
        nonlocal done
        done += 1
        if done % max(1, total // 20) == 0:
            sizes.append(worker.memory_info().rss)
            steady.ping()

    began = time.monotonic()
    answered = asyncio.run(_send_all(port, Mutator(version, version).streams(PACKETS, PER_STREAM), progress))
    seconds = time.monotonic() - began
    steady.publish(f"steady/{version}", b"still here")
    assert [bytes(m.payload) for m in steady.take(1)] == [b"still here"]
    connections = 'holdmq_gateway_worker_connections{worker="0"}'
    wait_until(lambda: stack.metric("gateway", connections) == 1, "the steady client alone is connected")
    steady.disconnect()
    assert stack.metric("gateway", "holdmq_gateway_worker_restarts_total") == 0
    assert worker.is_running()
    for service in ("gateway", "broker"):
        assert "Traceback" not in stack.log(service), stack.log(service)[-4000:]
        assert '"exception"' not in stack.log(service)
    assert answered > total // 2, "most clients were answered: what they sent was looked at"
    after_warming = sizes[len(sizes) // 4]
    print(
        f"\nMQTT level {version}: {PACKETS} mutated packets in {total} connections and {seconds:.0f} s, "
        f"{answered} answered; resident {sizes[0] >> 10}, {after_warming >> 10}, {sizes[-1] >> 10} KiB"
    )
    assert sizes[-1] - after_warming < GROWTH_BYTES
