from __future__ import annotations

import pytest

from gateway.ground.addresses import NOBODY, AddressCounts, address_key, is_local, shown_key
from holdmq.record.codec import NO_HOST, encode_host


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_an_address_counts_by_itself_and_an_ipv6_one_by_its_64(address: str, shown: str) -> None:
    assert shown_key(address_key(encode_host(address, 1883))) == shown


def test_the_port_does_not_matter() -> None:
    assert address_key(encode_host("10.0.0.1", 1)) == address_key(encode_host("10.0.0.1", 2))


def test_who_has_no_address_is_not_counted() -> None:
    counts = AddressCounts()
    assert address_key(NO_HOST) == NOBODY
    assert [counts.opened(NOBODY) for _ in range(3)] == [0, 0, 0]
    counts.closed(NOBODY)
    assert len(counts) == 0
    assert shown_key(NOBODY) == ""


def test_an_address_without_connections_takes_no_memory() -> None:
    counts = AddressCounts()
    here, there = b"\x0a\0\0\1", b"\x0a\0\0\2"
    assert [counts.opened(here), counts.opened(here), counts.opened(there)] == [1, 2, 1]
    counts.closed(here)
    assert counts.opened(here) == 2
    for key in (here, here, there, there):
        counts.closed(key)
    assert len(counts) == 0


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
     ("10.0.0.1", False), ("::2", False), ("2001:db8::1", False)],
)  # fmt: skip
def test_loopback_addresses_are_of_this_machine(address: str, local: bool) -> None:
    assert is_local(encode_host(address, 1)) is local


def test_who_has_no_address_is_of_this_machine() -> None:
    assert is_local(NO_HOST)
