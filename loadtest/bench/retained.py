"""Retained messages: how soon a subscription is answered, and whom that disturbs.

    python -m loadtest.bench.retained [--messages 100000] [--payload-bytes 100] [--qos 0 1] [--pings-ms 1]

One worker and one broker keep `--messages`: a part `a/N/b`, as many siblings `a/N/c/d`, a hundred `N/b`. Then
clients subscribe to `a/+/b`, `+/b`, `#` and one topic, one after the other, with each of `--qos`: the time to
the first message, to the last one, and the rate. Meanwhile another process pings the same worker every
`--pings-ms`: its slowest answer took at least as long as the longest stall of the event loop. Beside it stand
the slowest answer of an idle worker, and how long this one was ready to run while others had the cores: on a
machine that does other things too, tails are those of its scheduler.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdmq.mqtt import (
    MQTT_5,
    PUBACK,
    SERVER,
    AckRun,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    Properties,
    Publish,
    PublishRun,
    SubAck,
    Subscribe,
    Subscription,
    encode,
    encode_acks,
)
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import ChildProcess
from loadtest.figures import quantile
from loadtest.peers import Services, holdmq_services
from loadtest.swarm import open_client
from loadtest.usage import waited_s

WINDOW: Final = 500
SPREAD: Final = 100
"""Topics `N/b`, among all that begin with `a/`."""
PATIENCE_S: Final = 120.0
PING: Final = b"\xc0\x00"
IDLE_S: Final = 3.0


class BlockingClient:
    """A blocking MQTT 5 client that acknowledges what it gets."""

    def __init__(self, address: str, name: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes), 1 << 24, sender=SERVER, version=MQTT_5)
        self.send(Connect(name, MQTT_5, clean_start=True, keep_alive=600, properties=Properties()))
        while not any(isinstance(item, ConnAck) for item in self.receive()):
            continue

    def send(self, *packets: Packet) -> None:
        """Send packets with one write."""
        self._socket.sendall(b"".join(encode(packet, MQTT_5) for packet in packets))

    def receive(self) -> list[Any]:
        """What comes next, runs as the decoder gives them."""
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the gateway closed the connection")
        return list(self._decoder.feed(data))

    def acknowledge(self, run: PublishRun[bytes]) -> None:
        """Answer the QoS 1 messages of a run."""
        ids = [message[2] for message in run.messages if message[1] & 6]
        if ids:
            self._socket.sendall(encode_acks(PUBACK, ids))

    def close(self) -> None:
        """Cut the connection without DISCONNECT."""
        self._socket.close()


class RetainedFigures(NamedTuple):
    """Of one subscription: messages, and seconds from SUBSCRIBE to SUBACK, first and last message."""

    messages: int
    suback_s: float
    first_s: float
    last_s: float


def topics_of(count: int) -> list[str]:
    """Return the topics whose messages are kept."""
    half = (count - SPREAD) // 2
    topics = [f"a/{n}/b" for n in range(count - SPREAD - half)] + [f"a/{n}/c/d" for n in range(half)]
    return topics + [f"{n}/b" for n in range(SPREAD)]


def keep(address: str, topics: list[str], payload: bytes) -> float:
    """Publish all topics' messages with RETAIN and QoS 1; seconds until the last acknowledgement."""
    client = BlockingClient(address, "keeper")
    began = time.perf_counter()
    sent = acked = 0
    while acked < len(topics):
        part = topics[sent : sent + WINDOW - (sent - acked)]
        if part:
            client.send(
                *[
                    Publish(topic, payload, 1, retain=True, packet_id=(sent + at) % 65_000 + 1)
                    for at, topic in enumerate(part)
                ]
            )
            sent += len(part)
        for item in client.receive():
            acked += len(item.packet_ids) if isinstance(item, AckRun) else 1
    client.close()
    return time.perf_counter() - began


def ask(address: str, topic_filter: str, qos: int, expected: int) -> RetainedFigures:
    """Subscribe, and take the whole answer."""
    client = BlockingClient(address, "subscriber")
    began = time.perf_counter()
    client.send(Subscribe(1, [Subscription(topic_filter, qos)]))
    suback_s = first_s = last_s = 0.0
    count = 0
    while count < expected or not suback_s:
        items = client.receive()
        now = time.perf_counter() - began
        for item in items:
            if isinstance(item, SubAck):
                suback_s = now
            elif isinstance(item, PublishRun):
                first_s = first_s or now
                count += len(item)
                last_s = now
                client.acknowledge(item)
    client.close()
    return RetainedFigures(count, suback_s, first_s, last_s)


def ping(pipe: Any, address: str, every_s: float) -> None:
    """In a process of its own: ping until told to stop; sends how long each answer took, in seconds."""
    with open_client(address, "pinger") as client:
        took: list[float] = []
        pipe.send("ready")
        while not pipe.poll():
            began = time.perf_counter()
            client.sendall(PING)
            client.recv(16)
            now = time.perf_counter()
            took.append(now - began)
            time.sleep(max(0.0, every_s - (now - began)))
        pipe.send(took)


@contextlib.contextmanager
def pinging(address: str, every_s: float) -> Iterator[list[float]]:
    """Pings meanwhile; the list is filled at the end."""
    child = ChildProcess(ping, address, every_s)
    took: list[float] = []
    try:
        child.told()
        yield took
        child.tell("stop")
        took += child.told()
    finally:
        child.end()


def _pings(took: list[float]) -> str:
    ordered = sorted(took)
    p99_ms, most_ms = quantile(ordered, 0.99) * 1e3, quantile(ordered, 1) * 1e3
    return f"pings p99 {p99_ms:5.2f} ms, slowest {most_ms:6.2f} ms"


def ask_all(services: Services, options: Options) -> None:
    """Keep messages, then ask for them."""
    topics = topics_of(options.messages)
    took_s = keep(services.address, topics, os.urandom(options.payload_bytes))
    say(f"kept {len(topics):,}: {len(topics) / took_s:,.0f}/s, window {WINDOW}, {took_s:.1f} s")
    (worker,) = services.workers()
    every_s = options.pings_ms / 1e3
    with pinging(services.address, every_s) as took:
        time.sleep(IDLE_S)
    say(f"{'idle':>10} {'':56} {_pings(took)}")
    half = sum(topic.endswith("/b") and topic.startswith("a/") for topic in topics)
    wanted = {"a/+/b": half, "+/b": SPREAD, "#": len(topics), topics[0]: 1}
    for qos in options.qos:
        for topic_filter, expected in wanted.items():
            waited = waited_s(worker)
            with pinging(services.address, every_s) as took:
                answer = ask(services.address, topic_filter, qos, expected)
            waited = waited_s(worker) - waited
            rate = answer.messages / answer.last_s
            first_ms = answer.first_s * 1e3
            say(
                f"{topic_filter:>10} QoS {qos}: first {first_ms:7.1f} ms, all {answer.messages:>7,} "
                f"in {answer.last_s:6.2f} s, {rate:>7,.0f}/s; {_pings(took)}, "
                f"no core for {waited * 1e3:.0f} ms"
            )


def measure(options: Options, home: Path) -> None:
    """Start the servers, keep messages there, and ask for them."""
    with holdmq_services(home, "gateway.workers=1") as services:
        ask_all(services, options)


def main() -> int:
    """Run the benchmark and print its figures; the exit code."""
    command = BenchCommand(__doc__, messages=100_000, payload_bytes=100, pings_ms=1.0)
    command.add("--qos", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    return command.run(measure)


if __name__ == "__main__":
    sys.exit(main())
