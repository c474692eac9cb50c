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


async def test_a_password_that_was_given_out_is_good_for_choosing_another_and_nothing_else(
    serve: Serve, tmp_path: Path
) -> None:
    _, given = AccountFile(tmp_path / "console").add("new", "admin")
    async with serve(auth="accounts") as client:
        answer = await client.post("/api/v1/session", json={"name": "new", "password": given})
        assert answer.json()["account"]["must_change_password"]
        headers = {"X-HoldMQ-CSRF": answer.json()["csrf"]}
        refused = 0
        for method, path, needed in operations(await described_api()):
            if needed is Rank.OPEN or path.startswith("/api/v1/session"):
                continue
            answer = await client.request(method, path, headers=headers, content=b"x")
            assert answer.status_code == 403, (method, path)
            assert answer.json()["error"]["code"] == "PASSWORD_NOT_CHOSEN", (method, path)
            assert "PUT /api/v1/session/password" in answer.json()["error"]["message"]
            refused += 1
        assert refused > 20
        # Whoever does not choose one may go, and come again.
        assert (await client.delete("/api/v1/session", headers=headers)).status_code == 204
        answer = await client.post("/api/v1/session", json={"name": "new", "password": given})
        headers = {"X-HoldMQ-CSRF": answer.json()["csrf"]}
        chosen = await client.put(
            "/api/v1/session/password", headers=headers, json={"old": given, "new": PASSWORD}
        )
        headers = {"X-HoldMQ-CSRF": chosen.json()["csrf"]}
        assert (await client.get("/api/v1/accounts", headers=headers)).status_code == 200
