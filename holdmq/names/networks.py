"""IP networks, matched against addresses as records carry them: 4 or 16 bytes, and a port of 4."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""IPv6 addresses that are IPv4 ones (RFC 4291, 2.5.5.2): a proxy may tell them so."""
NO_ADDRESS: Final = bytes(4)
"""What stands where a client has none (UNIX sockets)."""


class Network(NamedTuple):
    """The addresses of `size` bytes whose first `bits` are those of `value`."""

    size: int
    bits: int
    value: int

    def has(self, packed: bytes) -> bool:
        """Whether an address of 4 or 16 bytes is in it."""
        size = len(packed)
        return size == self.size and int.from_bytes(packed, "big") >> (size * 8 - self.bits) == self.value


def network_of(text: str) -> Network:
    """Read an address, or a network as ``10.0.0.0/8``. Raises ValueError with a sentence."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is no address and no network such as 10.0.0.0/8") from None
    packed = network.network_address.packed
    bits = network.prefixlen
    if len(packed) == 16 and bits >= 96 and packed.startswith(_MAPPED):
        packed, bits = packed[12:], bits - 96
    size = len(packed)
    return Network(size, bits, int.from_bytes(packed, "big") >> (size * 8 - bits))


def shown_network(text: str) -> str:
    """Return the one way to write an address or network, so that two ways are not two. Raises ValueError."""
    network = network_of(text)
    value = network.value << (network.size * 8 - network.bits)
    address = IPv4Address(value) if network.size == 4 else IPv6Address(value)
    return str(address) if network.bits == network.size * 8 else f"{address}/{network.bits}"


def packed_address(born_host: bytes) -> bytes:
    """Return the 4 or 16 bytes of a BornHost's address, an IPv4 one always as 4."""
    packed = born_host[:-4]
    return packed[12:] if packed.startswith(_MAPPED) else packed


def shown_address(packed: bytes) -> str:
    """Return an address for people, "" for none."""
    return "" if packed == NO_ADDRESS else str(ip_address(packed))
