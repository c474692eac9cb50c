from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from security import Authority

from gateway.edge.tls import RECORD_BYTES, Tls, explain_failure


@pytest.fixture
def contexts(authority: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    files = authority.issue("gateway")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    return server, ssl.create_default_context(cafile=authority.ca)


class Client:
    """The client's side, on OpenSSL too."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def step(self, server: Tls, do: Callable[[], object]) -> bytes:
        """Do something until it is done; what the server got meanwhile."""
        found = b""
        while True:
            try:
                do()
                return found + server.receive_data(self.outgoing.read())
            except ssl.SSLWantReadError:
                found += server.receive_data(self.outgoing.read())
                self.incoming.write(server.data_to_send())


def test_bytes_go_both_ways_in_records_of_any_number(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = Tls(contexts[0]), Client(contexts[1])
    client.step(server, client.tls.do_handshake)
    assert server.is_open
    big = bytes(range(251)) * 2000
    assert client.step(server, lambda: client.tls.write(big)) == big
    client.incoming.write(server.encrypt(big))
    got = b""
    while len(got) < len(big):
        got += client.tls.read(1 << 20)
    assert got == big
    assert server.error is None


def test_openssl_is_never_given_more_than_a_record_at_a_time(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = Tls(contexts[0]), Client(contexts[1])
    client.step(server, client.tls.do_handshake)
    client.tls.write(bytes(1 << 20))
    data = client.outgoing.read()
    pending: list[int] = []

    class Watched:
        def __init__(self, inner: ssl.MemoryBIO) -> None:
            self.inner = inner

        def write(self, part: bytes) -> int:
            written = self.inner.write(part)
            pending.append(self.inner.pending)
            return written

        @property
        def pending(self) -> int:
            return self.inner.pending

    monkeypatch.setattr(server, "_incoming", Watched(server._incoming))
    assert len(server.receive_data(data)) == 1 << 20
    assert max(pending) < 3 * RECORD_BYTES


def test_a_client_that_says_that_it_is_done_is_answered_so(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = Tls(contexts[0]), Client(contexts[1])
    client.step(server, client.tls.do_handshake)
    client.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    assert server.receive_data(client.outgoing.read()) == b"last"
    assert server.is_ended
    server.close()
    client.incoming.write(server.data_to_send())
    client.tls.unwrap()


def test_nothing_is_sent_before_the_handshake_nor_after_an_error(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server = Tls(contexts[0])
    assert server.encrypt(b"x") == b""
    server.close()
    assert server.data_to_send() == b""
    server.receive_data(b"GET / HTTP/1.1\r\n\r\n")
    assert server.error is not None
    server.data_to_send()
    assert server.receive_data(b"more") == b""
    assert server.encrypt(b"x") == b""


def test_bytes_that_are_no_records_after_the_handshake_are_an_error_with_an_alert(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = Tls(contexts[0]), Client(contexts[1])
    client.step(server, client.tls.do_handshake)
    client.incoming.write(server.data_to_send())
    server.receive_data(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert server.error is not None
    client.incoming.write(server.data_to_send())
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        client.tls.read(1)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak TLS"),
        (b"\x10\x0d\x00\x04MQTT\x04\x02", "does not speak TLS"),
        (bytes(64), "does not speak TLS"),
    ],
)
def test_a_failure_is_explained(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], data: bytes, sentence: str
) -> None:
    server = Tls(contexts[0])
    server.receive_data(data)
    assert server.error is not None
    assert sentence in explain_failure(server.error, "")


def test_a_client_that_does_not_trust_our_certificate_is_explained(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path
) -> None:
    other = ssl.create_default_context(cafile=Authority(tmp_path).ca)
    server, client = Tls(contexts[0]), Client(other)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.step(server, client.tls.do_handshake)
    server.receive_data(client.outgoing.read())
    assert server.error is not None
    assert "does not take our certificate" in explain_failure(server.error, "")


def test_a_certificate_that_the_authority_did_not_sign_is_explained_with_the_file(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], authority: Authority, tmp_path: Path
) -> None:
    contexts[0].load_verify_locations(authority.ca)
    contexts[0].verify_mode = ssl.CERT_OPTIONAL
    stranger = Authority(tmp_path).client("device-7")
    contexts[1].load_cert_chain(stranger["tls_cert"], stranger["tls_key"])
    server, client = Tls(contexts[0]), Client(contexts[1])
    client.step(server, client.tls.do_handshake)
    assert server.error is not None
    sentence = explain_failure(server.error, authority.ca)
    assert sentence.startswith(f"the client's certificate is refused by {authority.ca} (tls_client_ca): ")
