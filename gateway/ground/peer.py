"""The other end of a connection: what authentication, limits and logs know of it."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, NamedTuple, Protocol

from holdmq.errors import RecordError
from holdmq.record.codec import NO_HOST, encode_host
from holdmq.rpc.tls import names_of

_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid of SO_PEERCRED (unix(7))."""
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""RFC 4514, 3."""


class Transport(Protocol):
    """What knows the peer of a socket."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The transport's `peername` or `socket`."""


class Certificate(NamedTuple):
    """The names in a client certificate that was verified, here or by a proxy.

    `subject` is an RFC 4514 string, `names` are the alternative names (DNS, URI, e-mail), then the common
    names: the order in which they say who a client is.
    """

    subject: str
    common_name: str
    names: tuple[str, ...]


class Peer(NamedTuple):
    """A client as its listener knows it.

    `address` is the client's own, behind a proxy the one that the proxy tells; "" where there is none
    (UNIX sockets, whose user is `uid`). `through` is the proxy's address.
    """

    listener: str
    address: str
    port: int
    through: str = ""
    uid: int | None = None
    certificate: Certificate | None = None

    def log_fields(self) -> dict[str, str]:
        """What a log line about the connection says of it."""
        peer = f"unix, user {self.uid}" if self.uid is not None else shown(self.address, self.port)
        fields = {"listener": self.listener, "peer": peer}
        if self.through:
            fields["through"] = self.through
        if self.certificate is not None:
            fields["certificate"] = self.certificate.subject
        return fields

    def born_host(self) -> bytes:
        """BornHost of what this client publishes."""
        return born_host(self.address, self.port)


def peer_of(listener: str, transport: Transport | None) -> Peer:
    """The peer of a socket, as the kernel knows it; without an address when the socket is gone."""
    name = None if transport is None else transport.get_extra_info("peername")
    if isinstance(name, tuple) and len(name) >= 2:
        address = str(name[0]).partition("%")[0].removeprefix("::ffff:")
        return Peer(listener, address, int(name[1]))
    return Peer(listener, "", 0, uid=None if transport is None else _uid_of(transport))


def certificate_of(verified: dict[str, Any] | None) -> Certificate | None:
    """The names in what `getpeercert()` returned; None if the client showed no certificate."""
    if not verified:
        return None
    parts = [pair for part in verified.get("subject", ()) for pair in part]
    subject = ",".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in reversed(parts))
    common = next((str(value) for name, value in parts if name == "commonName"), "")
    return Certificate(subject, common, tuple(names_of(verified)))


def certificate_named(common_name: str) -> Certificate | None:
    """The certificate of which a proxy told only the common name; None for ""."""
    if not common_name:
        return None
    return Certificate(f"CN={_escaped(common_name)}", common_name, (common_name,))


def born_host(address: str, port: int) -> bytes:
    """BornHost of an address; the empty one if it is none."""
    try:
        return encode_host(address, port)
    except RecordError:
        return NO_HOST


def shown(address: str, port: int) -> str:
    """An address for people."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _escaped(value: str) -> str:
    """RFC 4514, 2.4."""
    text = "".join(f"\\{c}" if c in '"+,;<>\\=' else c for c in value)
    return f"\\{text}" if text[:1] in ("#", " ") else text


def _uid_of(transport: Transport) -> int | None:
    handle = transport.get_extra_info("socket")
    if handle is None or handle.fileno() < 0 or handle.family != socket.AF_UNIX:
        return None
    told = handle.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1])
