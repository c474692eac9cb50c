"""`holdmq ping`: what it takes for an answer, and what it says when there is none."""

from __future__ import annotations

import json
import socket
import threading

import pytest
from command_line import Cli
from processes import free_port

from holdmq.cli.ping import EchoProbe
from holdmq.errors import PeerError
from holdmq.mqtt import (
    MQTT_5,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Publish,
    PublishRun,
    SubAck,
    Subscribe,
    encode,
    encode_pubacks,
    publishes,
)


class Answering:
    """What a gateway would answer to the probe's bytes, as far as `skipped` lets it."""

    def __init__(self, skipped: frozenset[str] = frozenset()) -> None:
        self._decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes), 1 << 16)
        self._skipped = skipped
        self.user: str | None = None

    def answer(self, data: bytes) -> bytes:
        found = bytearray()
        for item in self._decoder.feed(data):
            if isinstance(item, Connect):
                self.user = item.username
                found += encode(ConnAck(reason_code=0), MQTT_5)
            elif isinstance(item, Subscribe):
                found += encode(SubAck(item.packet_id, [1]), MQTT_5)
            elif isinstance(item, PublishRun):
                for one in publishes(item):
                    again = Publish(one.topic, one.payload, 1, packet_id=9)
                    if "echo" not in self._skipped:
                        found += encode(again, MQTT_5)
                    if "ack" not in self._skipped:
                        found += encode_pubacks([one.packet_id])
        return bytes(found)


def exchange(probe: EchoProbe, gateway: Answering) -> None:
    """Let the two talk until neither has anything to say."""
    sent = probe.begin()
    while sent:
        sent = probe.receive(gateway.answer(sent))


def test_it_is_done_when_the_message_was_acknowledged_and_came_back() -> None:
    probe, gateway = EchoProbe("holdmq-ping", "meter-1", "secret"), Answering()
    exchange(probe, gateway)
    assert probe.is_done
    assert gateway.user == "meter-1"


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        ("ack", "does not acknowledge the message"),
        ("echo", "acknowledged the message and does not give it out"),
    ],
)
def test_it_says_what_the_gateway_has_not_done(skipped: str, said: str) -> None:
    probe = EchoProbe("holdmq-ping", None, None)
    exchange(probe, Answering(frozenset({skipped})))
    assert not probe.is_done
    assert probe.waits_for == said


def test_a_message_of_somebody_else_is_not_taken_for_its_own() -> None:
    probe = EchoProbe("holdmq-ping", None, None)
    probe.begin()
    probe.receive(encode(Publish("holdmq-ping", b"another's", 1, packet_id=1), MQTT_5) + encode_pubacks([1]))
    assert not probe.is_done


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ConnAck(reason_code=0x87), r"refuses CONNECT: not authorized \(0x87\)"),
        (SubAck(1, [0x87]), r"refuses SUBSCRIBE: not authorized"),
        (Disconnect(0x8B), r"ended the connection: server shutting down"),
    ],
)
def test_a_refusal_is_said_by_its_name(answer: ConnAck | SubAck | Disconnect, said: str) -> None:
    probe = EchoProbe("holdmq-ping", None, None)
    probe.begin()
    with pytest.raises(PeerError, match=said):
        probe.receive(encode(answer, MQTT_5))


def test_the_command_tells_that_a_message_came_back(holdmq: Cli) -> None:
    gateway = Answering()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                while data := peer.recv(65536):
                    peer.sendall(gateway.answer(data))

        thread = threading.Thread(target=serve)
        thread.start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        done = holdmq("ping", place, "--topic", "t/1", "--json")
        thread.join()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["gateway"], told["topic"]) == (place, "t/1")
    assert told["took_ms"] > 0


def test_where_nobody_listens_it_says_so(holdmq: Cli) -> None:
    done = holdmq("ping", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "no gateway answers at 127.0.0.1" in done.stderr


def test_a_place_that_is_none_is_refused(holdmq: Cli) -> None:
    done = holdmq("ping", "gateway:mqtt")
    assert done.returncode == 2
    assert "is no place; write HOST, HOST:PORT or [IPv6]:PORT" in done.stderr
