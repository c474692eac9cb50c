"""The page in a real browser, over a table that grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page, expect
from web_pages import barriers_of, faults_of

from console.identity.accounts import AccountFile

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Append = Callable[..., None]


async def keep_counting(append_rows: Append) -> None:
    """Write 40 messages of `devices` and 2 of `meters` for every second that has ended."""
    written = int(time.time()) - 20
    batch = 0
    while True:
        until = int(time.time())
        rows = [
            row
            for second in range(written, until)
            for row in ((second, "devices", 40, 400), (second, "meters", 2, 20))
        ]
        if rows:
            await asyncio.to_thread(append_rows, rows, batch)
            batch += 1
        written = until
        await asyncio.sleep(0.3)


async def picture_of(page: Page) -> str:
    return str(await page.evaluate("document.querySelector('#tps-chart canvas').toDataURL()"))


async def test_the_page_shows_the_rate_and_the_chart_moves(
    serve: Serve, append_rows: Append, browser: Browser
) -> None:
    counting = asyncio.create_task(keep_counting(append_rows))
    async with serve() as client:
        page = await browser.new_page()
        faults = faults_of(page)
        await page.goto(str(client.base_url))
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("#tps-total")).to_have_text("42")
        await expect(page.locator("#legend")).to_contain_text("devices")
        await expect(page.locator("#topic-devices .rate")).to_have_text("40")
        await expect(page.locator("#topic-meters .rate")).to_have_text("2")
        before = await picture_of(page)
        async with asyncio.timeout(60):
            while await picture_of(page) == before:
                await asyncio.sleep(0.1)
        await expect(page.locator("#cluster-notice")).to_contain_text("cannot be asked")
        assert faults == []
        await page.close()
    counting.cancel()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_a_phone_in_both_themes(
    serve: Serve, append_rows: Append, browser: Browser, scheme: str
) -> None:
    append_rows([(int(time.time()) - 3, f"a-topic-with-a-long-name-{k}", 40, 400) for k in range(12)])
    async with serve() as client:
        page = await browser.new_page(
            viewport={"width": 360, "height": 740}, color_scheme="dark" if scheme == "dark" else "light"
        )
        faults = faults_of(page)
        await page.goto(str(client.base_url))
        await expect(page.locator("#legend")).to_contain_text("others")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(16, 18, 20)" if scheme == "dark" else "rgb(250, 249, 246)")
        assert await barriers_of(page) == []
        await page.click("#menu")
        await page.click("#theme")
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != background
        assert faults == []
        await page.close()


async def test_an_empty_table_is_said_and_not_drawn_as_an_error(serve: Serve, browser: Browser) -> None:
    async with serve() as client:
        page = await browser.new_page()
        await page.goto(str(client.base_url))
        await expect(page.locator("#notice")).to_contain_text("there is no table")
        await expect(page.locator("#tps-total")).to_have_text("0")
        await expect(page.locator("#topics")).to_contain_text("No topics yet")
        await page.close()


async def test_a_name_is_text_and_never_markup(serve: Serve, append_rows: Append, browser: Browser) -> None:
    append_rows([(int(time.time()) - 3, "<img src=x onerror=alert(1)>", 4, 4)])
    async with serve() as client:
        page = await browser.new_page()
        await page.goto(str(client.base_url))
        await expect(page.locator("#topics tbody")).to_contain_text("<img src=x")
        assert await page.locator("#topics img, #legend img").count() == 0
        await page.close()


async def test_the_page_says_when_the_console_is_gone_and_comes_back_with_it(
    serve: Serve, append_rows: Append, browser: Browser
) -> None:
    async with serve() as client:
        page = await browser.new_page()
        port = client.base_url.port
        await page.goto(str(client.base_url))
        await expect(page.locator("#live")).to_have_text("live")
    await expect(page.locator("#live")).to_have_text("no connection")
    async with serve(port=port):
        await expect(page.locator("#live")).to_have_text("live", timeout=60_000)
        await page.close()


async def test_a_page_that_looks_on_is_told_that_its_session_is_over(
    serve: Serve, browser: Browser, tmp_path: Path
) -> None:
    accounts = AccountFile(tmp_path / "console")
    accounts.add("admin", "admin", "correct horse battery")
    async with serve(auth="accounts") as client:
        page = await browser.new_page()
        await page.goto(str(client.base_url))
        await page.get_by_label("Name").fill("admin")
        await page.get_by_label("Password", exact=True).fill("correct horse battery")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#live")).to_have_text("live")
        accounts.set_password("admin")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in", timeout=30_000)
        await expect(page.locator("#said")).to_contain_text("You are signed out")
        await page.close()
