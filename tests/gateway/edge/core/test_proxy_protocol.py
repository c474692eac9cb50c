from __future__ import annotations

import random
import struct

import pytest

from gateway.edge.core.proxy_protocol import V1_MAX_BYTES, V2_MAX_BYTES, ProxyError, ProxyHeader, ProxyParser

MAGIC = b"\r\n\r\n\0\r\nQUIT\n"
IPV4 = bytes([203, 0, 113, 7, 10, 0, 0, 5]) + struct.pack(">HH", 40000, 1883)
IPV6 = bytes.fromhex("20010db8" + "00" * 11 + "07") + bytes(16) + struct.pack(">HH", 40000, 1883)


def v2(addresses: bytes, family: int = 0x11, tlvs: bytes = b"", version_command: int = 0x21) -> bytes:
    body = addresses + tlvs
    return MAGIC + struct.pack(">BBH", version_command, family, len(body)) + body


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def ssl_tlv(common_name: bytes, client: int = 0x07, verify: int = 0) -> bytes:
    inner = tlv(0x21, b"TLSv1.3") + tlv(0x22, common_name) + tlv(0x23, b"TLS_AES_256_GCM_SHA384")
    return tlv(0x20, struct.pack(">BI", client, verify) + inner)


HEADERS = {
    "v1 TCP4": (b"PROXY TCP4 203.0.113.7 10.0.0.5 40000 1883\r\n", ProxyHeader("203.0.113.7", 40000)),
    "v1 TCP6": (b"PROXY TCP6 2001:db8::7 ::1 40000 1883\r\n", ProxyHeader("2001:db8::7", 40000)),
    "v1 TCP6 of an IPv4 client": (
        b"PROXY TCP6 ::ffff:203.0.113.7 ::1 40000 1883\r\n",
        ProxyHeader("203.0.113.7", 40000),
    ),
    "v1 UNKNOWN": (b"PROXY UNKNOWN\r\n", ProxyHeader()),
    "v1 UNKNOWN with more": (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", ProxyHeader()),
    "v1 longest": (
        b"PROXY TCP6 " + b" ".join([b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] * 2) + b" 65535 65535\r\n",
        ProxyHeader("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535),
    ),
    "v2 TCP over IPv4": (v2(IPV4), ProxyHeader("203.0.113.7", 40000)),
    "v2 TCP over IPv6": (v2(IPV6, 0x21), ProxyHeader("2001:db8::7", 40000)),
    "v2 UNIX": (v2(bytes(216), 0x31), ProxyHeader()),
    "v2 UNSPEC": (v2(b"", 0x00), ProxyHeader()),
    "v2 UNSPEC with bytes that mean nothing": (v2(b"\x20\xff\xff", 0x00), ProxyHeader()),
    "v2 LOCAL": (v2(b"", 0x00, version_command=0x20), ProxyHeader()),
    "v2 LOCAL with addresses": (v2(IPV4, version_command=0x20), ProxyHeader()),
    "v2 with TLVs": (
        v2(IPV4, tlvs=tlv(0x01, b"mqtt") + tlv(0x04, bytes(9))),
        ProxyHeader("203.0.113.7", 40000),
    ),
    "v2 with a verified certificate": (
        v2(IPV4, tlvs=tlv(0x02, b"gw.example") + ssl_tlv("Gerät 7".encode())),
        ProxyHeader("203.0.113.7", 40000, "Gerät 7"),
    ),
    "v2 with a certificate that was not verified": (
        v2(IPV4, tlvs=ssl_tlv(b"device-7", verify=1)),
        ProxyHeader("203.0.113.7", 40000),
    ),
    "v2 with TLS and no certificate": (
        v2(IPV4, tlvs=ssl_tlv(b"device-7", client=0x01)),
        ProxyHeader("203.0.113.7", 40000),
    ),
}
BAD = {
    "MQTT": b"\x10\x0d\x00\x04MQTT\x04\x02",
    "TLS": b"\x16\x03\x01\x02\x00",
    "HTTP": b"GET /mqtt HTTP/1.1\r\n",
    "POST, which begins like v1": b"POST / HTTP/1.1\r\n",
    "v1 with another protocol": b"PROXY UDP4 203.0.113.7 10.0.0.5 40000 1883\r\n",
    "v1 in small letters": b"PROXY tcp4 203.0.113.7 10.0.0.5 40000 1883\r\n",
    "v1 with a part missing": b"PROXY TCP4 203.0.113.7 10.0.0.5 40000\r\n",
    "v1 with nothing": b"PROXY \r\n",
    "v1 with two spaces": b"PROXY TCP4  203.0.113.7 10.0.0.5 40000 1883\r\n",
    "v1 with an address of the other family": b"PROXY TCP4 ::1 10.0.0.5 40000 1883\r\n",
    "v1 with a wrong destination": b"PROXY TCP4 203.0.113.7 10.0.0.500 40000 1883\r\n",
    "v1 with a port that is too large": b"PROXY TCP4 203.0.113.7 10.0.0.5 65536 1883\r\n",
    "v1 with a port that is no number": b"PROXY TCP4 203.0.113.7 10.0.0.5 +1 1883\r\n",
    "v1 with a port with zeros in front": b"PROXY TCP4 203.0.113.7 10.0.0.5 01 1883\r\n",
    "v1 with an address that is no ASCII": b"PROXY TCP4 203.0.113.\xb9 10.0.0.5 1 1883\r\n",
    "v1 without an end": b"PROXY TCP4 " + b"1" * V1_MAX_BYTES,
    "v1 that ends too late": b"PROXY UNKNOWN " + b"1" * (V1_MAX_BYTES - 15) + b"\r\n",
    "v2 of version 1": v2(IPV4, version_command=0x11),
    "v2 with command 2": v2(IPV4, version_command=0x22),
    "v2 for datagrams": v2(IPV4, 0x12),
    "v2 of an unknown family": v2(IPV4, 0x41),
    "v2 with too few bytes of addresses": v2(IPV4[:-1]),
    "v2 with IPv4 where IPv6 is said": v2(IPV4, 0x21),
    "v2 longer than the bound": MAGIC + struct.pack(">BBH", 0x21, 0x11, V2_MAX_BYTES + 1),
    "v2 with half a TLV": v2(IPV4, tlvs=b"\x01\x00"),
    "v2 with a TLV longer than the header": v2(IPV4, tlvs=b"\x01\x00\x05mqtt"),
    "v2 with half an SSL part": v2(IPV4, tlvs=tlv(0x20, b"\x07\0\0")),
    "v2 with a broken SSL part": v2(IPV4, tlvs=tlv(0x20, struct.pack(">BI", 7, 0) + b"\x22\x00\x09abc")),
    "v2 with a common name that is no UTF-8": v2(IPV4, tlvs=ssl_tlv(b"\xff")),
    "v2 with a common name without end": v2(IPV4, tlvs=ssl_tlv(b"x" * 257)),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("after", [b"", b"\x10\x0d\x00\x04MQTT"])
def test_a_header_is_read_whole_with_what_follows_it(name: str, after: bytes) -> None:
    data, header = HEADERS[name]
    assert ProxyParser().feed(data + after) == (header, after)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_read_byte_by_byte(name: str) -> None:
    data, header = HEADERS[name]
    parser = ProxyParser()
    for at in range(len(data) - 1):
        assert parser.feed(data[at : at + 1]) is None, at
    assert parser.feed(data[-1:]) == (header, b"")


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_header_is_refused_whole_and_byte_by_byte(name: str) -> None:
    with pytest.raises(ProxyError):
        ProxyParser().feed(BAD[name])
    parser = ProxyParser()
    data = BAD[name]
    with pytest.raises(ProxyError):
        all(parser.feed(data[at : at + 1]) is None for at in range(len(data)))


@pytest.mark.parametrize("name", HEADERS)
def test_half_a_header_waits_for_more(name: str) -> None:
    data, _ = HEADERS[name]
    for end in range(len(data)):
        assert ProxyParser().feed(data[:end]) is None


def test_what_is_kept_of_an_unfinished_header_is_bounded() -> None:
    for beginning in (b"PROXY TCP4 ", MAGIC + struct.pack(">BBH", 0x21, 0x11, V2_MAX_BYTES)):
        parser = ProxyParser()
        fed = 0
        try:
            assert parser.feed(beginning) is None
            while parser.feed(b"1" * 16) is None:
                fed += 16
        except ProxyError:
            pass
        assert fed <= V2_MAX_BYTES + 16


def test_a_header_without_an_error_of_its_own_never_raises_another() -> None:
    rng = random.Random(7)
    seeds = [data for data, _ in HEADERS.values()] + list(BAD.values())
    outcomes = {"read": 0, "refused": 0, "waits": 0}
    for _ in range(20_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            change = rng.randrange(3)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1:
                del data[at : at + rng.randint(1, 4)]
                data += b"\0"
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
        try:
            found = ProxyParser().feed(bytes(data))
        except ProxyError:
            outcomes["refused"] += 1
            continue
        outcomes["waits" if found is None else "read"] += 1
    assert min(outcomes.values()) > 100, outcomes
