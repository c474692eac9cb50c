"""KEY_LIST: whose the access keys of a broker are, in pages, and nothing more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from security import ADMIN_SECRET, KEYS, SECRET, write_keys

from broker.app.tenant_keys import TenantKeys
from holdmq.errors import Code, RemoteError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import PROTOCOL_VERSION, HelloResponse
from holdmq.wire.key_headers import KeyListRequest, KeyListResponse, KeyRow

OF_TENANTS = "".join(
    f'\n[keys.{name}]\nsecret = "{name * 40}"\nroles = ["client", "reader"]\ntenant = "{tenant}"\n'
    for name, tenant in (("c", "acme"), ("a", "acme"), ("b", "beta"))
)


async def ask(
    keys_file: str, request: KeyListRequest, key: str = "admin", secret: str = ADMIN_SECRET
) -> KeyListResponse:
    security = ServerSecurity(allow_anonymous=False, keys_file=keys_file)
    server = Server(
        dict(TenantKeys(security.keys).routes()),
        lambda *_: HelloResponse(PROTOCOL_VERSION, "broker-0", "main", 0),
        1 << 20,
        security=security,
    )
    await server.listen("127.0.0.1", 0)
    client = Client(f"127.0.0.1:{server.port}", "console", "c", security=Security(key, secret))
    try:
        return (await client.call(RequestCode.KEY_LIST, request, 30.0)).header(KeyListResponse)
    finally:
        await client.close()
        await server.close()


async def test_keys_of_tenants_are_named_by_page_and_others_never(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.toml", KEYS + OF_TENANTS)
    answer = await ask(keys, KeyListRequest())
    roles = ["client", "reader"]
    assert rows(KeyRow, answer.keys) == [
        KeyRow("a", "acme", roles), KeyRow("b", "beta", roles), KeyRow("c", "acme", roles)
    ]  # fmt: skip
    assert answer.next_after is None
    first = await ask(keys, KeyListRequest("acme", max_count=1))
    assert ([row[0] for row in first.keys], first.next_after) == (["a"], "a")
    rest = await ask(keys, KeyListRequest("acme", "a", 1))
    assert ([row[0] for row in rest.keys], rest.next_after) == (["c"], None)


async def test_whose_keys_are_takes_a_reader_of_no_tenant(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.toml", KEYS + OF_TENANTS)
    for key, secret in (("orders", SECRET), ("a", "a" * 40)):
        with pytest.raises(RemoteError) as refused:
            await ask(keys, KeyListRequest(), key, secret)
        assert refused.value.code == Code.NOT_PERMITTED
