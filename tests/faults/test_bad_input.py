"""What nobody should send, and what nobody should start with: refused in a sentence, counted, harmless."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from broker_stack import make_record, produce_body
from processes import Stack, wait_until

from holdmq.client.sync import SyncProducer
from holdmq.errors import Code, RemoteError
from holdmq.message import Message
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import Command
from holdmq.wire.frame import encode_frame
from holdmq.wire.headers import Empty, ProduceRequest, ProduceRun

SCANS = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(64),
    "a header longer than its frame": struct.pack(">II", 100, 4000) + bytes(100),
    "a frame of 3 GB": struct.pack(">II", 3_000_000_000, 10),
    "a header that is no msgpack": struct.pack(">II", 14, 10) + b"\xc1" * 10,
    "a header of the wrong shape": struct.pack(">II", 5, 1) + msgpack.packb(7),
}
REFUSED = "holdmq_broker_connections_refused_total"


def is_closed_by(port: int, data: bytes) -> bool:
    """Send bytes; whether the server then ends the connection."""
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.settimeout(40)
        s.sendall(data)
        try:
            while s.recv(4096):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
    return True


def test_a_broker_refuses_what_is_no_rpc_and_goes_on_for_everybody_else(
    holdmq_stack: Callable[..., Stack],
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    with SyncProducer([stack.registry]) as producer:
        producer.send(Message("devices", b"before"))
        for count, (what, data) in enumerate(SCANS.items(), 1):
            assert is_closed_by(stack.broker_port, data), what
            wait_until(
                lambda count=count: stack.metric("broker", REFUSED) == count,  # type: ignore[misc]
                f"{what} is counted",
            )
        assert "connection refused" in stack.log("broker")
        with socket.create_connection(("127.0.0.1", stack.broker_port)) as silent:
            silent.sendall(struct.pack(">I", 40))
            result = producer.send(Message("devices", b"after"))
            assert result.queue.broker == "broker-0"
            silent.settimeout(40)
            assert silent.recv(4096) == b""
        assert "no HELLO within 10" in stack.log("broker")
        wait_until(lambda: stack.metric("broker", REFUSED) == len(SCANS) + 1, "the silent one is counted")
        producer.send(Message("devices", b"later"))


def test_requests_that_make_no_sense_are_answered_and_the_connection_lives(
    holdmq_stack: Callable[..., Stack],
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))

    async def refused(client: Client, code: RequestCode, *call: object) -> RemoteError:
        with pytest.raises(RemoteError) as raised:
            await client.call(code, *call)  # type: ignore[arg-type]
        return raised.value

    async def run() -> None:
        client = Client(f"127.0.0.1:{stack.broker_port}", "client", "odd")
        unknown = await refused(client, RequestCode.CLUSTER_GET, Empty(), 60.0)
        assert unknown.code == Code.UNKNOWN_REQUEST
        assert str(int(RequestCode.CLUSTER_GET)) in unknown.remark
        missing = await refused(client, RequestCode.PULL, Empty(), 60.0)
        assert missing.code == Code.MISSING_FIELD
        assert "queues" in missing.remark
        with SyncProducer([stack.registry]) as producer:
            await asyncio.to_thread(producer.send, Message("devices", b"x"))
        record = make_record("devices", 0, b"payload")
        body = produce_body([struct.pack(">I", len(record) + 1) + record[4:]])
        request = ProduceRequest(zlib.crc32(body), [ProduceRun("devices", 0, 1, 1, 1, 0)])
        wrong = await refused(client, RequestCode.PRODUCE, request, 60.0, [body], len(body))
        assert wrong.code == Code.MALFORMED_BATCH
        assert "record 0" in wrong.remark
        assert client.connection is not None
        assert not client.connection.is_closed
        await client.close()

    asyncio.run(run())


def test_a_first_request_other_than_hello_is_refused(holdmq_stack: Callable[..., Stack]) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    frame = b"".join(bytes(part) for part in encode_frame(Command(RequestCode.TOPIC_LIST, 1)))
    assert is_closed_by(stack.broker_port, frame)


@pytest.fixture
def stored(tmp_path: Path) -> Stack:
    """A stopped broker whose store has a topic and a message."""
    stack = Stack(tmp_path)
    stack.start("registry")
    stack.start("broker")
    with SyncProducer([stack.registry]) as producer:
        producer.send(Message("devices", b"kept"))
    assert stack.stop("broker") == 0
    assert stack.stop("registry") == 0
    return stack


def start_refused(stack: Stack) -> str:
    """Start the broker; it must end with exit code 1 and one sentence, which is returned."""
    assert stack.start("broker", wait=False).wait(40) == 1
    last = stack.log("broker").splitlines()[-1]
    assert "Traceback" not in stack.log("broker")
    sentence = json.loads(last)
    assert sentence["level"] == "error"
    return str(sentence["event"])


def test_a_corrupt_topic_json_is_refused_by_name_and_its_backup_only_taken_when_told(stored: Stack) -> None:
    path = stored.directory / "store" / "config" / "topic.json"
    text = path.read_text()
    path.write_text(text.replace("devices", "devicez", 1))
    assert "topic.json" in start_refused(stored)
    path.write_text(text[: len(text) // 2])
    assert "topic.json" in start_refused(stored)
    path.unlink()
    assert "topic.json" in start_refused(stored)
    path.write_text(text)
    stored.start("registry")
    stored.start("broker")
    assert stored.stop("broker") == 0
    assert stored.stop("registry") == 0


def test_a_data_directory_of_a_newer_format_is_refused_untouched(stored: Stack) -> None:
    path = stored.directory / "store" / "format.json"
    text = path.read_text()
    saved = json.loads(text)
    path.write_text(text.replace(f'"format":{saved["format"]}', '"format":99', 1))
    before = {p: p.read_bytes() for p in (stored.directory / "store" / "commitlog").iterdir()}
    sentence = start_refused(stored)
    assert "format" in sentence
    assert "99" in sentence
    assert {p: p.read_bytes() for p in (stored.directory / "store" / "commitlog").iterdir()} == before


def test_a_second_broker_on_the_same_directory_is_refused(stored: Stack) -> None:
    stored.start("registry")
    first = stored.start("broker")
    try:
        stored.broker_port = 0
        process = subprocess.run(
            [*map(str, first.args), "--set", "broker.port=0", "--set", "broker.admin_port=0"],  # type: ignore[union-attr]
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert process.returncode == 1
        assert b"another process has it open" in process.stderr
    finally:
        assert stored.stop("broker") == 0
        assert stored.stop("registry") == 0
