"""The PROXY protocol's header, v1 and v2, sans-IO: who the client behind a proxy is.

After https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt (its sections are named below)::

    v1   PROXY TCP4 203.0.113.7 10.0.0.5 40000 1883\\r\\n         at most 107 bytes; TCP4, TCP6 or UNKNOWN

    v2   0        12    13    14    16           16 + length
         ┌────────┬─────┬─────┬─────┬────────────┬──────
         │ magic  │ 2|c │ f|t │ len │ addresses, │ MQTT, TLS or WebSocket
         │ 12     │ 1   │ 1   │ >H  │ TLVs       │
         └────────┴─────┴─────┴─────┴────────────┴──────
         c: 0 LOCAL, 1 PROXY      f: 1 INET (12 bytes), 2 INET6 (36), 3 UNIX (216)      t: 1 STREAM
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

V1_MAX_BYTES: Final = 107
"""The longest v1 line, its end included (2.1)."""
V2_MAX_BYTES: Final = 4096
"""Addresses and TLVs of a v2 header: some TLVs of a proxy, a client certificate's names among them."""

_V1_MAGIC: Final = b"PROXY "
_V2_MAGIC: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V2_HEAD: Final = struct.Struct(">12sBBH")
_V2_IPV4: Final = struct.Struct(">4s4sHH")
_V2_IPV6: Final = struct.Struct(">16s16sHH")
_V2_UNIX_BYTES: Final = 216
_TLV: Final = struct.Struct(">BH")
_TYPE_SSL: Final = 0x20
_SUBTYPE_SSL_CN: Final = 0x22
_SSL_HEAD: Final = struct.Struct(">BI")
_CLIENT_CERT: Final = 0x02 | 0x04
"""PP2_CLIENT_CERT_CONN, PP2_CLIENT_CERT_SESS: one in this connection or its TLS session (2.2.5)."""
_COMMON_NAME_MAX_BYTES: Final = 256
"""Four times what X.520 allows, in UTF-8."""


class ProxyError(Exception):
    """What came is no PROXY header; the connection must be closed (2: a receiver must not guess)."""


class ProxyHeader(NamedTuple):
    """What a proxy says of its client.

    `address` "" = the client's address is unknown, or the proxy speaks for itself (LOCAL): the
    connection's own address counts. `common_name` is that of a client certificate that the proxy verified.
    """

    address: str = ""
    port: int = 0
    common_name: str = ""


class ProxyParser:
    """Takes bytes until the header is complete."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    @property
    def buffered(self) -> int:
        """Bytes of a header that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> tuple[ProxyHeader, bytes] | None:
        """Take bytes; the header and what follows it, or None while it is not complete.

        Raises ProxyError as soon as it cannot become one. To be called no more after either.
        """
        data = self._buffer + data
        if data[:1] == _V1_MAGIC[:1]:
            found = _parse_v1(data)
        elif data[: len(_V2_MAGIC)] == _V2_MAGIC[: len(data)]:
            found = _parse_v2(data)
        else:
            raise ProxyError(f"it begins with {data[:16]!r}, not with a PROXY header")
        self._buffer = data if found is None else b""
        return found


def _parse_v1(data: bytes) -> tuple[ProxyHeader, bytes] | None:
    if data[: len(_V1_MAGIC)] != _V1_MAGIC[: len(data)]:
        raise ProxyError(f"it begins with {data[:16]!r}, not with a PROXY header")
    line, end, _ = data[:V1_MAX_BYTES].partition(b"\r\n")
    if not end:
        if len(data) >= V1_MAX_BYTES:
            raise ProxyError(f"a PROXY line has at most {V1_MAX_BYTES} bytes")
        return None
    rest = data[len(line) + 2 :]
    fields = line.split(b" ")
    if fields[1] == b"UNKNOWN":
        return ProxyHeader(), rest
    if len(fields) != 6 or fields[1] not in (b"TCP4", b"TCP6"):
        raise ProxyError(f"{line!r} is no PROXY TCP4 or TCP6 SOURCE DESTINATION PORT PORT")
    version = IPv4Address if fields[1] == b"TCP4" else IPv6Address
    try:
        source = version(fields[2].decode("ascii"))
        version(fields[3].decode("ascii"))
    except ValueError as error:
        raise ProxyError(f"{line!r} has no address where one should be: {error}") from None
    port, _ = _port_of(fields[4]), _port_of(fields[5])
    return ProxyHeader(_shown(source), port), rest


def _port_of(text: bytes) -> int:
    if not text.isdigit() or len(text) > 5 or (text[:1] == b"0" and len(text) > 1) or int(text) > 65535:
        raise ProxyError(f"{text!r} is no port")
    return int(text)


def _parse_v2(data: bytes) -> tuple[ProxyHeader, bytes] | None:
    if len(data) < _V2_HEAD.size:
        return None
    _, version_command, family, length = _V2_HEAD.unpack_from(data)
    version, command = version_command >> 4, version_command & 15
    if version != 2 or command > 1:
        raise ProxyError(f"a PROXY header has version 2 and command 0 or 1, not {version} and {command}")
    if length > V2_MAX_BYTES:
        raise ProxyError(
            f"a PROXY header with {length} bytes of addresses and TLVs; {V2_MAX_BYTES} are taken"
        )
    end = _V2_HEAD.size + length
    if len(data) < end:
        return None
    body, rest = data[_V2_HEAD.size : end], data[end:]
    if command == 0:
        return ProxyHeader(), rest
    address, port, size = _v2_source(family, body)
    return ProxyHeader(address, port, _common_name(body[size:])), rest


def _v2_source(family: int, body: bytes) -> tuple[str, int, int]:
    """Address and port of the client, and the size of the addresses."""
    if family == 0:
        return "", 0, len(body)  # UNSPEC: nothing after it has a known place
    if family & 15 != 1:
        raise ProxyError(f"the PROXY header is for transport {family & 15}, not for a stream")
    kind = family >> 4
    needed = {1: _V2_IPV4.size, 2: _V2_IPV6.size, 3: _V2_UNIX_BYTES}.get(kind)
    if needed is None:
        raise ProxyError(f"the PROXY header has the address family {kind}, which nobody knows")
    if len(body) < needed:
        raise ProxyError(f"the PROXY header has {len(body)} bytes for addresses of {needed}")
    if kind == 3:
        return "", 0, needed
    source, _, port, _ = (_V2_IPV4 if kind == 1 else _V2_IPV6).unpack_from(body)
    return _shown(ip_address(source)), port, needed


def _shown(address: IPv4Address | IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _common_name(tlvs: bytes) -> str:
    """The common name of the certificate that the proxy verified; "" if it says of none."""
    for kind, value in _each_tlv(tlvs):
        if kind != _TYPE_SSL:
            continue
        if len(value) < _SSL_HEAD.size:
            raise ProxyError("the SSL part of the PROXY header is cut off")
        client, verify = _SSL_HEAD.unpack_from(value)
        if verify != 0 or not client & _CLIENT_CERT:
            return ""
        for inner, name in _each_tlv(value[_SSL_HEAD.size :]):
            if inner == _SUBTYPE_SSL_CN:
                if len(name) > _COMMON_NAME_MAX_BYTES:
                    raise ProxyError(f"the PROXY header has a common name of {len(name)} bytes")
                try:
                    return name.decode()
                except UnicodeDecodeError:
                    raise ProxyError("the PROXY header has a common name that is no UTF-8") from None
    return ""


def _each_tlv(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        if at + _TLV.size > len(data):
            raise ProxyError("a TLV of the PROXY header is cut off")
        kind, length = _TLV.unpack_from(data, at)
        at += _TLV.size
        if at + length > len(data):
            raise ProxyError(f"a TLV of the PROXY header has {length} bytes, {len(data) - at} are left")
        found.append((kind, data[at : at + length]))
        at += length
    return found
