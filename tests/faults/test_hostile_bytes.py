"""Changed bytes against each parser that a stranger reaches: refused properly, in bounded work and memory.

`make test` gives each parser some thousand inputs; the long form, a million in all, is
`HOSTILE_INPUTS=75000 .venv/bin/pytest -s --timeout 3600 tests/faults/test_hostile_bytes.py`.
MQTT packets are changed in tests/integration/test_mqtt_fuzz.py, against a whole gateway.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack
import pytest
from hostile_bytes import Target, give
from structlog.testing import capture_logs

from broker.mqtt_shares.core.records import RestoredShares
from broker.sessions.core.rows import Meta, decode_meta
from broker.shared_groups.core.records import RestoredShared
from gateway.access.core.acl import REPLAY, AclError, AclRules
from gateway.edge.core.proxy_protocol import ProxyError, ProxyParser
from gateway.edge.core.websocket import CLOSED, WebSocket, WebSocketRules
from gateway.session.scram import ScramError, ScramServer, Verifier
from holdmq.errors import RecordError, WireError
from holdmq.service.admin import AdminServer
from holdmq.service.host_rule import AllowedHosts
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import Command, decode_command
from holdmq.wire.frame import FrameDecoder, encode_frame
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import HelloRequest, ProduceRequest, ProduceRun, PullQueue
from holdmq.wire.session_headers import Content, decode_content
from holdmq.wire.session_state import FilterOptions, SessionState, decode_options, decode_state
from holdmq.wire.session_will import SessionWill, decode_will

INPUTS: Final = int(os.environ.get("HOSTILE_INPUTS", "2000"))
FRAME_MAX_BYTES: Final = 1 << 20

pytestmark = pytest.mark.timeout(3600 if INPUTS > 10_000 else 240)


def checked(target: Target, seed: int = 1) -> None:
    told = give(target, INPUTS, seed)
    print(
        f"\n{INPUTS} inputs: {told.taken} taken, {told.refused} refused, at most {told.peak_bytes >> 10} KiB"
    )
    assert told.taken, "some inputs were as they should be, so that what follows a parse was reached"
    assert told.refused


def packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


# What msgpack has that no message of ours needs, and what costs most for its bytes.
_TIMESTAMP = b"\xd6\xff" + struct.pack(">I", 7)
HOSTILE_VALUES: Final = [
    b"\x81" + _TIMESTAMP + b"\x01",
    b"\xde\x03\xe8" + b"".join(b"\xd7\xff" + struct.pack(">Q", n << 34) + b"\xc0" for n in range(1000)),
    b"\xde\x03\xe8" + b"".join(b"\xcf" + struct.pack(">Q", n * ((1 << 61) - 1)) + b"\xc0" for n in range(8)),
    b"\xdd" + struct.pack(">I", 200) + b"\x90" * 200,
    b"\xdd" + struct.pack(">I", 200) + b"\x80" * 200,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x91" * 2000,
    b"\x81\xa1k" * 2000,
]
LARGE_VALUES: Final = [
    b"\xdd" + struct.pack(">I", 50_000) + b"\x90" * 50_000,
    b"\xdd" + struct.pack(">I", 50_000) + b"\x80" * 50_000,
    b"\xdf"
    + struct.pack(">I", 5000)
    + b"".join(b"\xd7\xff" + struct.pack(">Q", n << 34) + b"\xc0" for n in range(5000)),
]
MSGPACK_TOKENS: Final = [
    b"\x80", b"\x90", b"\x91", b"\x9f", b"\xa0", b"\xa1a", b"\xc0", b"\xc1", b"\xc2", b"\xc3", b"\xc4\x00",
    b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf8" + bytes(6), b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7),
    b"\xdc\xff\xff", b"\xde\xff\xff", b"\xd9\xff", _TIMESTAMP, b"\xc7\x0c\xff" + bytes(12), b"\xd4\x05\x00",
    *HOSTILE_VALUES[5:9],
]  # fmt: skip


def _headers() -> list[type[Header]]:
    found: list[type[Header]] = []
    left: list[type[Header]] = [Header]
    while left:
        # Other tests have headers of their own.
        for kind in left.pop().__subclasses__():
            left.append(kind)
            # A class with slots is made anew by its decorator: the first one is nobody's.
            if (
                kind.__module__.startswith("holdmq.")
                and getattr(sys.modules[kind.__module__], kind.__name__) is kind
            ):
                found.append(kind)
    return found


def _frame(code: int, ext: dict[str, Any], body: bytes = b"") -> bytes:
    return b"".join(encode_frame(Command(code, 1, ext_fields=ext), [body], len(body)))


def _framed(header: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header), len(header)) + header


def _command_with(value: bytes) -> bytes:
    return b"\x97\x0a\xa6python\x01\x01\x00\xa0" + value


RUN = ProduceRun("a/b", 3, 2, 77, 1, 0)
FRAMES: Final = [
    _frame(RequestCode.HELLO, HelloRequest(1, "client", "c-1", "fuzz").to_ext()),
    _frame(RequestCode.PRODUCE, ProduceRequest(7, [RUN], True).to_ext(), b"x" * 100),
    _frame(RequestCode.PULL, {"queues": [PullQueue("a", 0, 1, 9)], "max_bytes": 1 << 20, "hold_ms": 10}),
    _frame(RequestCode.HEARTBEAT, {"state": {"deep": {"er": [1, 2.5, None, True, b"\xff"]}}}),
    b"".join(_frame(RequestCode.HEARTBEAT, {"state": {}}) for _ in range(20)),
    *(_framed(_command_with(value)) for value in HOSTILE_VALUES),
]


def test_frames_of_the_rpc() -> None:
    kinds = _headers()
    assert len(kinds) > 40, "the headers of every request are known"
    rng = random.Random(5)

    def parse(data: bytes) -> None:
        decoder = FrameDecoder(FRAME_MAX_BYTES)
        at = rng.randrange(len(data) + 1)
        for part in (data[:at], data[at:]):
            for command, _ in decoder.receive_data(part):
                kind = rng.choice(kinds)
                for header in (HelloRequest, ProduceRequest, kind):
                    try:
                        made = header.from_ext(command.ext_fields)
                        if isinstance(made, ProduceRequest):
                            rows(ProduceRun, made.runs)
                    except WireError:
                        continue

    large = [_framed(_command_with(value)) for value in LARGE_VALUES]
    checked(Target(parse, FRAMES, [*MSGPACK_TOKENS, b"runs", b"queues", b"state"], (WireError,), large))


def test_headers_of_the_rpc() -> None:
    values = [_command_with(value) for value in (*HOSTILE_VALUES, b"\x81\xa1k\x91\x01", b"\x80")]
    large = [_command_with(value) for value in LARGE_VALUES]
    checked(Target(decode_command, values, MSGPACK_TOKENS, (WireError,), large))


WILL = SessionWill(5, 1, "fuzz/will", 3, b"", b"gone", b"h" * 8)
STATE = SessionState({"b": (1, 2)}, [], 7)
OPTIONS = FilterOptions(1, False, True, 2, 9, {"b": (1, 2)}, 3)


@pytest.mark.parametrize(
    ("parse", "seeds", "refusal"),
    [
        pytest.param(decode_will, [WILL.encode()], WireError, id="will"),
        pytest.param(
            decode_state,
            [
                STATE.encode(),
                packed(
                    [
                        1,
                        {"b": [1, 2]},
                        [[3, "b", 1, 2, [5, 6], True, "t"]],
                        7,
                        [[1, 2], [], [1, 9], {"t": ["b", 1]}],
                    ]
                ),
                packed([1, {}, [], 7, None, [4, [["f", {"b": [1, "x"]}]]]]),
            ],
            WireError,
            id="state",
        ),
        pytest.param(decode_options, [OPTIONS.encode()], WireError, id="options"),
        pytest.param(
            decode_content,
            [Content(STATE.encode(), [("a/#", OPTIONS.encode())]).encode()],
            WireError,
            id="content",
        ),
        pytest.param(decode_meta, [Meta(60, 1, "ada", 3, 4, 5).encode()], RecordError, id="meta"),
        pytest.param(
            lambda data: RestoredShared().apply_body(data),
            [packed([["g", "t", 1, 5, [7, 2], [9, 1, 3]]]), packed([["g", "t", 1, -1, [], []]])],
            RecordError,
            id="shared",
        ),
        pytest.param(
            lambda data: RestoredShares().apply_body(data),
            [
                packed(
                    [
                        [0, "g", 5],
                        [1, "g", "h", 1, 2, 3],
                        [3, "g", "h", [7, 8]],
                        [4, "g", [9]],
                        [5, "g", [7]],
                        [6, "g"],
                    ]
                )
            ],
            RecordError,
            id="shares",
        ),
    ],
)
def test_what_sessions_and_groups_are_written_as(
    parse: Callable[[bytes], object], seeds: list[bytes], refusal: type[Exception]
) -> None:
    checked(Target(parse, [*seeds, *HOSTILE_VALUES], MSGPACK_TOKENS, (refusal,), LARGE_VALUES))


@pytest.mark.parametrize(
    ("parse", "data", "refusal"),
    [
        pytest.param(decode_content, packed([b"state", 3]), WireError, id="content"),
        pytest.param(decode_state, packed([1, {}, [[3, "b", 1, 2, None, True]], 7]), WireError, id="state"),
        pytest.param(RestoredShares().apply_body, packed([[[], "g"]]), RecordError, id="shares"),
        pytest.param(RestoredShared().apply_body, b"\x91" * 1000 + b"\x90", RecordError, id="deep shared"),
        pytest.param(RestoredShares().apply_body, b"\x91" * 1000 + b"\x90", RecordError, id="deep shares"),
    ],
)
def test_what_was_found_is_refused_by_name(
    parse: Callable[[bytes], object], data: bytes, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        parse(data)


def test_headers_of_proxies() -> None:
    v2 = b"\r\n\r\n\0\r\nQUIT\n"
    name = b"\x22\x00\x05ada.x"
    ssl = b"\x20" + struct.pack(">H", 5 + len(name)) + b"\x07\0\0\0\0" + name
    body4 = bytes([203, 0, 113, 7, 10, 0, 0, 5]) + struct.pack(">HH", 40000, 1883)
    body6 = bytes(range(32)) + struct.pack(">HH", 40000, 1883)
    seeds = [
        b"PROXY TCP4 203.0.113.7 10.0.0.5 40000 1883\r\nrest",
        b"PROXY TCP6 2001:db8::7 ::1 40000 1883\r\n",
        b"PROXY UNKNOWN anything\r\n",
        v2 + b"\x21\x11" + struct.pack(">H", len(body4)) + body4,
        v2 + b"\x21\x11" + struct.pack(">H", len(body4 + ssl)) + body4 + ssl,
        v2 + b"\x21\x21" + struct.pack(">H", len(body6 + ssl)) + body6 + ssl + b"rest",
        v2 + b"\x20\x00\x00\x00",
        v2 + b"\x21\x31" + struct.pack(">H", 216) + bytes(216),
    ]
    rng = random.Random(5)

    def parse(data: bytes) -> None:
        parser = ProxyParser()
        at = rng.randrange(len(data) + 1)
        for part in (data[:at], data[at:]):
            found = parser.feed(part)
            if found is not None:
                header, _ = found
                assert len(header.address) < 64
                assert 0 <= header.port < 1 << 16
                return

    checked(
        Target(
            parse,
            seeds,
            [b"PROXY ", b" TCP6 ", v2, b"::ffff:1.2.3.4", b"fe80::1%eth0", b"65536"],
            (ProxyError,),
        )
    )


def _masked(opcode: int, payload: bytes) -> bytes:
    length = (
        bytes([0x80 | len(payload)])
        if len(payload) < 126
        else b"\xfe" + struct.pack(">H", len(payload))
        if len(payload) < 1 << 16
        else b"\xff" + struct.pack(">Q", len(payload))
    )
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def test_websocket_requests_and_frames() -> None:
    request = (
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    frames = [
        _masked(2, b"ab" * 20), _masked(2, b"x" * 300), _masked(2, b"y" * 70_000), _masked(9, b"ping"),
        _masked(10, b""), _masked(8, struct.pack(">H", 1000) + b"bye"), b"\x02" + _masked(2, b"part")[1:],
        _masked(0, b"end"), b"\x82\xff" + b"\xff" * 8, b"\xc2\x80" + bytes(4), b"\x82\x7f" + bytes(8),
    ]  # fmt: skip
    seeds = [request, request + b"".join(frames), *(request + frame for frame in frames)]
    rng = random.Random(5)

    def parse(data: bytes) -> None:
        socket_ = WebSocket(WebSocketRules("/mqtt", frozenset(), 1 << 20, AllowedHosts()))
        at = rng.randrange(len(data) + 1)
        taken = 0
        for part in (data[:at], data[at:]):
            taken += len(socket_.receive_data(part))
            socket_.data_to_send()
            if socket_.violation is not None or socket_.state == CLOSED:
                raise ConnectionError
        assert taken <= len(data)

    tokens = [b"Host: a\r\n", b"Origin: null\r\n", b"\r\n\r\n", b"permessage-deflate", *frames]
    checked(Target(parse, seeds, tokens, (ConnectionError,)))


def test_scram_exchanges() -> None:
    verifier = Verifier(4096, b"s" * 16, b"k" * 32, b"v" * 32)
    seeds = [
        b"n,,n=ada,r=nonce\0c=biws,r=nonceserver,p=" + b"A" * 43 + b"=",
        b"n,,n=eve,r=nonce\0c=biws,r=nonceserver,p=" + b"A" * 43 + b"=",
        b"y,a=ada,n=ada,r=nonce",
        b"n,,n=a=2Cb=3D,r=x",
        "n,,n=ｆｕｌｌ ß ﷺ,r=x".encode(),
        "n,,n=אב,r=x".encode(),
        b"p=tls-unique,,n=ada,r=x",
    ]

    def parse(data: bytes) -> None:
        exchange = ScramServer({"ada": verifier}.get, lambda user: verifier, "server")
        for message in data.split(b"\0")[:3]:
            exchange.receive(message)
        assert not exchange.is_done, "no proof was right"

    tokens = [b"n,,", b",r=", b"c=biws", b",p=", b"=2C", b"=", "\u202e\u00ad\ufdfa".encode(), b"\0"]
    checked(Target(parse, seeds, tokens, (ScramError,)))


def test_permission_files() -> None:
    seeds = [
        b"topic read public/#\nuser ada\ntopic readwrite devices/+/x\nclientid %u:*\ntopic deny d/4/x\n",
        b"pattern clientid x*\npattern write devices/%c/telemetry\npattern readwrite users/%u/#\n",
        b"# nothing\n\nuser eve\ntopic replay history/#\n",
        b"pattern deny %u/%c/+\npattern read +/%u/#\n",
        b"topic " + b"a/" * 300 + b"#\n",
    ]
    asks = ["public/x", "devices/42/secret", "$SYS/x", "users/ada/y", "a/" * 100 + "b", "+/+/#", "#"]

    def parse(data: bytes) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise AclError(str(error)) from error
        rules = AclRules.parse(text)
        for user, client in (("", "c"), ("ada", "c-1"), ("+", "#"), ("$SYS", "%u")):
            for topic in asks:
                rules.may_subscribe(user, client, topic, REPLAY)
                rules.is_denied(user, client, topic)
                if "+" not in topic and "#" not in topic:
                    rules.may_publish(user, client, topic)

    tokens = [
        b"user ",
        b"clientid ",
        b"topic ",
        b"pattern ",
        b"deny ",
        b"%u",
        b"%c",
        b"/",
        b"#",
        b"+",
        b"$share/g/",
    ]
    checked(Target(parse, seeds, tokens, (AclError,)))


@pytest.fixture
def admin() -> Iterator[AdminServer]:
    holds = lambda: (True, "ready")  # noqa: E731 - two checks of one server
    server = AdminServer("127.0.0.1", 0, started=holds, ready=holds, alive=holds)
    yield server
    server.close()


def test_requests_of_the_admin_port(admin: AdminServer) -> None:
    seeds = [
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /readyz?x=%ff&y HTTP/1.0\r\n\r\n",
        b"POST /trace HTTP/1.1\r\nHost: localhost:9\r\nX-HoldMQ-Control: 1\r\nContent-Length: 3\r\n\r\nabc",
        b"HEAD / HTTP/1.1\r\nHost: [::1]\r\n\r\n",
        b"GET /healthz\r\n",
        b"GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n folded: yes\r\n\r\n",
    ]

    def parse(data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", admin.port)) as client:
            answer = b""
            # What is refused early may be closed before all of it is sent.
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_WR)
                while part := client.recv(1 << 16):
                    answer += part
            if not answer.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")):
                raise ConnectionError(answer[:100])

    tokens = [b"GET ", b" HTTP/1.1", b"\r\n\r\n", b"Host: ", b"Content-Length: -1\r\n", b"//", b"%00", b": "]
    with capture_logs() as told:
        checked(Target(parse, seeds, tokens, (ConnectionError,)))
    assert not [entry for entry in told if "failed" in entry["event"]], told[:3]
