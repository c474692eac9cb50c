"""Signing in as it is served: cookies, wrong passwords, what ends a session, tokens, and what logs say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
import structlog

from console.identity.accounts import FILE, AccountFile
from console.identity.identity import RULES
from console.sql.box import STARTS

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
PASSWORD = "correct horse battery"
SESSION = "/api/v1/session"


@pytest.fixture
def accounts(tmp_path: Path) -> AccountFile:
    """An admin and a viewer of the console that `serve` serves."""
    file = AccountFile(tmp_path / "console")
    file.add("admin", "admin", PASSWORD)
    file.add("ann", "viewer", PASSWORD)
    return file


async def sign_in(client: httpx.AsyncClient, name: str = "admin", password: str = PASSWORD) -> httpx.Response:
    response = await client.post(SESSION, json={"name": name, "password": password})
    if response.status_code == 200:
        client.headers["X-HoldMQ-CSRF"] = response.json()["csrf"]
    return response


async def test_a_cookie_is_no_scripts_and_no_other_sites(serve: Serve, accounts: AccountFile) -> None:
    async with serve(auth="accounts", trusted_proxies=["127.0.0.1"]) as client:
        assert (await client.get(SESSION)).json() == {"account": None, "csrf": "", "auth": "accounts"}
        cookie = (await sign_in(client)).headers["set-cookie"]
        for flag in ("HttpOnly", "SameSite=strict", "Path=/"):
            assert flag in cookie
        assert "Secure" not in cookie
        own = (await client.get(SESSION)).json()
        assert own["account"] == {"name": "admin", "role": "admin", "must_change_password": False}
        assert (await client.delete(SESSION)).status_code == 204
        assert (await client.get("/api/v1/tps")).status_code == 401
        secure = await client.post(
            SESSION, json={"name": "ann", "password": PASSWORD}, headers={"X-Forwarded-Proto": "https"}
        )
        assert "Secure" in secure.headers["set-cookie"]


async def test_a_forwarded_address_of_a_stranger_is_not_believed(serve: Serve, accounts: AccountFile) -> None:
    async with serve(auth="accounts") as client:
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
        answer = await client.post(SESSION, json={"name": "ann", "password": PASSWORD}, headers=headers)
        assert "Secure" not in answer.headers["set-cookie"]


@pytest.mark.parametrize("name", ["admin", "nobody"])
async def test_wrong_passwords_are_limited_alike_for_every_name(
    serve: Serve, accounts: AccountFile, name: str
) -> None:
    async with serve(auth="accounts") as client:
        answers = [
            await sign_in(client, name, f"wrong password {number}")
            for number in range(RULES.failures_max + 2)
        ]
        assert [one.status_code for one in answers] == [401] * (RULES.failures_max + 1) + [429]
        assert len({one.text for one in answers[:-1]}) == 1
        assert answers[-1].headers["retry-after"] == "60"
        # The right one is not tried either, or who guesses would learn it.
        assert (await sign_in(client, name)).status_code == 429


async def test_a_change_of_role_password_or_account_ends_its_sessions(
    serve: Serve, accounts: AccountFile
) -> None:
    async with serve(auth="accounts") as client:
        for change in ({"role": "operator"}, {"disabled": True}, {"disabled": False, "role": "viewer"}):
            ann = httpx.AsyncClient(base_url=client.base_url, timeout=60)
            signed = (await sign_in(ann, "ann")).status_code == 200
            await sign_in(client)
            assert (await client.patch("/api/v1/accounts/ann", json=change)).status_code == 200
            assert (await ann.get("/api/v1/tps")).status_code == 401
            assert signed == (change != {"disabled": False, "role": "viewer"})
            await ann.aclose()
        await sign_in(client, "ann")
        before = dict(client.cookies)
        new = {"old": PASSWORD, "new": "another password"}
        changed = await client.put(f"{SESSION}/password", json=new)
        assert changed.json()["account"]["name"] == "ann"
        assert (await client.get("/api/v1/queries")).status_code == 200
        async with httpx.AsyncClient(base_url=client.base_url, cookies=before, timeout=60) as other:
            assert (await other.get("/api/v1/queries")).status_code == 401
        assert (await sign_in(client, "ann")).status_code == 401


@pytest.mark.parametrize("ending", ["signs out", "role", "closed", "gone", "password", "token"])
async def test_an_open_stream_ends_with_its_session(serve: Serve, accounts: AccountFile, ending: str) -> None:
    async with serve(auth="accounts") as client:
        headers = {}
        if ending == "token":
            headers = {"Authorization": f"Bearer {accounts.add_token('ci', 'viewer', None, 'admin')[1]}"}
        async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as page:
            if ending != "token":
                await sign_in(page, "ann")
            async with page.stream("GET", "/api/v1/stream") as stream:
                lines = stream.aiter_lines()
                while not (await anext(lines)).startswith("data: "):
                    pass
                match ending:
                    case "signs out":
                        assert (await page.delete(SESSION)).status_code == 204
                    case "role":
                        accounts.change("ann", role="operator")
                    case "closed":
                        accounts.change("ann", disabled=True)
                    case "gone":
                        accounts.remove("ann")
                    case "password":
                        accounts.set_password("ann")
                    case "token":
                        accounts.remove_token("ci")
                # Whoever has another session looks on.
                await sign_in(client)
                async with client.stream("GET", "/api/v1/stream") as other:
                    async for _ in lines:
                        pass
                    more = other.aiter_lines()
                    while not (await anext(more)).startswith("data: "):
                        pass
            assert (await page.get("/api/v1/stream")).status_code == 401


async def test_a_token_does_what_its_role_may_and_no_more(serve: Serve, accounts: AccountFile) -> None:
    async with serve(auth="accounts") as client:
        await sign_in(client)
        made = (await client.post("/api/v1/tokens", json={"name": "ci", "role": "viewer", "days": 1})).json()
        headers = {"Authorization": f"Bearer {made['token']}"}
        async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as program:
            assert (await program.get("/api/v1/tps")).status_code == 200
            assert (await program.post("/api/v1/sql", json={"sql": "SELECT 1"})).status_code == 200
            assert (await program.get("/api/v1/audit")).status_code == 403
            assert "token" not in (await client.get("/api/v1/tokens")).json()["tokens"][0]
            assert (await client.delete("/api/v1/tokens/ci")).status_code == 204
            assert (await program.get("/api/v1/tps")).status_code == 401


async def test_the_page_of_the_past_starts_its_process_for_those_who_signed_in_only(
    serve: Serve, accounts: AccountFile
) -> None:
    def started() -> float:
        return float(STARTS.labels("page")._value.get())

    async with serve(auth="accounts") as client:
        before = started()
        assert (await client.get("/analysis")).status_code == 200
        await asyncio.sleep(0)
        assert started() == before
        await sign_in(client, "ann")
        assert (await client.get("/topics")).status_code == (await client.get("/analysis")).status_code == 200
        async with asyncio.timeout(60):
            while started() == before:
                await asyncio.sleep(0.01)
        assert (await client.get("/api/v1/history")).status_code == 200
        assert started() == before + 1


async def test_no_secret_is_in_logs_or_files(serve: Serve, accounts: AccountFile, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serve(auth="accounts") as client:
            await sign_in(client, "ann", "a password with a slip")
            await sign_in(client)
            bob = (await client.post("/api/v1/accounts", json={"name": "bob", "role": "viewer"})).json()
            token = (await client.post("/api/v1/tokens", json={"name": "ci", "role": "viewer"})).json()
            cookie = client.cookies["holdmq_console"]
    written = str(logs) + (tmp_path / "console/audit.jsonl").read_text()
    written += (tmp_path / "console" / FILE).read_text()
    for secret in (PASSWORD, "a password with a slip", bob["password"], token["token"], cookie):
        assert secret not in written


async def test_the_first_password_is_told_once(serve: Serve, tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            async with serve(auth="accounts") as client:
                told += [line["password"] for line in logs if "password" in line]
                assert (await sign_in(client, "admin", told[0])).status_code == 200
    assert len(told) == 1
