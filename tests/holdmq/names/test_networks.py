from __future__ import annotations

import socket

import pytest

from holdmq.names.networks import network_of, packed_address, shown_address, shown_network


def packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4"]),
        ("10.0.0.0/8", ["10.0.0.0", "10.255.1.2"], ["11.0.0.0", "a00::"]),
        ("10.1.2.3/30", ["10.1.2.0", "10.1.2.3"], ["10.1.2.4"]),
        ("0.0.0.0/0", ["1.2.3.4"], ["::1"]),
        ("2001:db8::/32", ["2001:db8:ffff::1"], ["2001:db9::"]),
        ("::ffff:10.0.0.0/104", ["10.9.9.9"], ["11.0.0.1"]),
    ],
)
def test_a_network_has_its_addresses_and_no_others(
    network: str, inside: list[str], outside: list[str]
) -> None:
    found = network_of(network)
    assert [a for a in inside if not found.has(packed(a))] == []
    assert [a for a in outside if found.has(packed(a))] == []


def test_a_network_is_written_in_one_way() -> None:
    assert shown_network("10.1.2.3/8") == "10.0.0.0/8"
    assert shown_network("10.1.2.3/32") == "10.1.2.3"
    assert shown_network("2001:DB8:0::1") == "2001:db8::1"
    with pytest.raises(ValueError, match=r"'10\.0\.0' is no address and no network"):
        network_of("10.0.0")


def test_addresses_of_records_are_read_mapped_ones_as_what_they_are() -> None:
    port = (1883).to_bytes(4, "big")
    assert shown_address(packed_address(packed("10.1.2.3") + port)) == "10.1.2.3"
    assert shown_address(packed_address(packed("::ffff:10.1.2.3") + port)) == "10.1.2.3"
    assert shown_address(packed_address(packed("2001:db8::1") + port)) == "2001:db8::1"
    assert shown_address(packed_address(bytes(8))) == ""
