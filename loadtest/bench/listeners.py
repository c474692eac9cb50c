"""What TLS and WebSocket cost a gateway's worker, for each connection: memory while idle, CPU to be accepted.

    python -m loadtest.bench.listeners --clients 2000

Starts registry, broker and a gateway with one worker and a listener of each kind in turn: plain, TLS with an
ECDSA and with an RSA 2048 certificate, WebSocket. Each gets `--clients` connections, which stay: idle, then
each publishes `--busy-kib` to itself. Memory is the worker's PSS, CPU the worker's; what a kind has beside
the plain one is what it costs. Last it checks a password as a worker's thread does, `--passwords` times. The
clients take turns with the worker on the same machine: only CPU and memory are measured, no time.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import secrets
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from holdmq.credentials.certificates import issue, make_authority
from holdmq.credentials.password_hash import hash_password, is_argon2_of
from holdmq.errors import StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.peers import free_port, holdmq_services
from loadtest.processes import raise_file_limit
from loadtest.usage import cpu_s

KIB: Final = 1024
SETTLED_S: Final = 2.0
"""After this a worker has answered and let go of what it does not keep."""
SOCKET_S: Final = 30.0
UPGRADE: Final = (
    "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
CONNACK: Final = b"\x20\x02\x00\x00"


class ListenerKind(NamedTuple):
    """A listener that is measured, and how its clients speak."""

    name: str
    kind: str
    cert: str


KINDS: Final = (
    ListenerKind("plain", "tcp", ""),
    ListenerKind("tls, ECDSA", "tls", "ecdsa"),
    ListenerKind("tls, RSA 2048", "tls", "rsa"),
    ListenerKind("websocket", "ws", ""),
)


class ConnectionCosts(NamedTuple):
    """What one connection of a kind costs a worker."""

    idle_kib: float
    busy_kib: float
    connect_ms: float


def make_rsa_certificate(directory: Path) -> None:
    """Make `rsa.pem` and `rsa-key.pem`, signed by itself: what it costs to prove it is what counts."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    (directory / "rsa.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "rsa-key.pem").touch(mode=0o600)
    (directory / "rsa-key.pem").write_bytes(written)


def string(text: str) -> bytes:
    """A string of MQTT."""
    return len(text).to_bytes(2, "big") + text.encode()


def packet(first: int, body: bytes) -> bytes:
    """A packet of MQTT: its first byte, its length, and the rest."""
    length, left = b"", len(body)
    while True:
        left, part = left >> 7, left & 0x7F
        length += bytes([part | (0x80 if left else 0)])
        if not left:
            return bytes([first]) + length + body


def framed(data: bytes) -> bytes:
    """A binary frame of a WebSocket client, masked with zeros."""
    size = len(data)
    if size < 126:
        head = bytes([0x82, 0x80 | size])
    elif size < 1 << 16:
        head = b"\x82\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x82\xff" + size.to_bytes(8, "big")
    return head + bytes(4) + data


class MeasuredClient:
    """A connection of one kind, with blocking calls."""

    def __init__(self, kind: ListenerKind, port: int, context: ssl.SSLContext, client_id: str) -> None:
        self._is_framed = kind.kind == "ws"
        self._topic = f"listeners/{client_id}"
        self._socket = socket.create_connection(("127.0.0.1", port), SOCKET_S)
        if kind.cert:
            self._socket = context.wrap_socket(self._socket)
        if self._is_framed:
            key = secrets.token_bytes(16).hex()[:22] + "=="
            self._socket.sendall(UPGRADE.format(port=port, key=key).encode())
            self._read_until(b"\r\n\r\n")
        self._send(packet(0x10, string("MQTT") + b"\x04\x02\x00\x00" + string(client_id)))
        self._read_until(CONNACK)

    def talk(self, body: bytes) -> None:
        """Subscribe to a topic of its own and publish to it; returns when the message has come."""
        self._send(packet(0x82, b"\x00\x01" + string(self._topic) + b"\x00"))
        self._read_until(b"\x90\x03\x00\x01\x00")
        sent = packet(0x30, string(self._topic) + body)
        self._send(sent)
        came = 0
        while came < len(sent):
            came += len(self._read())

    def close(self) -> None:
        """End the connection without a word."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        self._socket.sendall(framed(data) if self._is_framed else data)

    def _read_until(self, end: bytes) -> None:
        came = b""
        while not came.endswith(end):
            came += self._read()

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise StartupError("the gateway closed a connection")
        return data


def pss_kib(pid: int) -> float:
    """A process's memory, with its share alone of what it has in common with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1])
    return 0.0


def costs_of(clients: Callable[[int], MeasuredClient], count: int, pid: int, busy: bytes) -> ConnectionCosts:
    """Connect so many, keep them, and have each publish."""
    time.sleep(SETTLED_S)
    memory, cpu = pss_kib(pid), cpu_s(pid)
    kept = [clients(number) for number in range(count)]
    used = cpu_s(pid) - cpu
    time.sleep(SETTLED_S)
    idle = pss_kib(pid)
    for client in kept:
        client.talk(busy)
    time.sleep(SETTLED_S)
    found = ConnectionCosts((idle - memory) / count, (pss_kib(pid) - memory) / count, 1000 * used / count)
    for client in kept:
        client.close()
    return found


def password_ms(times: int) -> float:
    """The CPU that one check of a password takes: the median."""
    password = secrets.token_urlsafe().encode()
    hash_text = hash_password(password)
    taken = []
    for _ in range(times):
        began = time.thread_time()
        assert is_argon2_of(hash_text, password)
        taken.append(time.thread_time() - began)
    return 1000 * statistics.median(taken)


def measure(options: Options, directory: Path) -> None:
    """Measure each kind in a gateway of its own: what one has left behind is not the next one's."""
    raise_file_limit()
    certs = directory / "certs"
    certs.mkdir()
    make_authority(certs)
    issue(certs, "ecdsa", ("localhost",))
    make_rsa_certificate(certs)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    busy = secrets.token_bytes(options.busy_kib * KIB)
    results: dict[str, ConnectionCosts] = {}
    for kind in KINDS:
        port = free_port()
        listener: dict[str, object] = {"name": "measured", "kind": kind.kind, "port": port}
        if kind.cert:
            listener["tls_cert"] = str(certs / f"{kind.cert}.pem")
            listener["tls_key"] = str(certs / f"{kind.cert}-key.pem")
        place = directory / kind.name.replace(" ", "-")
        place.mkdir()
        settings = (f"gateway.listeners={json.dumps([listener])}", "gateway.workers=1", *options.set)
        with holdmq_services(place, *settings) as services:

            def client(number: int, kind: ListenerKind = kind, port: int = port) -> MeasuredClient:
                return MeasuredClient(kind, port, context, f"client-{number}")

            # What the first ones need once and for all, no connection costs.
            for number in range(options.first):
                first = client(options.clients + number)
                first.talk(busy)
                first.close()
            (pid,) = services.workers()
            results[kind.name] = costs_of(client, options.clients, pid, busy)
        gc.collect()
        found, plain = results[kind.name], results["plain"]
        say(
            f"{kind.name}: idle {found.idle_kib:.1f} KiB (+{found.idle_kib - plain.idle_kib:.1f}), "
            f"busy {found.busy_kib:.1f} KiB (+{found.busy_kib - plain.busy_kib:.1f}), "
            f"a connect {found.connect_ms:.2f} ms of CPU"
        )
    say(f"a password: {password_ms(options.passwords):.1f} ms of CPU")


def main() -> int:
    """Run the benchmark; the exit code."""
    command = BenchCommand(
        __doc__,
        clients=(2000, "connections of each kind"),
        first=(50, "connections before them, which are not counted"),
        busy_kib=(256, "what each publishes once"),
        passwords=(50, "checks of a password"),
    )
    command.add_settings()
    return command.run(measure)


if __name__ == "__main__":
    sys.exit(main())
