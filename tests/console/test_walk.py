"""The console as people use it, in a real browser over a real installation: from the first sign-in on."""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from mqtt_client import MqttClient
from playwright.async_api import Browser, Locator, Page, expect
from processes import Stack, free_port, running_stack
from web_pages import barriers_of, faults_of

from holdmq.client import Consumer, DeadLetters, GroupAdmin, Message, Producer

PASSWORD: Final = "a sentence is a good password"
STARTED_MS: Final = 240_000
"""For a job of Spark's, which starts a JVM, on a busy machine."""


class Installation:
    """Registry, broker, gateway and console, and what signs in there."""

    def __init__(self, stack: Stack, port: int) -> None:
        self.stack = stack
        self.url = f"http://127.0.0.1:{port}"
        self.passwords: dict[str, str] = {}

    @property
    def registries(self) -> list[str]:
        return [self.stack.registry]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    port, admin_port = free_port(), free_port()
    directory = tmp_path_factory.mktemp("walk")
    with running_stack(
        directory, **{"console.port": port, "console.admin_port": admin_port, "console.auth": "accounts"}
    ) as stack:
        stack.admin_ports["console"] = admin_port
        stack.start("console")
        yield Installation(stack, port)
    MqttClient.close_all()


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


async def first_sign_in(page: Page, place: Installation) -> None:
    """Sign in with the password that was printed, and choose another one."""
    printed = re.search(r'"password": "([^"]+)"', place.stack.log("console"))
    assert printed is not None
    await page.goto(place.url)
    await page.get_by_label("Name").fill("admin")
    await page.get_by_label("Password", exact=True).fill(printed[1])
    await button(page, "Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Choose your password")
    await page.get_by_label("Password that you were given").fill(printed[1])
    await page.get_by_label("New password", exact=True).fill(PASSWORD)
    await page.get_by_label("New password, again").fill(PASSWORD)
    await button(page, "Change and go on").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    place.passwords["admin"] = PASSWORD


@asynccontextmanager
async def signed_in(
    place: Installation, browser: Browser, name: str = "admin", **options: Any
) -> AsyncIterator[Page]:
    """A page of somebody who has signed in; its faults are none when it is closed."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    faults = faults_of(page)
    if name == "admin" and name not in place.passwords:
        await first_sign_in(page, place)
    else:
        await page.goto(place.url)
        await page.get_by_label("Name").fill(name)
        await page.get_by_label("Password", exact=True).fill(place.passwords[name])
        await button(page, "Sign in").click()
    if name == "admin":
        await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    yield page
    assert faults == []
    await context.close()


async def goto(page: Page, name: str) -> None:
    """Open a page by the navigation, and wait until it is there."""
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()
    await expect(page.locator("main")).to_have_attribute("aria-busy", "false")


async def test_a_topic_is_made_published_to_seen_found_grown_and_shrunk(
    installation: Installation, browser: Browser
) -> None:
    async with signed_in(installation, browser) as page:
        await goto(page, "Topics")
        await expect(page.locator("main")).to_contain_text("No topics yet")
        await button(page, "Create a topic").first.click()
        await button(dialog(page), "Create").click()
        await expect(dialog(page)).to_contain_text("Name is needed")
        await dialog(page).get_by_label("Name").fill("orders")
        await dialog(page).get_by_label("Queues on each broker").fill("2")
        await button(dialog(page), "Create").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("orders")
        # Published from the page: stored, in the live chart, in the search.
        for number in range(3):
            await button(page, "Publish").click()
            await dialog(page).get_by_label("Payload").fill(f'{{"pears": {number}}}')
            await dialog(page).get_by_label("Tag").fill("north/7")
            await dialog(page).get_by_label("Keys").fill(f"order-{number}")
            await dialog(page).get_by_label("Headers").fill("trace = <b>1</b>")
            await button(dialog(page), "Publish").click()
            await expect(dialog(page)).to_have_count(0)
            await expect(page.locator("#said")).to_contain_text("Stored in the log")
        messages = page.get_by_role("table", name="Messages of orders")
        await expect(messages.locator("tbody tr")).to_have_count(3)
        await expect(messages.locator("tbody tr").first).to_contain_text('{"pears": 2}')
        # The live chart has seen them come.
        await expect(page.locator(".legend li").first).to_have_text(re.compile(r"^inmax [1-9]"))
        await page.get_by_label("Find by").select_option("key")
        await page.get_by_label("What to find").fill("order-1")
        # The index is half a second behind, as the page says where it finds nothing: people ask again.
        async with asyncio.timeout(60):
            while await messages.locator("tbody tr").count() != 1:
                await button(page, "Find").click()
                await expect(button(page, "Find")).to_be_enabled()
        await messages.locator("tbody a").click()
        await expect(page.locator(".payload")).to_contain_text('"pears": 1')
        await button(page, "hex").click()
        await expect(page.locator(".payload")).to_contain_text("7b 22 70 65 61 72 73 22")
        await expect(page.locator("main")).to_contain_text("<b>1</b>")
        await page.go_back()
        await expect(messages.locator("tbody tr")).to_have_count(1)
        # More queues, then fewer, which wait for a group that lags.
        async with GroupAdmin(installation.registries) as groups:
            await groups.update("billing")
            await groups.reset("billing", "orders", "earliest")
        queues = page.get_by_role("table", name="Queues").locator("tbody tr")
        await button(page, "Queues").click()
        await dialog(page).get_by_label("Queues on each broker").fill("4")
        await button(dialog(page), "Change").click()
        await expect(queues).to_have_count(4)
        await expect(page.locator("#said")).to_contain_text("4 queues")
        await button(page, "Queues").click()
        await dialog(page).get_by_label("Queues on each broker").fill("1")
        await button(dialog(page), "Change").click()
        await expect(page.locator("#removal")).to_contain_text("'billing'")
        async with GroupAdmin(installation.registries) as groups:
            await groups.reset("billing", "orders", "latest")
        await expect(queues).to_have_count(1)
        await expect(page.locator("#removal")).to_be_hidden()
        # Paused, resumed, and at last deleted, by its name.
        await button(page, "Pause").click()
        await button(dialog(page), "Pause").click()
        await expect(page.locator("#topic-state")).to_contain_text("paused")
        await button(page, "Resume").click()
        await button(dialog(page), "Resume").click()
        await expect(page.locator("#topic-state")).to_contain_text("serving")
        await button(page, "Delete").click()
        await expect(button(dialog(page), "Delete")).to_be_disabled()
        await dialog(page).get_by_label("Type orders to confirm").fill("orders")
        await dialog(page).get_by_label("At once").check()
        await button(dialog(page), "Delete").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
        await expect(page.locator("main")).to_contain_text("No topics yet")


async def test_a_group_is_reset_after_a_preview(installation: Installation, browser: Browser) -> None:
    async with Producer(installation.registries) as producer, GroupAdmin(installation.registries) as groups:
        await producer.send_batch([Message("readings", b"%d" % n) for n in range(10)])
        await groups.update("dashboard")
        await groups.reset("dashboard", "readings", "latest")
        async with signed_in(installation, browser) as page:
            await goto(page, "Groups")
            await page.get_by_role("link", name="dashboard").click()
            await expect(page.get_by_role("table", name="Offsets and backlog")).to_contain_text("readings")
            await button(page, "Reset").click()
            await dialog(page).get_by_label("To", exact=True).select_option("earliest")
            await button(dialog(page), "Preview").click()
            await expect(dialog(page)).to_contain_text("10 messages are delivered again")
            # Left at the preview, nothing has moved.
            await page.keyboard.press("Escape")
            await expect(button(page, "Reset")).to_be_focused()
            assert sum(queue.lag for queue in await groups.progress("dashboard")) == 0
            await button(page, "Reset").click()
            await dialog(page).get_by_label("To", exact=True).select_option("earliest")
            await button(dialog(page), "Preview").click()
            await button(dialog(page), "Reset").click()
            await expect(page.locator("#said")).to_contain_text("goes on at the oldest message")
            assert sum(queue.lag for queue in await groups.progress("dashboard")) == 10
            await expect(page.locator("main .facts")).to_contain_text("10")


async def test_a_session_is_found_and_kicked(installation: Installation, browser: Browser) -> None:
    device = MqttClient(installation.stack.mqtt_port, "meter-42")
    device.subscribe("commands/42/#")
    MqttClient(installation.stack.mqtt_port, "valve-7")
    async with signed_in(installation, browser) as page:
        await goto(page, "Sessions")
        await expect(page.get_by_role("link", name="valve-7")).to_be_visible()
        await page.get_by_label("Client id begins with").fill("meter-")
        await expect(page.get_by_role("link", name="valve-7")).to_have_count(0)
        await page.get_by_role("link", name="meter-42").click()
        await expect(page.get_by_role("table", name="Subscriptions")).to_contain_text("commands/42/#")
        await expect(page.locator("#session-state")).to_contain_text("connected")
        await button(page, "Disconnect").click()
        await button(dialog(page), "Disconnect").click()
        await expect(page.locator("#session-state")).to_contain_text("away")
        await button(page, "Forget").click()
        await dialog(page).get_by_label("Type meter-42 to confirm").fill("meter-42")
        await button(dialog(page), "Forget").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
        await expect(page.get_by_role("link", name="valve-7")).to_be_visible()
        await expect(page.get_by_role("link", name="meter-42")).to_have_count(0)


async def test_a_dead_letter_is_read_and_sent_again(installation: Installation, browser: Browser) -> None:
    registries = installation.registries
    seen: list[bytes] = []

    async def handle(message: Message) -> bool:
        seen.append(message.body)
        return False

    async with GroupAdmin(registries) as groups, DeadLetters(registries) as letters:
        await groups.update("invoicing", delay_levels_ms=[100], retry_max_times=0)
        async with (
            Consumer(registries, "invoicing", handle, ["bills"], start="earliest"),
            Producer(registries) as producer,
        ):
            await producer.send(Message("bills", b'{"amount": "<img src=x>"}', "north"))
            while "invoicing" not in await letters.groups():
                await asyncio.sleep(0.05)
    async with signed_in(installation, browser) as page:
        await goto(page, "Dead letters")
        await page.get_by_role("link", name="invoicing").click()
        table = page.get_by_role("table", name="Dead letters of invoicing")
        await table.locator("tbody button").first.click()
        await expect(dialog(page).locator(".payload")).to_contain_text('"amount": "<img src=x>"')
        assert await page.locator("img").count() == 0
        await button(dialog(page), "Send again").click()
        await expect(page.locator("#said")).to_contain_text("sent again")
        await expect(page.locator("main")).to_contain_text("1 in all, 1 of them sent again")
        await expect(table.locator("tbody tr")).to_contain_text("by admin")
        await button(page, "Purge").click()
        await dialog(page).get_by_label("Type invoicing to confirm").fill("invoicing")
        await button(dialog(page), "Purge").click()
        await expect(page.locator("main")).to_contain_text("This group has no dead letters")


async def test_the_configuration_is_reloaded_and_what_came_of_it_is_said(
    installation: Installation, browser: Browser
) -> None:
    async with signed_in(installation, browser) as page:
        await expect(page.locator("#broker-broker-0")).to_contain_text("serving")
        await button(page, "Reload configuration").click()
        await dialog(page).get_by_label("Which services").select_option("broker broker-0")
        await button(dialog(page), "Reload").click()
        await expect(dialog(page)).to_contain_text("What came of it")
        await expect(dialog(page).locator("#reloaded")).to_have_text("broker broker-0nothing to change")
        await button(dialog(page), "Close").click()
        await expect(dialog(page)).to_have_count(0)


async def test_roles_see_what_they_may_and_the_server_refuses_the_rest(
    installation: Installation, browser: Browser
) -> None:
    async with signed_in(installation, browser) as page:
        await goto(page, "Accounts")
        for name, role in (("otto", "operator"), ("vera", "viewer")):
            await button(page, "Create an account").click()
            await dialog(page).get_by_label("Name").fill(name)
            await dialog(page).get_by_label("Role").select_option(role)
            await button(dialog(page), "Create").click()
            installation.passwords[name] = await dialog(page).locator(".secret").inner_text()
            await button(dialog(page), "Close").click()
            await expect(page.get_by_role("table", name="Accounts")).to_contain_text(name)
    for name, seen, refused in (
        ("vera", "", "POST /api/v1/topics"),
        ("otto", "Create a topic", "GET /api/v1/accounts"),
    ):
        async with signed_in(installation, browser, name) as page:
            await expect(page.get_by_role("heading", level=1)).to_have_text("Choose your password")
            await page.get_by_label("Password that you were given").fill(installation.passwords[name])
            await page.get_by_label("New password", exact=True).fill(PASSWORD)
            await page.get_by_label("New password, again").fill(PASSWORD)
            await button(page, "Change and go on").click()
            await goto(page, "Topics")
            await expect(page.get_by_role("table", name="Topics")).to_be_visible()
            assert await button(page, "Create a topic").count() == (1 if seen else 0)
            assert await page.get_by_role("link", name="Accounts").count() == 0
            # What is not offered is not allowed either, whoever asks with this sign-in.
            method, path = refused.split(" ")
            assert await status_of(page, method, installation.url + path) == 403


async def status_of(page: Page, method: str, url: str) -> int:
    """The answer's status to a request with the page's sign-in."""
    asking = page.context.request
    session = await (await asking.get(f"{url.split('/api', maxsplit=1)[0]}/api/v1/session")).json()
    answer = await asking.fetch(
        url,
        method=method,
        headers={"Content-Type": "application/json", "X-HoldMQ-CSRF": session["csrf"]},
        data=None if method == "GET" else "{}",
    )
    return answer.status


@asynccontextmanager
async def published_meanwhile(place: Installation, topic: str) -> AsyncIterator[list[bytes]]:
    """A device that publishes to `topic` until the block ends; gives what is acknowledged, as it grows."""
    device = await asyncio.to_thread(MqttClient, place.stack.mqtt_port, "meter-7")
    done: list[bytes] = []
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set():
            payload = b"%d" % len(done)
            await asyncio.to_thread(device.publish, topic, payload)
            done.append(payload)
            await asyncio.sleep(0.05)

    publishing = asyncio.create_task(publish())
    try:
        yield done
    finally:
        is_over.set()
        await publishing
        device.disconnect()


async def picture_of(page: Page) -> str:
    return str(await page.evaluate("document.querySelector('#tps-chart canvas').toDataURL()"))


@pytest.mark.timeout(600)  # among the rest of the tests Spark may take minutes
async def test_what_devices_publish_is_in_the_live_chart_and_every_message_in_sql_and_its_file(
    installation: Installation, browser: Browser, tmp_path: Path
) -> None:
    stack = installation.stack
    stack.start("stats", wait=False)
    async with signed_in(installation, browser) as page:
        await goto(page, "Overview")
        async with published_meanwhile(installation, "power/7/watts") as done:
            # The job starts a JVM; then the line comes, and moves on with each second.
            await expect(page.locator("#live")).to_have_text("live")
            await expect(page.locator("#legend")).to_contain_text("power", timeout=STARTED_MS)
            await expect(page.locator("#tps-total")).to_have_text(re.compile("^[1-9]"))
            await expect(page.locator("#fact-peak")).to_have_text(re.compile("^[1-9]"))
            await expect(page.locator("#topic-power .rate")).to_have_text(re.compile("^[1-9]"))
            before = await picture_of(page)
            async with asyncio.timeout(STARTED_MS / 1000):
                while await picture_of(page) == before:
                    await asyncio.sleep(0.1)
        await expect(page.locator("#topic-power .rate")).to_have_text("0")
        # No message more and none less than was acknowledged, once the job has counted the last.
        await goto(page, "Analysis")
        await page.locator("#sql-text").fill(
            "SELECT topic, sum(messages) AS messages, sum(bytes) AS bytes FROM tps_1s "
            "WHERE topic = 'power' GROUP BY topic"
        )
        size = sum(map(len, done))
        row = page.locator("#sql-result tbody tr")
        async with asyncio.timeout(STARTED_MS / 1000):
            while True:
                await button(page, "Run").click()
                await expect(page.locator("#sql-status")).to_contain_text("1 row")
                if await row.all_inner_texts() == [f"power\t{len(done)}\t{size}"]:
                    break
        await expect(page.locator("#sql-result th")).to_have_text(
            ["topicvarchar", "messageshugeint", "byteshugeint"]
        )
        async with page.expect_download() as coming:
            await page.locator("#sql-csv").click()
        file = tmp_path / "query.csv"
        await (await coming.value).save_as(file)
        assert list(csv.reader(file.read_text().splitlines())) == [
            ["topic", "messages", "bytes"],
            ["power", str(len(done)), str(size)],
        ]
    assert await asyncio.to_thread(stack.stop, "stats") == 0


async def test_who_is_told_of_what_was_done_and_every_page_keeps_nobody_from_using_it(
    installation: Installation, browser: Browser
) -> None:
    for scheme in ("light", "dark"):
        async with signed_in(installation, browser, color_scheme=scheme) as page:
            for name in (
                "Overview",
                "Replicas",
                "Alarms",
                "Topics",
                "Search",
                "Groups",
                "Dead letters",
                "Sessions",
                "Connections",
                "Analysis",
                "Accounts",
                "Audit",
            ):
                await goto(page, name)
                await expect(page.locator("main [aria-busy=true]")).to_have_count(0)
                assert await barriers_of(page) == [], name
            await expect(page.get_by_role("table", name="Audit")).to_contain_text("admin")
