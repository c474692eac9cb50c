"""TLS of the RPC over real sockets: who is believed, what is said when not, and files that change."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from rpc_peer import MakePeer, Peer, Until, why_not
from security import SECRET, Authority, write_keys
from structlog.testing import capture_logs

from holdmq.credentials.certificates import CertificateFiles
from holdmq.errors import ConfigError, RemoteError
from holdmq.rpc import handshake
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.rpc.tls import ServerTls, client_context
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty, QueueBoundsRequest

EXPIRED = dt.timedelta(days=-1)
MakeClient = Callable[[Peer, Security | None], Client]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("others"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> CertificateFiles:
    return authority.issue("server")


@pytest.fixture
async def connect() -> AsyncIterator[MakeClient]:
    made: list[Client] = []

    def make(peer: Peer, security: Security | None) -> Client:
        made.append(Client(peer.address, "client", "test", security=security))
        return made[-1]

    yield make
    for client in made:
        await client.close()


def tls(files: CertificateFiles, client_ca: str = "", requires: bool = False) -> ServerTls:
    return ServerTls(str(files.cert), str(files.key), client_ca, requires)


def open_to_all(server_tls: ServerTls) -> ServerSecurity:
    return ServerSecurity(allow_anonymous=True, tls=server_tls)


async def echo(client: Client) -> bytes:
    reply = await client.call(RequestCode.PRODUCE, Empty(), body=[b"x" * 100_000], body_length=100_000)
    return bytes(reply.body)


async def test_requests_go_over_tls(
    make_peer: MakePeer, connect: MakeClient, authority: Authority, server_files: CertificateFiles
) -> None:
    peer = await make_peer(security=open_to_all(tls(server_files)))
    client = connect(peer, Security(tls_ca=authority.ca))
    assert await echo(client) == b"x" * 100_000
    assert len((await client.call(RequestCode.READ, Empty())).body) == 4 << 20
    assert client.connection is not None
    (connection,) = peer.server.connections
    assert connection.peer_certificate() is None


async def test_a_key_is_shown_over_tls_too(
    make_peer: MakePeer,
    connect: MakeClient,
    authority: Authority,
    server_files: CertificateFiles,
    tmp_path: Path,
) -> None:
    keys = write_keys(tmp_path / "keys.toml")
    peer = await make_peer(
        security=ServerSecurity(allow_anonymous=False, keys_file=keys, tls=tls(server_files))
    )
    client = connect(peer, Security("orders", SECRET, tls_ca=authority.ca))
    await echo(client)
    assert client.hello is not None
    assert client.hello.principal == "orders"


async def test_an_old_tls_version_is_not_spoken(
    make_peer: MakePeer, authority: Authority, server_files: CertificateFiles
) -> None:
    peer = await make_peer(security=open_to_all(tls(server_files)))
    context = client_context(authority.ca, "", "")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", peer.server.port, ssl=context)


async def test_a_certificate_by_nobody_we_trust_is_refused_and_the_file_named(
    make_peer: MakePeer, connect: MakeClient, other_authority: Authority, server_files: CertificateFiles
) -> None:
    peer = await make_peer(security=open_to_all(tls(server_files)))
    reason = await why_not(connect(peer, Security(tls_ca=other_authority.ca)))
    assert f"is not signed by {other_authority.ca} (client.tls_ca)" in reason
    reason = await why_not(connect(peer, Security(tls=True)))
    assert "set client.tls_ca" in reason


async def test_a_certificate_for_another_host_is_refused(
    make_peer: MakePeer, connect: MakeClient, authority: Authority
) -> None:
    files = authority.issue("elsewhere", ("elsewhere.example",))
    peer = await make_peer(security=open_to_all(tls(files)))
    reason = await why_not(connect(peer, Security(tls_ca=authority.ca)))
    assert "not for this IP address" in reason
    assert "client.tls_server_name" in reason
    reason = await why_not(connect(peer, Security(tls_ca=authority.ca, tls_server_name="here.example")))
    assert "for another host" in reason
    await echo(connect(peer, Security(tls_ca=authority.ca, tls_server_name="elsewhere.example")))


async def test_an_expired_certificate_is_refused_where_it_is_configured(authority: Authority) -> None:
    files = authority.issue("expired", lifetime=EXPIRED)
    with pytest.raises(ConfigError, match="certificate has expired; renew it") as caught:
        tls(files)
    assert str(files.cert) in str(caught.value)


async def test_a_certificate_that_expires_under_a_running_server_is_said_by_its_clients(
    make_peer: MakePeer, connect: MakeClient, authority: Authority, server_files: CertificateFiles
) -> None:
    server_tls = tls(server_files)
    expired = authority.issue("expired-later", lifetime=EXPIRED)
    server_tls._now.load_cert_chain(expired.cert, expired.key)
    peer = await make_peer(security=open_to_all(server_tls))
    reason = await why_not(connect(peer, Security(tls_ca=authority.ca)))
    assert f"the certificate of {peer.address} has expired" in reason
    assert "security.tls_cert" in reason


async def test_a_plain_client_of_a_tls_server_is_not_served(
    make_peer: MakePeer, connect: MakeClient, server_files: CertificateFiles, until: Until
) -> None:
    peer = await make_peer(security=open_to_all(tls(server_files)))
    with capture_logs() as logs:
        assert "It may use TLS where we do not" in await why_not(connect(peer, None))
        await until(lambda: "does not speak TLS" in str(logs))
    assert not peer.server.connections
    assert peer.server.security is not None
    assert peer.server.security.numbers()["tls_handshakes_failed_total"] >= 1


async def test_a_tls_client_of_a_plain_server_is_told(
    make_peer: MakePeer, connect: MakeClient, authority: Authority, peer: Peer
) -> None:
    assert "does not speak TLS" in await why_not(connect(peer, Security(tls_ca=authority.ca)))


async def test_silence_instead_of_a_handshake_ends(
    make_peer: MakePeer, server_files: CertificateFiles
) -> None:
    peer = await make_peer(security=open_to_all(tls(server_files)), hello_timeout_s=0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    assert await reader.read() == b""
    writer.close()


async def test_handshakes_are_bounded(
    make_peer: MakePeer,
    connect: MakeClient,
    authority: Authority,
    server_files: CertificateFiles,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKES_MAX", 3)
    peer = await make_peer(security=open_to_all(tls(server_files)), hello_timeout_s=5.0)
    assert peer.server.handshakes is not None
    running = peer.server.handshakes.running
    silent = [await asyncio.open_connection("127.0.0.1", peer.server.port) for _ in range(3)]
    await until(lambda: len(running) == 3)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert len(running) == 3
    for _, waiting in [*silent, (reader, writer)]:
        waiting.close()
    del silent, reader, writer
    # Whether the garbage collector came by or not, they count no longer than a handshake may take.
    client = connect(peer, Security(tls_ca=authority.ca))
    client.start()
    await until(lambda: client.connection)


# Client certificates


@pytest.fixture
async def mutual(
    make_peer: MakePeer, authority: Authority, server_files: CertificateFiles, tmp_path: Path
) -> Peer:
    keys = write_keys(tmp_path / "keys.toml")
    server_tls = tls(server_files, authority.ca, requires=True)
    return await make_peer(security=ServerSecurity(allow_anonymous=False, keys_file=keys, tls=server_tls))


async def test_a_client_certificate_is_a_principal(
    mutual: Peer, connect: MakeClient, authority: Authority
) -> None:
    client = connect(mutual, Security(tls_ca=authority.ca, **authority.client("orders-client")))  # type: ignore[arg-type]
    await echo(client)
    assert client.hello is not None
    assert client.hello.principal == "orders"
    with pytest.raises(RemoteError, match="'orders' may not consume from topic 'billing'"):
        await client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["billing"]))


async def test_a_certificate_that_no_entry_names_admits_nobody(
    mutual: Peer, connect: MakeClient, authority: Authority
) -> None:
    credentials = authority.client("stranger")
    reason = await why_not(connect(mutual, Security(tls_ca=authority.ca, **credentials)))  # type: ignore[arg-type]
    assert "UNAUTHENTICATED" in reason
    assert "'stranger'" in reason


async def test_unlisted_certificates_have_the_roles_that_are_configured(
    make_peer: MakePeer, connect: MakeClient, authority: Authority, server_files: CertificateFiles
) -> None:
    security = ServerSecurity(
        allow_anonymous=False, tls=tls(server_files, authority.ca), certificate_roles=["service"]
    )
    peer = await make_peer(security=security)
    client = connect(peer, Security(tls_ca=authority.ca, **authority.client("gateway-7")))  # type: ignore[arg-type]
    await client.call(RequestCode.READ, Empty())
    assert client.hello is not None
    assert client.hello.principal == "certificate gateway-7"


async def test_a_client_without_the_certificate_that_is_asked_for_is_told(
    mutual: Peer, connect: MakeClient, authority: Authority, until: Until
) -> None:
    with capture_logs() as logs:
        reason = await why_not(connect(mutual, Security(tls_ca=authority.ca)))
        await until(lambda: "showed no certificate" in str(logs))
    assert "client.tls_cert is not set" in reason


async def test_a_client_certificate_by_another_authority_is_refused(
    mutual: Peer, connect: MakeClient, authority: Authority, other_authority: Authority, until: Until
) -> None:
    stranger = other_authority.client("orders-client")
    with capture_logs() as logs:
        reason = await why_not(connect(mutual, Security(tls_ca=authority.ca, **stranger)))  # type: ignore[arg-type]
        await until(lambda: f"not signed by {authority.ca} (security.tls_client_ca)" in str(logs))
    assert stranger["tls_cert"] in reason
    assert not mutual.server.connections


async def test_an_expired_client_certificate_is_refused(
    mutual: Peer, connect: MakeClient, authority: Authority, until: Until
) -> None:
    files = authority.issue("orders-client-old", ("orders-client",), EXPIRED)
    security = Security(tls_ca=authority.ca, tls_cert=str(files.cert), tls_key=str(files.key))
    with capture_logs() as logs:
        await why_not(connect(mutual, security))
        await until(lambda: "the client's certificate has expired" in str(logs))
    assert not mutual.server.connections


# Files that change


async def test_a_renewed_certificate_is_shown_to_new_connections_while_old_ones_go_on(
    make_peer: MakePeer, connect: MakeClient, authority: Authority, until: Until
) -> None:
    files = authority.issue("renewed", ("old.example",))
    security = open_to_all(tls(files))
    peer = await make_peer(security=security)
    old = connect(peer, Security(tls_ca=authority.ca, tls_server_name="old.example"))
    await echo(old)
    kept = old.connection
    authority.issue("renewed", ("new.example",))
    security.reload_soon()
    await until(lambda: security.tls is not None and security._tls_signature != ())
    new = connect(peer, Security(tls_ca=authority.ca, tls_server_name="new.example"))
    await until(lambda: new.start() or new.connection)
    await echo(old)
    assert old.connection is kept


async def test_an_authority_that_is_replaced_is_not_believed_any_more(
    make_peer: MakePeer,
    connect: MakeClient,
    authority: Authority,
    other_authority: Authority,
    server_files: CertificateFiles,
    tmp_path: Path,
) -> None:
    client_ca = tmp_path / "clients.pem"
    await asyncio.to_thread(shutil.copy, authority.ca, client_ca)
    server_tls = tls(server_files, str(client_ca), requires=True)
    security = ServerSecurity(allow_anonymous=False, tls=server_tls, certificate_roles=["client"])
    peer = await make_peer(security=security)
    before = Security(tls_ca=authority.ca, **authority.client("before"))  # type: ignore[arg-type]
    after = Security(tls_ca=authority.ca, **other_authority.client("after"))  # type: ignore[arg-type]
    await echo(connect(peer, before))
    await asyncio.to_thread(shutil.copy, other_authority.ca, client_ca)
    server_tls.reload()
    await echo(connect(peer, after))
    await why_not(connect(peer, before))


def test_files_that_do_not_fit_leave_what_was_loaded_in_force(authority: Authority) -> None:
    files = authority.issue("halfway")
    server_tls = tls(files)
    loaded = server_tls._now
    other = authority.issue("other")
    files.key.write_bytes(other.key.read_bytes())
    with pytest.raises(ConfigError, match="is not the key of"):
        server_tls.reload()
    assert server_tls._now is loaded


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda files: files.cert.unlink(), "security.tls_cert is .* does not exist"),
        (lambda files: files.key.unlink(), "security.tls_key is .* does not exist"),
        (lambda files: files.key.chmod(0o644), "chmod 600"),
        (lambda files: files.cert.write_text("nothing"), "no PEM certificate"),
    ],
)
def test_files_of_no_use_are_named(authority: Authority, damage: Callable[[Any], Any], problem: str) -> None:
    files = authority.issue("damaged")
    damage(files)
    with pytest.raises(ConfigError, match=problem):
        tls(files)


def test_a_key_with_a_passphrase_is_refused_without_asking(authority: Authority) -> None:
    files = authority.issue("locked")
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    with pytest.raises(ConfigError, match="unencrypted key"):
        tls(files)


def test_no_authorities_are_named(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client\.tls_ca"):
        client_context(str(tmp_path / "none.pem"), "", "")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigError, match=r"client\.tls_ca"):
        client_context(str(empty), "", "")


def test_uvloop_whose_tls_is_other_code_says_and_does_the_same(
    authority: Authority, other_authority: Authority, server_files: CertificateFiles, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path / "keys.toml")
    own = authority.client("service-client")
    cases = {
        "not signed by": Security(tls_ca=other_authority.ca),
        "for another host": Security(tls_ca=authority.ca, tls_server_name="here.example", **own),  # type: ignore[arg-type]
        "client.tls_cert": Security(tls_ca=authority.ca),
        "another client certificate than /": Security(tls_ca=authority.ca, **other_authority.client("x")),  # type: ignore[arg-type]
    }

    async def run() -> None:
        server_tls = tls(server_files, authority.ca, requires=True)
        peer = Peer(security=ServerSecurity(allow_anonymous=False, keys_file=keys, tls=server_tls))
        await peer.server.listen("127.0.0.1", 0)
        clients = []
        try:
            server_tls.reload()
            good = Client(peer.address, "client", "t", security=Security(tls_ca=authority.ca, **own))  # type: ignore[arg-type]
            clients.append(good)
            assert await echo(good) == b"x" * 100_000
            assert good.hello is not None
            assert good.hello.principal == "service"
            for reason, security in cases.items():
                clients.append(Client(peer.address, "client", "t", security=security))
                assert reason in await why_not(clients[-1])
        finally:
            for client in clients:
                await client.close()
            await peer.server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
