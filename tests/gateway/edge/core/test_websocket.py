from __future__ import annotations

import gc
import random

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gateway.edge.core import websocket
from gateway.edge.core.websocket import (
    CLOSED,
    CLOSING,
    CLOSING_READ_MAX_BYTES,
    GOING_AWAY,
    OPEN,
    OPENING,
    REQUEST_MAX_BYTES,
    WebSocket,
    rules_of,
)
from holdmq.service.host_rule import AllowedHosts

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\n"
    b"Host: gw.example:8083\r\n"
    b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n"
    b"\r\n"
)
HOSTS = AllowedHosts(["gw.example"])
RULES = rules_of("/mqtt", [], 4096, HOSTS)


def with_header(header: bytes) -> bytes:
    return REQUEST[:-2] + header + b"\r\n\r\n"


def frame(opcode: Opcode, data: bytes = b"", fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def opened() -> WebSocket:
    made = WebSocket(RULES)
    assert made.receive_data(REQUEST) == b""
    assert made.state == OPEN
    assert made.data_to_send().startswith(b"HTTP/1.1 101 ")
    return made


def close_code(sent: bytes) -> int:
    """The code of the Close frame that ends these bytes."""
    assert sent[0] == 0x88, sent
    return Close.parse(sent[2:]).code


# Opening


@pytest.mark.mqtt("MQTT-6.0.0-4")
def test_the_handshake_of_another_implementation_is_answered_to_its_liking() -> None:
    client = ClientProtocol(parse_uri("ws://gw.example/mqtt"), subprotocols=[Subprotocol("mqtt")])
    client.send_request(client.connect())
    server = WebSocket(RULES)
    for part in client.data_to_send():
        assert server.receive_data(part) == b""
    client.receive_data(server.data_to_send())
    (response,) = client.events_received()
    assert isinstance(response, Response)
    assert client.handshake_exc is None
    assert client.subprotocol == "mqtt"  # [MQTT-6.0.0-4]
    assert "Sec-WebSocket-Extensions" not in response.headers
    client.send_binary(b"\xc0\x00")
    assert server.receive_data(b"".join(client.data_to_send())) == b"\xc0\x00"
    client.receive_data(server.encode(b"\xd0\x00"))
    (pong,) = client.events_received()
    assert isinstance(pong, Frame)
    assert (pong.opcode, bytes(pong.data)) == (Opcode.BINARY, b"\xd0\x00")


def test_a_request_may_come_byte_by_byte_with_frames_at_its_end() -> None:
    server = WebSocket(RULES)
    found = b""
    for byte in REQUEST + frame(Opcode.BINARY, b"MQTT"):
        assert server.data_to_send() == b"" or server.state == OPEN
        found += server.receive_data(bytes([byte]))
    assert found == b"MQTT"
    assert opened().receive_data(b"") == b""
    server = WebSocket(RULES)
    assert server.receive_data(REQUEST + frame(Opcode.BINARY, b"MQTT")) == b"MQTT"


def test_compression_is_not_taken_when_it_is_offered() -> None:
    server = WebSocket(RULES)
    server.receive_data(with_header(b"Sec-WebSocket-Extensions: permessage-deflate"))
    assert server.state == OPEN
    assert b"permessage-deflate" not in server.data_to_send()


@pytest.mark.mqtt("MQTT-6.0.0-4")
@pytest.mark.parametrize("offered", [b"mqttv3.1", b"other, mqttv3.1", b"mqttv3.1,mqtt"])
def test_the_subprotocols_of_mqtt_are_known(offered: bytes) -> None:
    server = WebSocket(RULES)
    server.receive_data(REQUEST.replace(b"Protocol: mqtt", b"Protocol: " + offered))
    chosen = b"mqtt" if offered.endswith(b",mqtt") else b"mqttv3.1"
    assert b"Sec-WebSocket-Protocol: " + chosen + b"\r\n" in server.data_to_send()


@pytest.mark.parametrize(
    ("request_bytes", "status", "sentence"),
    [
        (REQUEST.replace(b"/mqtt", b"/other"), 404, "the path is /mqtt"),
        (REQUEST.replace(b"Sec-WebSocket-Protocol: mqtt\r\n", b""), 400, "no subprotocol mqtt"),
        (REQUEST.replace(b"Protocol: mqtt", b"Protocol: chat"), 400, "no subprotocol mqtt"),
        (REQUEST.replace(b"Upgrade: websocket\r\n", b""), 426, "Upgrade"),
        (REQUEST.replace(b"Version: 13", b"Version: 8"), 400, "Sec-WebSocket-Version"),
        (REQUEST.replace(b"Key: dGhl", b"Key: ZG"), 400, "Sec-WebSocket-Key"),
        (REQUEST.replace(b"Key: dGhl", b"Key: \xff\xfe"), 400, "no ASCII"),
        (REQUEST.replace(b"GET", b"POST"), 400, "GET"),
        (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "HTTP/1.1"),
        (REQUEST.replace(b"Host: gw.example:8083\r\n", b""), 400, "Host"),
        (b"\x16\x03\x01\x02\0\r\n\r\n", 400, "no WebSocket request"),
        (with_header(b"Origin: https://a\r\nOrigin: https://b"), 400, "Origin"),
        (with_header(b"Host: gw.example:8083"), 400, "one Host"),
        (REQUEST.replace(b"gw.example:8083", b""), 421, "security.hosts"),
        (REQUEST.replace(b"/mqtt", b"gw.example:8083"), 400, "neither a path"),
        (REQUEST.replace(b"/mqtt", b"http://evil.example/mqtt"), 421, "'evil.example' is no name"),
        (REQUEST.replace(b"/mqtt", b"http://gw.example/other"), 404, "the path is /mqtt"),
        (with_header(b"X: " + b"y" * 9000), 400, "no WebSocket request"),
        (b"GET /mqtt HTTP/1.1\r\n" + b"X: y\r\n" * 3000, 431, f"more than {REQUEST_MAX_BYTES}"),
    ],
)
def test_a_request_that_is_none_of_ours_is_refused_with_status_and_sentence(
    request_bytes: bytes, status: int, sentence: str
) -> None:
    server = WebSocket(RULES)
    assert server.receive_data(request_bytes) == b""
    assert server.state == CLOSED
    assert server.violation is not None
    assert server.violation.reason == "websocket_handshake"
    assert sentence in server.violation.sentence
    answer = server.data_to_send()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close" in answer
    assert server.receive_data(frame(Opcode.BINARY, b"x")) == b""
    assert server.encode(b"x") == b""


def test_a_query_in_the_url_is_not_part_of_the_path() -> None:
    server = WebSocket(RULES)
    server.receive_data(REQUEST.replace(b"/mqtt", b"/mqtt?token=1"))
    assert server.state == OPEN


@pytest.mark.parametrize(
    ("allowed", "origin", "is_admitted"),
    [
        ([], b"http://gw.example:8083", True),
        ([], b"https://gw.example:8083", True),
        ([], b"http://gw.example", False),
        ([], b"https://evil.example", False),
        ([], b"null", False),
        ([], b"http://[", False),
        (["*"], b"https://evil.example", True),
        (["https://app.example"], b"https://APP.example", True),
        (["https://app.example"], b"https://gw.example:8083", False),
        (["https://app.example"], b"http://app.example", False),
    ],
)
def test_pages_connect_from_origins_that_are_allowed(
    allowed: list[str], origin: bytes, is_admitted: bool
) -> None:
    server = WebSocket(rules_of("/mqtt", allowed, 4096, HOSTS))
    server.receive_data(with_header(b"Origin: " + origin))
    assert (server.state == OPEN) is is_admitted
    if not is_admitted:
        assert server.data_to_send().startswith(b"HTTP/1.1 403 ")


REBOUND = REQUEST.replace(b"gw.example", b"evil.example")


@pytest.mark.parametrize(
    "request_bytes",
    [
        REBOUND,
        # The page has the name for which its browser asks: to the browser this is the same host.
        REBOUND[:-2] + b"Origin: http://evil.example:8083\r\n\r\n",
        REBOUND.replace(b"/mqtt", b"/other"),
        REBOUND.replace(b"evil.example", b"gw.example.evil.example"),
    ],
)
@pytest.mark.parametrize("origins", [[], ["*"]])
def test_a_name_that_somebody_else_has_point_here_is_refused(
    request_bytes: bytes, origins: list[str]
) -> None:
    server = WebSocket(rules_of("/mqtt", origins, 4096, HOSTS))
    assert server.receive_data(request_bytes) == b""
    assert server.state == CLOSED
    answer = server.data_to_send()
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert b"security.hosts" in answer
    assert server.violation is not None
    assert "evil.example" in server.violation.sentence


@pytest.mark.parametrize("host", [b"10.1.2.3:8083", b"[2001:db8::1]", b"localhost", b"GW.Example."])
def test_an_address_localhost_and_a_name_of_ours_are_accepted(host: bytes) -> None:
    server = WebSocket(RULES)
    server.receive_data(REQUEST.replace(b"gw.example:8083", host))
    assert server.state == OPEN
    server = WebSocket(RULES)
    server.receive_data(REQUEST.replace(b"/mqtt", b"http://" + host + b"/mqtt?x"))
    assert server.state == OPEN


def test_a_default_port_may_be_left_out_of_an_origin() -> None:
    server = WebSocket(RULES)
    request = with_header(b"Origin: https://gw.example").replace(b"gw.example:8083", b"gw.example:443")
    server.receive_data(request)
    assert server.state == OPEN


# Open


@pytest.mark.mqtt("MQTT-6.0.0-2")
def test_packets_may_be_spread_over_frames_and_share_them() -> None:
    server = opened()
    assert server.receive_data(frame(Opcode.BINARY, b"ab") + frame(Opcode.BINARY, b"cd")) == b"abcd"
    data = frame(Opcode.BINARY, b"e", fin=False) + frame(Opcode.CONT, b"f", fin=False)
    assert server.receive_data(data + frame(Opcode.PING) + frame(Opcode.CONT, b"g")) == b"efg"


def test_frames_may_come_byte_by_byte() -> None:
    server = opened()
    found = b""
    for byte in frame(Opcode.BINARY, b"ab" * 100) + frame(Opcode.PING, b"?") + frame(Opcode.BINARY, b"c"):
        found += server.receive_data(bytes([byte]))
    assert found == b"ab" * 100 + b"c"
    assert server.data_to_send() == b"\x8a\x01?"


def test_what_came_is_not_kept_until_the_next_frame_comes() -> None:
    server = opened()
    found = server.receive_data(frame(Opcode.BINARY, b"x" * 4000))
    assert not any(found is other.data for other in gc.get_objects() if isinstance(other, Frame))
    assert server.state == OPEN


@pytest.mark.mqtt("MQTT-6.0.0-1")
@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_bytes_are_sent_as_one_binary_frame(size: int) -> None:
    client = ClientProtocol(parse_uri("ws://x/"), state=websocket.State.OPEN)
    client.receive_data(opened().encode(b"x" * size))
    (got,) = client.events_received()
    assert isinstance(got, Frame)
    assert (got.opcode, got.fin, len(got.data)) == (Opcode.BINARY, True, size)


def test_a_ping_is_answered_with_its_data() -> None:
    server = opened()
    assert server.receive_data(frame(Opcode.PING, b"now")) == b""
    assert server.data_to_send() == b"\x8a\x03now"
    assert server.receive_data(frame(Opcode.PONG, b"unasked")) == b""
    assert server.data_to_send() == b""


@pytest.mark.mqtt("MQTT-6.0.0-1")
def test_a_text_frame_ends_the_connection_after_what_came_before_it() -> None:
    server = opened()
    data = frame(Opcode.BINARY, b"ab") + frame(Opcode.TEXT, b"text") + frame(Opcode.BINARY, b"cd")
    assert server.receive_data(data) == b"ab"
    assert server.violation is not None
    assert server.violation.reason == "websocket_text"
    assert close_code(server.data_to_send()) == CloseCode.UNSUPPORTED_DATA
    assert server.state == CLOSED


BAD = {
    "no mask": (Frame(Opcode.BINARY, b"x").serialize(mask=False), "websocket_protocol", 1002),
    "compressed, which nobody agreed to": (b"\xc2\x80\0\0\0\0", "websocket_protocol", 1002),
    "an opcode that does not exist": (b"\x83\x80\0\0\0\0", "websocket_protocol", 1002),
    "a ping that is too long": (b"\x89\xfe\x00\x80\0\0\0\0" + bytes(128), "websocket_protocol", 1002),
    "a ping in fragments": (b"\x09\x80\0\0\0\0", "websocket_protocol", 1002),
    "a continuation of nothing": (frame(Opcode.CONT, b"x"), "websocket_protocol", 1002),
    "a message within another": (
        frame(Opcode.BINARY, b"x", fin=False) + frame(Opcode.BINARY, b"y"),
        "websocket_protocol",
        1002,
    ),
    "a message of exabytes": (
        b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4),
        "websocket_message_too_large",
        1009,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_breaks_the_protocol_ends_the_connection_with_its_code(name: str) -> None:
    data, reason, code = BAD[name]
    server = opened()
    assert b"y" not in server.receive_data(data)
    assert server.violation is not None
    assert server.violation.reason == reason
    assert close_code(server.data_to_send()) == code
    assert server.state == CLOSED


def test_a_packet_over_mqtt_s_bound_is_left_to_mqtt() -> None:
    server = opened()
    assert server.receive_data(frame(Opcode.BINARY, bytes(4096 + 1))) == bytes(4096 + 1)
    assert server.violation is None


def test_the_size_of_a_message_is_bounded_over_all_its_frames() -> None:
    server = opened()
    most = RULES.message_max_bytes
    assert server.receive_data(frame(Opcode.BINARY, bytes(most), fin=False)) == bytes(most)
    assert server.violation is None
    assert server.receive_data(frame(Opcode.CONT, b"x")) == b""
    assert server.violation is not None
    assert server.violation.reason == "websocket_message_too_large"


# Closing


def test_a_close_of_the_client_is_answered_with_its_code() -> None:
    server = opened()
    data = frame(Opcode.BINARY, b"ab") + frame(Opcode.CLOSE, Close(1000, "bye").serialize())
    assert server.receive_data(data + frame(Opcode.BINARY, b"cd")) == b"ab"
    assert server.state == CLOSED
    assert server.violation is None
    assert close_code(server.data_to_send()) == 1000


def test_our_close_waits_for_the_clients_and_takes_nothing_more() -> None:
    server = opened()
    server.close(GOING_AWAY, "draining" * 40)
    sent = server.data_to_send()
    assert close_code(sent) == GOING_AWAY
    assert len(sent) <= 127
    assert server.state == CLOSING
    assert server.receive_data(frame(Opcode.BINARY, b"late") + frame(Opcode.PING)) == b""
    assert server.state == CLOSING
    server.receive_data(frame(Opcode.CLOSE, Close(GOING_AWAY, "").serialize()))
    assert server.state == CLOSED
    assert server.data_to_send() == b""


def test_who_goes_on_sending_instead_of_closing_is_not_listened_to_for_long() -> None:
    server = opened()
    server.close()
    taken = 0
    while server.state == CLOSING:
        server.receive_data(frame(Opcode.BINARY, bytes(1024)))
        taken += 1024
    assert taken <= CLOSING_READ_MAX_BYTES + 1024


def test_bad_bytes_after_our_close_end_the_connection_too() -> None:
    server = opened()
    server.close()
    server.receive_data(b"\xff\xff\xff")
    assert server.state == CLOSED


def test_a_connection_that_is_not_open_yet_is_closed_without_a_word() -> None:
    server = WebSocket(RULES)
    assert server.state == OPENING
    server.close()
    assert server.data_to_send() == b""
    assert server.state == CLOSED
    assert server.receive_data(REQUEST) == b""


# Fuzz


def test_mutated_bytes_never_do_more_than_end_the_connection() -> None:
    rng = random.Random(11)
    seeds = [
        REQUEST,
        with_header(b"Origin: http://gw.example:8083"),
        frame(Opcode.BINARY, b"ab" * 20),
        frame(Opcode.BINARY, b"ab", fin=False),
        frame(Opcode.CONT, b"cd"),
        frame(Opcode.PING, b"?"),
        frame(Opcode.TEXT, b"text"),
        frame(Opcode.CLOSE, Close(1000, "bye").serialize()),
        frame(Opcode.CLOSE, b"\x03"),
    ]
    ended = gone_on = 0
    for _ in range(3_000):
        server = WebSocket(RULES)
        if rng.random() < 0.7:
            server.receive_data(REQUEST)
        for _ in range(rng.randint(1, 6)):
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.randint(0, 3)):
                at = rng.randrange(len(data))
                if rng.random() < 0.6:
                    data[at] = rng.randrange(256)
                else:
                    data[at:at] = rng.randbytes(rng.randint(1, 4))
            cut = rng.randint(0, len(data))
            assert isinstance(server.receive_data(bytes(data[:cut])), bytes)
            assert isinstance(server.receive_data(bytes(data[cut:])), bytes)
            server.data_to_send()
            server.encode(b"out")
            if rng.random() < 0.1:
                server.close()
        if server.state == CLOSED:
            ended += 1
        else:
            assert server.violation is None
            gone_on += 1
    assert min(ended, gone_on) > 200
