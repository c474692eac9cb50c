"""The analysts' page in a real browser: history zooms, SQL returns rows, files come, queries are saved."""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
from playwright.async_api import Browser, Page, expect
from web_pages import barriers_of, faults_of

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Append = Callable[..., None]


async def shown(page: Page) -> tuple[int, int, int]:
    """Return first, until and step of the range that is drawn."""
    drawn = await page.locator("#history-chart").evaluate("(box) => ({...box.dataset})")
    return int(drawn["first"]), int(drawn["until"]), int(drawn["step"])


async def counts(append_rows: Append) -> int:
    """Write an hour of two topics, a row each ten seconds; return its end."""
    until = int(time.time()) // 10 * 10
    rows = [
        row
        for second in range(until - 3600, until, 10)
        for row in ((second, "devices", 40, 400), (second, "meters", 2, 20))
    ]
    await asyncio.to_thread(append_rows, rows)
    return until


async def test_the_past_is_drawn_zoomed_into_and_out_of_again_and_comes_as_a_file(
    serve: Serve,
    append_rows: Append,
    append_reports: Callable[[int], None],
    browser: Browser,
    tmp_path: Path,
) -> None:
    await counts(append_rows)
    async with serve() as client:
        page = await browser.new_page()
        faults = faults_of(page)
        await page.goto(f"{client.base_url}/analysis")
        await expect(page.locator("#history-legend")).to_contain_text("devices")
        await expect(page.locator("#history-source")).to_contain_text("tps_1s")
        first, until, step = await shown(page)
        assert 3600 <= until - first <= 3610
        assert step == 5
        await expect(page.locator("#latency-notice")).to_contain_text("there is no table latency yet")
        # Dragged over the middle third.
        box = await page.locator("#history-chart .u-over").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        await page.mouse.move(box["x"] + box["width"] / 3, middle)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * 2 / 3, middle, steps=5)
        await page.mouse.up()
        await expect(page.locator("#history-chart")).to_have_attribute("data-step", "2")
        near_first, near_until, _ = await shown(page)
        assert first + 1000 < near_first < near_until < until - 1000
        # What the job writes by now is shown with the next range.
        await asyncio.to_thread(append_reports, (near_first + near_until) // 2)
        # By keyboard: narrower, back to what was dragged, back to the hour.
        await page.locator("#history-in").press("Enter")
        await expect(page.locator("#history-chart")).to_have_attribute("data-step", "1")
        await page.locator("#history-back").press("Enter")
        await expect(page.locator("#history-chart")).to_have_attribute("data-first", str(near_first))
        await page.locator("#history-back").press("Enter")
        await expect(page.locator("#history-chart")).to_have_attribute("data-step", "5")
        await expect(page.locator("#latency-legend")).to_contain_text("p99max 100")
        await expect(page.locator("#backlog-legend")).to_contain_text("readersmax 9")
        await expect(page.locator("#talkers tbody tr").first).to_have_text("loud50")
        await expect(page.locator("#backlog-notice")).to_be_hidden()
        async with page.expect_download() as coming:
            await page.click("#history-csv")
        # Years ago there was nothing: each chart says so.
        await page.fill("#history-from", "2020-01-01T00:00:00")
        await page.fill("#history-to", "2020-01-01T01:00:00")
        await page.locator("#history-to").press("Enter")
        await expect(page.locator("#history-notice")).to_contain_text("no messages were counted")
        await expect(page.locator("#backlog-notice")).to_contain_text("no group's backlog")
        await expect(page.locator("#talkers-notice")).to_contain_text("no devices")
        file = tmp_path / "history.csv"
        await (await coming.value).save_as(file)
        rows = list(csv.DictReader(file.read_text().splitlines()))
        assert {row["topic"] for row in rows} == {"devices", "meters"}
        assert sum(int(row["messages"]) for row in rows if row["topic"] == "devices") > 40 * 300
        assert faults == []
        await page.close()


async def test_sql_returns_rows_and_the_same_rows_as_a_file(
    serve: Serve, append_rows: Append, browser: Browser, tmp_path: Path
) -> None:
    append_rows([(int(time.time()) - 60, '<b>,"', 3, 30), (int(time.time()) - 60, "meters", 1, 10)])
    append_rows([(int(time.time()) - 60, "=1+2", 0, 0)])
    async with serve(sql_rows_max=5) as client:
        page = await browser.new_page()
        faults = faults_of(page)
        await page.goto(f"{client.base_url}/analysis")
        text = page.locator("#sql-text")
        await text.fill(
            "SELECT topic, sum(messages) - 1 AS n, NULL AS x FROM tps_1s GROUP BY 1 ORDER BY n DESC"
        )
        await text.press("Control+Enter")
        await expect(page.locator("#sql-result tbody tr")).to_have_count(3)
        await expect(page.locator("#sql-result tbody tr").first).to_have_text('<b>,"2NULL')
        await expect(page.locator("#sql-status")).to_contain_text("3 rows")
        async with page.expect_download() as coming:
            await page.click("#sql-csv")
        file = tmp_path / "query.csv"
        await (await coming.value).save_as(file)
        assert list(csv.reader(file.read_bytes().decode().splitlines())) == [
            ["topic", "n", "x"],
            ['<b>,"', "2", ""],
            ["meters", "0", ""],
            ["'=1+2", "-1", ""],
        ]
        await text.fill("SELECT i FROM range(100) t(i)")
        await page.click("#sql-run")
        await expect(page.locator("#sql-notice")).to_contain_text("only the first 5 rows")
        assert faults == []
        await text.fill("COPY tps_1s TO '/tmp/out.csv'")
        await page.click("#sql-run")
        await expect(page.locator("#sql-notice")).to_contain_text("only read")
        await expect(page.locator("#sql-csv")).to_be_disabled()
        await text.fill("SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE i + j = 7")
        await page.click("#sql-run")
        await page.click("#sql-stop")
        await expect(page.locator("#sql-notice")).to_have_text("stopped")
        await page.close()


async def test_a_query_is_chosen_saved_and_deleted(
    serve: Serve, append_rows: Append, browser: Browser
) -> None:
    append_rows([(int(time.time()) - 60, "devices", 3, 30)])
    async with serve() as client:
        page = await browser.new_page()
        faults = faults_of(page)
        await page.goto(f"{client.base_url}/analysis")
        await page.select_option("#queries", "Messages per topic, last hour")
        await expect(page.locator("#query-delete")).to_be_disabled()
        await page.click("#sql-run")
        await expect(page.locator("#sql-result tbody tr")).to_have_text("devices330")
        await page.fill("#sql-text", "SELECT 'mine'")
        await page.fill("#query-name", "my/own ü")
        await page.locator("#query-name").press("Enter")
        await expect(page.locator("#queries")).to_have_value("my/own ü")
        await page.reload()
        await page.select_option("#queries", "my/own ü")
        await expect(page.locator("#sql-text")).to_have_value("SELECT 'mine'")
        await page.click("#query-delete")
        await expect(page.locator("#queries")).to_have_value("")
        await expect(page.locator("#queries")).not_to_contain_text("my/own")
        assert faults == []
        await page.close()


async def test_the_page_fits_a_phone_in_both_themes(
    serve: Serve, append_rows: Append, browser: Browser
) -> None:
    await counts(append_rows)
    async with serve() as client:
        page = await browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
        faults = faults_of(page)
        await page.goto(f"{client.base_url}/analysis")
        await expect(page.locator("#history-legend")).to_contain_text("meters")
        await page.fill("#sql-text", "SELECT repeat('wide ', 200), * FROM tps_1s")
        await page.click("#sql-run")
        await expect(page.locator("#sql-result tbody tr").first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        for colour in ("rgb(16, 18, 20)", "rgb(250, 249, 246)"):
            assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == colour
            await expect(page.locator("#history-legend")).to_contain_text("meters")
            assert await barriers_of(page) == []
            await page.click("#menu")
            await page.click("#theme")
            await page.keyboard.press("Escape")
        assert faults == []
        await page.close()
