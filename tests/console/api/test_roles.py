"""Who may ask what: every endpoint as every role, signed out, and without the page's own token."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx

from console.identity.accounts import AccountFile
from console.identity.roles import Rank, RoleName
from console.main import described_api

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
PASSWORD = "correct horse battery"
ROLES: tuple[RoleName, ...] = ("viewer", "operator", "admin")


async def signed_in(client: httpx.AsyncClient, name: str) -> dict[str, str]:
    """Sign in, and return the headers that the page of this account sends."""
    client.cookies.clear()
    answer = await client.post("/api/v1/session", json={"name": name, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return {"X-HoldMQ-CSRF": answer.json()["csrf"]}


def operations(document: dict[str, Any]) -> list[tuple[str, str, Rank]]:
    """Method, path and role of every endpoint but the stream, which does not end."""
    return [
        (method.upper(), re.sub(r"\{.*?\}", "nobody", path), Rank[operation["x-role"].upper()])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not path.endswith("/stream")
    ]


async def test_every_endpoint_refuses_the_roles_that_may_not(serve: Serve, tmp_path: Path) -> None:
    table = operations(await described_api())
    file = AccountFile(tmp_path / "console")
    for role in ROLES[::-1]:
        file.add(role, role, PASSWORD)
    async with serve(auth="accounts") as client:
        for method, path, needed in table:
            # Whatever a change says, it is refused before it is read; with a right role it is no JSON.
            answer = await client.request(method, path, content=b"x")
            assert (answer.status_code == 401) == (needed is not Rank.OPEN), path
        for name in ROLES:
            headers = await signed_in(client, name)
            for method, path, needed in table:
                if needed is Rank.OPEN or path.endswith("/session"):
                    continue
                if method != "GET":
                    foreign = await client.request(method, path, content=b"x")
                    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "CSRF"), path
                if Rank.of(name) < needed:
                    refused = await client.request(method, path, headers=headers, content=b"x")
                    assert refused.status_code == 403, (name, method, path)
                    assert refused.json()["error"]["code"] == "NOT_PERMITTED", (name, method, path)
