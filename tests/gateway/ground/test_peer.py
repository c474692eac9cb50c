from __future__ import annotations

import pytest

from gateway.ground.peer import Certificate, Peer, born_host, certificate_named, certificate_of, peer_of
from holdmq.record.codec import NO_HOST, decode_host


class Transport:
    def __init__(self, name: object) -> None:
        self.name = name

    def get_extra_info(self, key: str) -> object:
        return self.name if key == "peername" else None


@pytest.mark.parametrize(
    ("name", "address", "host"),
    [
        (("203.0.113.7", 40000), "203.0.113.7", "203.0.113.7"),
        (("2001:db8::7", 40000, 0, 0), "2001:db8::7", "2001:db8::7"),
        (("::ffff:203.0.113.7", 40000, 0, 0), "203.0.113.7", "203.0.113.7"),
        (("fe80::1%eth0", 40000, 0, 2), "fe80::1", "fe80::1"),
    ],
)
def test_a_socket_s_peer_is_its_address(name: object, address: str, host: str) -> None:
    peer = peer_of("tcp", Transport(name))  # type: ignore[arg-type]
    assert peer == Peer("tcp", address, 40000)
    assert decode_host(peer.born_host()) == (host, 40000)


def test_a_socket_that_is_gone_has_no_address() -> None:
    for transport in (None, Transport(None), Transport("")):
        peer = peer_of("tcp", transport)  # type: ignore[arg-type]
        assert peer == Peer("tcp", "", 0)
        assert peer.born_host() == NO_HOST
    assert born_host("no address", 1) == NO_HOST


def test_log_fields_tell_what_is_known() -> None:
    assert Peer("a", "2001:db8::7", 1).log_fields() == {"listener": "a", "peer": "[2001:db8::7]:1"}
    named = certificate_named("device-7")
    assert Peer("a", "10.0.0.7", 1, "10.0.0.1:9", certificate=named).log_fields() == {
        "listener": "a",
        "peer": "10.0.0.7:1",
        "through": "10.0.0.1:9",
        "certificate": "CN=device-7",
    }


def test_a_certificate_s_names_are_in_the_order_in_which_they_count() -> None:
    verified = {
        "subject": (
            (("countryName", "DE"),),
            (("organizationName", 'Pumps, "Inc"'),),
            (("commonName", "#device 7"),),
            (("serialNumber", "12"),),
        ),
        "subjectAltName": (("DNS", "d7.example"), ("IP Address", "10.0.0.7"), ("URI", "urn:d7")),
    }
    assert certificate_of(verified) == Certificate(
        'serialNumber=12,CN=\\#device 7,O=Pumps\\, \\"Inc\\",C=DE',
        "#device 7",
        ("d7.example", "urn:d7", "#device 7"),
    )
    assert certificate_of({"subject": ()}) == Certificate("", "", ())
    assert certificate_of(None) is None
    assert certificate_of({}) is None
    assert certificate_named("") is None
