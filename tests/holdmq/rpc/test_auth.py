"""Who a server admits, and what it lets him ask for, over real sockets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rpc_peer import HELLO, MakePeer, Peer, Raw, Until, why_not
from security import ADMIN_SECRET, KEYS, SECRET, SERVICE_SECRET, write_keys
from structlog.testing import capture_logs

from holdmq.errors import Code, RemoteError, UsageError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.wire.auth import NONCE_BYTES, client_proof
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import Command
from holdmq.wire.headers import Empty, HelloRequest, QueueBoundsRequest

ORDERS = Security("orders", SECRET)
MakeClient = Callable[[Peer, Security | None], Client]


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return Path(write_keys(tmp_path / "keys.toml"))


@pytest.fixture
async def secured(make_peer: MakePeer, keys_file: Path) -> Peer:
    return await make_peer(security=ServerSecurity(allow_anonymous=False, keys_file=str(keys_file)))


@pytest.fixture
async def connect() -> AsyncIterator[MakeClient]:
    made: list[Client] = []

    def make(peer: Peer, security: Security | None) -> Client:
        made.append(Client(peer.address, "client", "test", security=security))
        return made[-1]

    yield make
    for client in made:
        await client.close()


OpenRaw = Callable[[Peer], Awaitable[Raw]]


@pytest.fixture
async def open_raw() -> AsyncIterator[OpenRaw]:
    made: list[Raw] = []

    async def make(peer: Peer) -> Raw:
        made.append(Raw(*await asyncio.open_connection("127.0.0.1", peer.server.port)))
        return made[-1]

    yield make
    for raw in made:
        raw.writer.close()


async def echo(client: Client) -> None:
    await client.call(RequestCode.PRODUCE, Empty())


async def test_who_knows_the_secret_is_admitted_by_name(secured: Peer, connect: MakeClient) -> None:
    client = connect(secured, ORDERS)
    await echo(client)
    assert client.hello is not None
    assert client.hello.principal == "orders"


@pytest.mark.parametrize(
    "security",
    [None, Security("orders", SECRET[:-1] + "?"), Security("nobody", SECRET), Security("service", SECRET)],
    ids=["anonymous", "wrong secret", "unknown key", "another's secret"],
)
async def test_others_are_refused_and_their_connection_is_closed(
    secured: Peer, connect: MakeClient, until: Until, security: Security | None
) -> None:
    with capture_logs() as logs:
        reason = await why_not(connect(secured, security))
    assert "UNAUTHENTICATED" in reason
    assert SECRET not in reason
    assert secured.server.security is not None
    assert secured.server.security.unauthenticated >= 1
    await until(lambda: not secured.server.connections)
    assert not secured.closed, "it never was a connection to the parts"
    assert SECRET not in str(logs)


async def test_an_unknown_key_is_refused_like_a_wrong_secret(secured: Peer, connect: MakeClient) -> None:
    wrong = await why_not(connect(secured, Security("orders", "w" * 40)))
    unknown = await why_not(connect(secured, Security("nobody", "w" * 40)))
    assert wrong.replace("orders", "nobody") == unknown


async def test_refusals_are_logged_once_a_second_however_many_there_are(
    secured: Peer, open_raw: OpenRaw
) -> None:
    with capture_logs() as logs:
        for _ in range(20):
            raw = await open_raw(secured)
            raw.send(Command(RequestCode.HELLO, 1, 0, "", HELLO.to_ext()))
            answer = await raw.answer()
            assert answer is not None
            assert answer.code == Code.UNAUTHENTICATED
            assert await raw.answer() is None
    lines = [line for line in logs if line["event"] == "connection refused"]
    assert 1 <= len(lines) < 20
    assert secured.server.security is not None
    assert secured.server.security.unauthenticated == 20


async def challenge(raw: Raw, hello: HelloRequest) -> bytes:
    raw.send(Command(RequestCode.HELLO, 1, 0, "", hello.to_ext()))
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.UNAUTHENTICATED
    nonce: bytes = answer.ext_fields["nonce"]
    return nonce


async def test_a_recorded_hello_is_worth_nothing(secured: Peer, open_raw: OpenRaw) -> None:
    hello = replace(HELLO, access_key="orders", nonce=bytes(NONCE_BYTES))
    first = await open_raw(secured)
    nonce = await challenge(first, hello)
    recorded = replace(hello, proof=client_proof(SECRET.encode(), hello, nonce))
    first.send(Command(RequestCode.HELLO, 2, 0, "", recorded.to_ext()))
    admitted = await first.answer()
    assert admitted is not None
    assert admitted.code == Code.OK

    second = await open_raw(secured)
    assert await challenge(second, recorded) != nonce  # it alone is answered with a challenge
    second.send(Command(RequestCode.HELLO, 2, 0, "", recorded.to_ext()))
    refused = await second.answer()
    assert refused is not None
    assert refused.code == Code.UNAUTHENTICATED
    assert "nonce" not in refused.ext_fields, "one guess per connection"
    assert await second.answer() is None


async def test_a_hello_without_a_key_after_a_challenge_ends_the_connection(
    secured: Peer, open_raw: OpenRaw
) -> None:
    raw = await open_raw(secured)
    await challenge(raw, replace(HELLO, access_key="orders", nonce=bytes(NONCE_BYTES)))
    raw.send(Command(RequestCode.HELLO, 2, 0, "", HELLO.to_ext()))
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.UNAUTHENTICATED
    assert await raw.answer() is None, "or it could ask again and again, and nobody would hear of it"


async def test_nothing_is_answered_between_the_two_hellos(secured: Peer, open_raw: OpenRaw) -> None:
    raw = await open_raw(secured)
    await challenge(raw, replace(HELLO, access_key="orders", nonce=bytes(NONCE_BYTES)))
    raw.send(Command(RequestCode.PRODUCE, 2, 0, "", {}))
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.HELLO_REQUIRED


async def test_a_hello_whose_nonce_is_too_short_is_refused(secured: Peer, open_raw: OpenRaw) -> None:
    raw = await open_raw(secured)
    raw.send(Command(RequestCode.HELLO, 1, 0, "", replace(HELLO, access_key="orders", nonce=b"1").to_ext()))
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.UNAUTHENTICATED
    assert await raw.answer() is None


async def test_a_challenge_that_is_never_answered_ends_like_silence(
    make_peer: MakePeer, keys_file: Path, open_raw: OpenRaw
) -> None:
    security = ServerSecurity(allow_anonymous=False, keys_file=str(keys_file))
    peer = await make_peer(security=security, hello_timeout_s=2.0)
    raw = await open_raw(peer)
    await challenge(raw, replace(HELLO, access_key="orders", nonce=bytes(NONCE_BYTES)))
    assert await raw.answer() is None


async def test_a_server_that_does_not_know_the_secret_is_not_believed(
    make_peer: MakePeer, connect: MakeClient, tmp_path: Path
) -> None:
    impostor = await make_peer()  # it admits everybody
    assert "without asking for our secret" in await why_not(connect(impostor, ORDERS))

    class Impostor(ServerSecurity):
        def _admit_by_key(self, *args: Any) -> bytes:
            try:
                return super()._admit_by_key(*args)
            except RemoteError as error:
                if error.ext_fields:
                    raise
                return b"\0" * 32  # whatever the proof was

    other = write_keys(tmp_path / "other.toml", KEYS.replace(SECRET, "o" * 40))
    guessing = await make_peer(security=Impostor(allow_anonymous=False, keys_file=other))
    assert "does not know the secret of access key 'orders'" in await why_not(connect(guessing, ORDERS))


async def test_anonymous_may_everything_where_that_is_allowed(
    make_peer: MakePeer, connect: MakeClient, keys_file: Path
) -> None:
    peer = await make_peer(security=ServerSecurity(allow_anonymous=True, keys_file=str(keys_file)))
    client = connect(peer, None)
    await echo(client)
    assert client.hello is not None
    assert client.hello.principal == ""
    named = connect(peer, ORDERS)
    await echo(named)
    assert named.hello is not None
    assert named.hello.principal == "orders"


async def test_requests_are_checked_and_refusals_counted(secured: Peer, connect: MakeClient) -> None:
    client = connect(secured, ORDERS)
    await client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["orders"]))
    for code, header in (
        (RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["billing"])),
        (RequestCode.BROKER_STATUS, Empty()),
        (RequestCode.READ, Empty()),
    ):
        with pytest.raises(RemoteError, match="'orders' may not") as caught:
            await client.call(code, header)
        assert caught.value.code == Code.NOT_PERMITTED
    assert secured.server.security is not None
    assert secured.server.security.numbers()["not_permitted_total"] == 3
    await echo(client)  # the connection goes on
    service = connect(secured, Security("service", SERVICE_SECRET))
    await service.call(RequestCode.READ, Empty())


async def test_a_key_that_changes_or_goes_ends_its_connections_and_no_others(
    secured: Peer, connect: MakeClient, keys_file: Path, until: Until
) -> None:
    orders, service = connect(secured, ORDERS), connect(secured, Security("service", SERVICE_SECRET))
    admin = connect(secured, Security("admin", ADMIN_SECRET))
    for client in (orders, service, admin):
        await echo(client)
    kept = admin.connection
    changed = re.sub(r"\[keys.orders\].*?(?=\[keys.service\])", "", KEYS, flags=re.DOTALL)
    write_keys(keys_file, changed.replace(SERVICE_SECRET, "n" * 40))
    assert secured.server.security is not None
    secured.server.security.reload_soon()
    await until(lambda: orders.connection is None and service.connection is None)
    assert admin.connection is kept
    assert "UNAUTHENTICATED" in await why_not(orders)
    renewed = connect(secured, Security("service", "n" * 40))
    await echo(renewed)


async def test_a_changed_file_is_seen_without_being_told(
    make_peer: MakePeer, connect: MakeClient, keys_file: Path, until: Until
) -> None:
    security = ServerSecurity(allow_anonymous=False, keys_file=str(keys_file), reload_interval_s=0.02)
    peer = await make_peer(security=security)
    write_keys(keys_file, KEYS + f'\n[keys.new]\nsecret = "{"n" * 40}"')
    await until(lambda: security.numbers()["access_keys"] == 5)
    client = connect(peer, Security("new", "n" * 40))
    await echo(client)


def spoil(path: Path, damage: str) -> None:
    if damage == "gone":
        path.unlink()
    elif damage == "mode":
        write_keys(path, KEYS + "#")
        path.chmod(0o644)
    else:
        write_keys(path, damage)


@pytest.mark.parametrize("damage", ["not toml [", "mode", "gone"])
async def test_a_file_that_is_of_no_use_changes_nothing_and_is_said_once(
    make_peer: MakePeer, connect: MakeClient, keys_file: Path, until: Until, damage: str
) -> None:
    security = ServerSecurity(allow_anonymous=False, keys_file=str(keys_file), reload_interval_s=0.01)
    peer = await make_peer(security=security)
    client = connect(peer, ORDERS)
    await echo(client)
    kept = client.connection
    looks = 0
    look = security._look

    def counted(is_asked: bool) -> Any:
        nonlocal looks
        looks += 1
        return look(is_asked)

    security._look = counted  # type: ignore[method-assign]
    with capture_logs() as logs:
        spoil(keys_file, damage)
        await until(lambda: security.reload_failures)
        seen = looks
        await until(lambda: looks > seen + 5)
    assert client.connection is kept
    await echo(connect(peer, ORDERS))
    said = [line for line in logs if "of no use" in line["event"]]
    assert 1 <= len(said) <= 2
    assert str(keys_file) in str(said)
    assert SECRET not in str(said)


async def test_a_secret_file_is_read_at_each_connection(
    secured: Peer, connect: MakeClient, tmp_path: Path, until: Until
) -> None:
    path = tmp_path / "secret"
    path.write_text("w" * 40 + "\n", encoding="utf-8")
    path.chmod(0o600)
    client = connect(secured, Security("orders", secret_file=str(path)))
    assert "UNAUTHENTICATED" in await why_not(client)
    path.write_text(SECRET + "\n", encoding="utf-8")
    await until(lambda: client.connection is not None)
    path.chmod(0o644)
    other = connect(secured, Security("orders", secret_file=str(path)))
    assert "chmod 600" in await why_not(other)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"access_key": "a"}, "client.secret or client.secret_file is not set"),
        ({"secret": SECRET}, "client.access_key is not set"),
        ({"access_key": "a", "secret": SECRET, "secret_file": "f"}, "both set"),
        ({"tls_cert": "c"}, "belong together"),
    ],
)
def test_credentials_that_do_not_go_together_are_refused(fields: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        Security(**fields)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_a_security_shows_no_secret() -> None:
    assert SECRET not in repr(ORDERS)
    assert SECRET not in str(ORDERS)
