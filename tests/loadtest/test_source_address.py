from __future__ import annotations

import socket

import pytest

from loadtest.source_address import PER_ADDRESS_MAX, bind_source, is_loopback, source_address


def test_so_many_connections_share_an_address_as_it_has_ports_for() -> None:
    assert source_address(0) == source_address(PER_ADDRESS_MAX - 1) == "127.0.1.1"
    assert source_address(PER_ADDRESS_MAX) == "127.0.1.2"
    assert source_address(200_000) == "127.0.1.11"


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("10.0.0.1", False), ("::1", False), ("broker", False)],
)
def test_only_the_loopback_of_ipv4_has_many_addresses(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


def test_a_connection_comes_from_its_address_and_gets_its_port_when_it_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connection:
        bind_source(connection, PER_ADDRESS_MAX)
        assert connection.getsockname() == ("127.0.1.2", 0)
        connection.connect(server.getsockname())
        accepted, address = server.accept()
        accepted.close()
        assert address == connection.getsockname()
        assert address[0] == "127.0.1.2"
