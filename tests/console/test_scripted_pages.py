"""Every page over a scripted API: nobody is kept from using it, roles, errors beside their cause, dialogs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import unquote

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from scripted_console import ODD_NAME, ScriptedConsole, refusal, scripted_console
from web_pages import barriers_of, faults_of

from console.app import STATIC
from console.main import described_api

PAGES = {
    "Topics": "/topics",
    "plant-000": "/topics/plant-000",
    "Find messages": "/messages?topic=plant-000",
    "Message": "/messages/00000000000000000000000000000001",
    "Groups": "/groups",
    "billing": "/groups/billing",
    "Dead letters": "/dead-letters",
    "billing ": "/dead-letters/billing",
    "Clients": "/clients",
    "meter-001 ": "/clients/meter-001",
    "Bans": "/bans",
    "Quotas": "/quotas",
    "Tenants": "/tenants",
    "Sessions": "/sessions",
    "meter-001": "/sessions/meter-001",
    "Connections": "/connections",
    "Replicas": "/replicas",
    "Alarms": "/alarms",
    "Accounts": "/accounts",
    "Audit": "/audit",
    "There is no such page": "/nothing",
}
"""Every page but those of the counts, whose tests have a table: its title, and its address."""


@pytest.fixture
async def script() -> AsyncIterator[ScriptedConsole]:
    async with scripted_console() as script:
        yield script


def button(place: Page | Locator, name: str) -> Locator:
    return place.get_by_role("button", name=name, exact=True)


async def opened(browser: Browser, script: ScriptedConsole, path: str) -> tuple[Page, list[str]]:
    page = await browser.new_page()
    faults = faults_of(page)
    await page.goto(script.url + path)
    await expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    return page, faults


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_fits_a_phone_and_keeps_nobody_from_using_it(
    script: ScriptedConsole, browser: Browser, scheme: str
) -> None:
    phone = {"width": 390, "height": 844}
    page = await browser.new_page(viewport=phone, color_scheme="dark" if scheme == "dark" else "light")  # type: ignore[arg-type]
    faults = faults_of(page)
    for title, path in PAGES.items():
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.goto(script.url + path)
        await expect(page.get_by_role("heading", level=1)).to_have_text(title.strip())
        await expect(page.locator("main [aria-busy=true]")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert await barriers_of(page) == [], path
        await page.set_viewport_size({"width": 1440, "height": 900})
        assert await barriers_of(page) == [], path
        assert await page.locator("main img").count() == 0, path
    assert faults == []
    await page.close()


async def test_the_first_sign_in_asks_for_a_password_of_ones_own_and_goes_on_where_it_was(
    script: ScriptedConsole, browser: Browser
) -> None:
    script.account = None
    page, faults = await opened(browser, script, "/groups")
    await expect(page.get_by_label("Name")).to_be_focused()
    assert await barriers_of(page) == []
    await button(page, "Sign in").click()
    await expect(page.locator("main")).to_contain_text("Name is needed")
    await page.get_by_label("Name").fill("ada")
    await page.get_by_label("Password").fill("printed once")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Choose your password")
    await page.get_by_label("Password that you were given").fill("printed once")
    await page.get_by_label("New password", exact=True).fill("a sentence is good")
    await page.get_by_label("New password, again").fill("a sentence")
    await button(page, "Change and go on").click()
    await expect(page.locator("main")).to_contain_text("the two are not the same")
    assert await barriers_of(page) == []
    await page.get_by_label("New password, again").fill("a sentence is good")
    await button(page, "Change and go on").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    # Out again by the menu.
    await page.locator("#account-menu summary").click()
    assert await barriers_of(page) == []
    await button(page, "Sign out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert [(method, path) for method, path, _ in script.said] == [
        ("POST", "session"),
        ("PUT", "session/password"),
        ("DELETE", "session"),
    ]
    assert faults == []
    await page.close()


async def test_who_was_signed_out_meanwhile_is_asked_and_goes_on(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, _ = await opened(browser, script, "/topics")
    script.account = None
    await page.get_by_label("Search topics").fill("plant-00")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    await expect(page.locator("#said")).to_contain_text("You are signed out")
    script.account = {"name": "ada", "role": "admin", "must_change_password": False}
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    await expect(page.get_by_label("Search topics")).to_have_value("plant-00")
    await page.close()


async def test_who_must_choose_a_password_meanwhile_is_asked_and_goes_on(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, _ = await opened(browser, script, "/groups")
    # Another tab of this browser has signed in with a password that was given out.
    script.account = {"name": "new", "role": "viewer", "must_change_password": True}
    script.refused["GET sessions"] = refusal(403, "PASSWORD_NOT_CHOSEN", "choose another one first")
    await page.get_by_role("link", name="Sessions").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Choose your password")
    script.refused.clear()
    await page.get_by_label("Password that you were given").fill("shown-once")
    await page.get_by_label("New password", exact=True).fill("a sentence is good")
    await page.get_by_label("New password, again").fill("a sentence is good")
    await button(page, "Change and go on").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
    await page.close()


async def test_a_role_sees_what_it_may_do(script: ScriptedConsole, browser: Browser) -> None:
    acts = ("Publish", "Queues", "Settings", "Pause", "Delete")
    for role, seen in (("viewer", 0), ("operator", 4), ("admin", 5)):
        script.be(role)
        page, faults = await opened(browser, script, "/topics/plant-000")
        assert sum([await button(page, act).count() for act in acts]) == seen
        links = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Accounts")
        assert await links.count() == (role == "admin")
        assert faults == []
        await page.close()


async def test_a_topic_s_page_names_its_readers_and_leads_to_their_groups(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/topics/plant-000")
    rows = page.get_by_role("table", name="Readers").locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_contain_text("bulk")
    await rows.first.get_by_role("link", name="billing").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("billing")
    assert faults == []
    await page.close()


async def test_connections_say_what_they_do_and_who_is_busiest(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/connections")
    row = page.get_by_role("table", name="Connections").locator("tbody tr", has_text="client-1")
    for said in ("producer", "consumer", "plant-000", "billing", "plant-001, plant-002, plant-003 +1"):
        await expect(row).to_contain_text(said)
    await expect(page.get_by_role("table", name="Busiest clients").locator("tbody tr")).to_have_count(2)
    await expect(page.get_by_role("table", name="Busiest access keys")).to_contain_text("12.5")
    assert faults == []
    await page.close()


async def test_a_list_is_searched_sorted_and_turned_by_the_server_and_its_address_says_so(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/topics")
    rows = page.get_by_role("table", name="Topics").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await expect(page.locator("main")).to_contain_text("120 in all")
    await button(page, "More ›").click()
    await expect(rows.first).to_contain_text("plant-050")
    await expect(button(page, "More ›")).to_be_focused()
    await button(page, "More ›").click()
    await expect(rows).to_have_count(20)
    # The last page has no next one: the keyboard goes on at what is left.
    await expect(button(page, "‹ Back")).to_be_focused()
    await page.get_by_label("Search topics").fill("plant-01")
    await expect(rows).to_have_count(10)
    await button(page, "In").click()
    await expect(rows.first).to_contain_text("plant-019")
    await expect(page.get_by_role("columnheader", name="In", exact=True)).to_have_attribute(
        "aria-sort", "descending"
    )
    assert page.url.endswith("/topics?sort=-messages_in&q=plant-01")
    await rows.first.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    await page.go_back()
    await expect(page.get_by_label("Search topics")).to_have_value("plant-01")
    await expect(rows).to_have_count(10)
    await page.get_by_label("Search topics").fill("nothing")
    await expect(page.locator("main")).to_contain_text("Nothing fits the search")
    assert faults == []
    await page.close()


async def test_an_error_is_a_sentence_beside_its_cause_and_a_dialog_gives_the_focus_back(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, _ = await opened(browser, script, "/topics")
    script.refused["POST topics"] = refusal(
        409, "TOPIC_EXISTS", "it exists", field="topic", hint="take another"
    )
    await button(page, "Create a topic").click()
    assert await barriers_of(page) == []
    name = page.get_by_role("dialog").get_by_label("Name")
    await expect(name).to_be_focused()
    await name.fill("plant 1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("letters, digits, _ and - only")
    await name.fill("plant-1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("it exists. take another")
    await expect(name).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(button(page, "Create a topic")).to_be_focused()
    # One that belongs to no field is in the dialog; one of the page is above it.
    script.refused["POST topics/plant-000/pause"] = refusal(
        503, "BUSY", "the broker is away", hint="try again"
    )
    await page.goto(script.url + "/topics/plant-000")
    await button(page, "Pause").click()
    await button(page.get_by_role("dialog"), "Pause").click()
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("the broker is awaytry again")
    await page.keyboard.press("Escape")
    script.refused["GET topics/plant-000"] = refusal(503, "NO_BROKER", "no broker answers")
    await expect(page.locator("main > .page > .notice")).to_have_text("no broker answers")
    del script.refused["GET topics/plant-000"]
    await expect(page.locator("main > .page > .notice")).to_be_hidden()
    await page.close()


async def test_what_goes_for_good_is_confirmed_by_its_name(script: ScriptedConsole, browser: Browser) -> None:
    page, faults = await opened(browser, script, "/dead-letters/billing")
    await button(page, "Purge").click()
    deed = button(page.get_by_role("dialog"), "Purge")
    await expect(deed).to_be_disabled()
    proof = page.get_by_label("Type billing to confirm")
    await proof.fill("billin")
    await page.keyboard.press("Enter")
    await expect(deed).to_be_disabled()
    await proof.fill("billing")
    assert await barriers_of(page) == []
    await deed.click()
    await expect(page.locator("#said")).to_contain_text("8 dead letters of billing are gone")
    assert [(method, path) for method, path, _ in script.said] == [("POST", "dead-letters/billing/purge")]
    assert faults == []
    await page.close()


async def test_a_letter_that_was_sent_again_says_when_and_by_whom_and_is_not_offered_once_more(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/dead-letters/billing")
    rows = page.get_by_role("table", name="Dead letters of billing").locator("tbody tr")
    await expect(rows.nth(1)).to_contain_text("by grace")
    await expect(rows.nth(0)).not_to_contain_text("by grace")
    dialog = page.get_by_role("dialog")
    await rows.nth(1).get_by_role("button").click()
    await expect(dialog.locator(".notice").first).to_contain_text("by grace")
    await expect(button(dialog, "Send again")).to_have_count(0)
    assert await barriers_of(page) == []
    await button(dialog, "Close").click()
    for place in (0, 1, 3):
        await rows.nth(place).get_by_role("checkbox").check()
    await button(page, "Send 3 again").click()
    await expect(dialog.locator(".notice").first).to_contain_text("2 of the 3 chosen")
    await button(dialog, "Send again").click()
    await expect(page.locator("#said")).to_contain_text("1 sent again")
    assert [path for _, path, _ in script.said] == ["dead-letters/billing/resend"]
    assert faults == []
    await page.close()


async def test_a_payload_is_shown_as_text_json_and_hex_and_never_as_markup(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, f"/messages/{0:032x}")
    payload = page.get_by_role("region", name="Payload")
    await expect(payload).to_have_text('{\n  "temperature": 21.5,\n  "unit": "C"\n}')
    await button(page, "text").click()
    await expect(payload).to_have_text('{"temperature": 21.5, "unit": "C"}')
    await button(page, "hex").click()
    await expect(payload).to_contain_text("000000  7b 22 74 65 6d 70 65 72  61 74 75 72 65 22 3a 20")
    await expect(page.locator("main")).to_contain_text(ODD_NAME)
    await page.goto(f"{script.url}/messages/{1:032x}")
    await expect(payload).to_have_text("hello <b>world</b>")
    await expect(button(page, "JSON")).to_be_disabled()
    await page.goto(f"{script.url}/messages/{2:032x}")
    await expect(button(page, "hex")).to_have_attribute("aria-pressed", "true")
    await page.goto(f"{script.url}/messages/{3:032x}")
    await expect(payload).to_have_text("(empty)")
    assert faults == []
    await page.close()


async def test_clients_are_searched_by_the_server_and_sent_away_after_their_number_was_typed(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/clients")
    await expect(page.get_by_role("link", name="meter-005")).to_be_visible()
    async with page.expect_request(lambda r: "client=meter-*" in r.url and "address=10.0.0.0%2F8" in r.url):
        await page.get_by_label("Client id begins with, or has * and ?").fill("meter-*")
        await page.get_by_label("Address or network").fill("10.0.0.0/8")
    await button(page, "Disconnect these").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Disconnect 6 clients?")
    await expect(button(dialog, "Disconnect")).to_be_disabled()
    await dialog.get_by_label("Type 6 to confirm").fill("6")
    await button(dialog, "Disconnect").click()
    await expect(dialog).to_be_hidden()
    wanted = {"client": "meter-*", "address": "10.0.0.0/8"}
    assert script.said == [
        ("POST", "clients/kick", {**wanted, "dry_run": True}),
        ("POST", "clients/kick", wanted),
    ]
    script.be("viewer")
    await page.goto(script.url + "/clients/meter-001")
    await expect(page.get_by_role("cell", name="commands/+/#")).to_be_visible()
    await expect(page.get_by_role("button", name="Disconnect")).to_have_count(0)
    assert faults == []
    await page.close()


async def test_quotas_are_set_and_removed_and_who_lacks_one_is_named(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/quotas")
    await expect(page.get_by_role("table", name="Quotas").locator("tbody tr")).to_have_count(3)
    await expect(page.get_by_role("table", name="Quotas")).to_contain_text("7 of 50")
    await expect(page.get_by_role("alert")).to_contain_text("orders: broker-1 has another quota")
    await button(page, "Set a quota").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("depot/7")
    await dialog.get_by_label("Connections").fill("some")
    await button(dialog, "Set").click()
    await expect(dialog).to_contain_text("write a whole number")
    await dialog.get_by_label("Connections").fill("20")
    await dialog.get_by_label("Messages a second").fill("100")
    await button(dialog, "Set").click()
    await expect(dialog).to_be_hidden()
    await button(page, "Remove the quota of key orders").click()
    await button(dialog, "Remove the quota").click()
    await expect(dialog).to_be_hidden()
    wanted = {"publish_rate": 100, "connections": 20}
    said = [(method, unquote(path), body) for method, path, body in script.said]
    assert said == [("PUT", "quotas/user/depot/7", wanted), ("DELETE", "quotas/key/orders", None)]
    script.be("viewer")
    await page.goto(script.url + "/quotas")
    await expect(page.get_by_role("table", name="Quotas")).to_contain_text("orders")
    await expect(page.get_by_role("button", name="Set a quota")).to_have_count(0)
    assert faults == []
    await page.close()


async def test_a_tenant_is_shown_and_removed_once_its_name_is_typed(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/tenants")
    tenants = page.get_by_role("table", name="Tenants")
    await expect(tenants.locator("tbody tr")).to_have_count(2)
    await expect(tenants).to_contain_text("Topics: 3 of 50")
    await button(page, "Show what acme has").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Topics: meters, orders")
    await button(dialog, "Close").click()
    await button(page, "Remove acme").click()
    await expect(dialog).to_contain_text("3 topics with 1,200 messages")
    await expect(button(dialog, "Remove the tenant")).to_be_disabled()
    await dialog.get_by_label("Type acme to confirm").fill("acme")
    await button(dialog, "Remove the tenant").click()
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_text("access keys name acme still: shop")).to_be_visible()
    assert [(method, path) for method, path, _ in script.said] == [("DELETE", "tenants/acme")]
    script.be("operator")
    await page.goto(script.url + "/tenants")
    await expect(tenants).to_contain_text("acme")
    await expect(page.get_by_role("button", name="Remove acme")).to_have_count(0)
    assert faults == []
    await page.close()


async def test_clients_are_banned_and_let_in_again_and_a_mistake_stands_beside_its_field(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/bans")
    await expect(page.get_by_role("table", name="Bans", exact=True).locator("tbody tr")).to_have_count(4)
    await expect(page.get_by_role("table", name="Bans that gateways have made")).to_contain_text("gateway-1")
    await button(page, "Ban clients").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("What").select_option("address")
    await dialog.get_by_label("Value").fill("192.0.2.0/24")
    await dialog.get_by_label("For how long").fill("soon")
    await button(dialog, "Ban").click()
    await expect(dialog).to_contain_text("write it as 15m, 2h or 30d")
    await dialog.get_by_label("For how long").fill("2h")
    await dialog.get_by_label("Why").fill("scanner")
    await button(dialog, "Ban").click()
    await expect(dialog).to_be_hidden()
    await button(page, "Lift the ban of 10.0.0.0/8").click()
    await button(dialog, "Lift the ban").click()
    await expect(dialog).to_be_hidden()
    wanted = {"kind": "address", "value": "192.0.2.0/24", "reason": "scanner", "seconds": 7200}
    assert script.said == [("POST", "bans", wanted), ("DELETE", "bans/address/10.0.0.0/8", None)]
    script.be("viewer")
    await page.goto(script.url + "/bans")
    await expect(page.get_by_role("table", name="Bans", exact=True)).to_contain_text("scan-*")
    await expect(page.get_by_role("button", name="Ban clients")).to_have_count(0)
    assert faults == []
    await page.close()


async def test_the_menu_of_a_phone_opens_goes_and_gives_the_focus_back(
    script: ScriptedConsole, browser: Browser
) -> None:
    page = await browser.new_page(viewport={"width": 390, "height": 844})
    await page.goto(script.url + "/groups")
    await button(page, "Menu").click()
    assert await barriers_of(page) == []
    await page.keyboard.press("Escape")
    await expect(button(page, "Menu")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Sessions").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
    await expect(page.locator("#side")).to_be_hidden()
    # The first stop of the keyboard passes the navigation by.
    await page.goto(script.url + "/groups")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.close()


async def test_the_lead_is_handed_to_a_replica_that_may_take_it_after_a_question(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/replicas")
    rows = page.get_by_role("table", name="Replicas of broker-0").locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(0)).to_contain_text("leader")
    await expect(rows.nth(0)).to_contain_text("6\u2009s")
    await expect(rows.nth(1)).to_contain_text("576\u2009B")
    # Only who has everything is offered the lead, and only by a leader.
    await expect(page.get_by_role("button", name="Switch")).to_have_count(1)
    await expect(page.locator("main")).to_contain_text(f"a: no connection to host-a.example:10912 {ODD_NAME}")
    await expect(page.locator("main")).to_contain_text("It has one copy of its log")
    await expect(page.locator("main")).to_contain_text("holdmq replica promote --accept-loss")
    assert await page.get_by_role("table", name="Replicas of broker-2").count() == 0
    deed = button(page, "Switch broker-0 to b")
    await deed.click()
    assert await barriers_of(page) == []
    await page.keyboard.press("Escape")
    await expect(deed).to_be_focused()
    assert script.said == []
    await deed.click()
    await button(page.get_by_role("dialog"), "Switch").click()
    await expect(page.locator("#said")).to_have_text("b leads broker-0.")
    assert script.said == [("POST", "replicas/broker-0/switch", {"to": "b"})]
    script.refused["POST replicas/broker-0/switch"] = refusal(409, "NOT_LEADER", "nobody leads broker-0")
    await deed.click()
    await button(page.get_by_role("dialog"), "Switch").click()
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("nobody leads broker-0")
    assert [fault for fault in faults if "409" not in fault] == []
    await page.close()


async def test_a_viewer_sees_replicas_and_hands_no_lead_over(
    script: ScriptedConsole, browser: Browser
) -> None:
    script.be("viewer")
    page, faults = await opened(browser, script, "/replicas")
    await expect(page.get_by_role("table", name="Replicas of broker-0").locator("tbody tr")).to_have_count(3)
    await expect(page.get_by_role("button", name="Switch")).to_have_count(0)
    assert faults == []
    await page.close()


async def test_a_cluster_is_chosen_and_stays_in_the_address_from_page_to_page(
    script: ScriptedConsole, browser: Browser
) -> None:
    page, faults = await opened(browser, script, "/topics")
    choice = page.get_by_role("combobox", name="Cluster")
    await expect(choice).to_have_count(0)
    assert {cluster for _, cluster in script.asked} == {""}
    script.clusters = ["office", "plant"]
    await page.reload()
    await expect(choice).to_have_value("")
    await page.get_by_role("searchbox").first.fill("plant-00")
    await expect(page).to_have_url(re.compile(r"/topics\?.*q=plant-00$"))
    script.asked.clear()
    await choice.select_option("office")
    await expect(page).to_have_url(re.compile(r"/topics\?.*q=plant-00&cluster=office$"))
    await expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    await expect(page.get_by_role("link", name="plant-000", exact=True)).to_have_attribute(
        "href", "/topics/plant-000?cluster=office"
    )
    await page.get_by_role("link", name="plant-000", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("plant-000")
    await expect(page).to_have_url(f"{script.url}/topics/plant-000?cluster=office")
    await page.get_by_role("link", name="Accounts", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Accounts")
    await page.get_by_role("link", name="Groups", exact=True).click()
    await expect(page).to_have_url(f"{script.url}/groups?cluster=office")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    for path, cluster in script.asked:
        of_all = path.split("/")[0] in ("accounts", "clusters", "session", "tokens", "tps")
        assert cluster == ("" if of_all else "office"), path
    assert {"topics", "topics/plant-000", "groups", "accounts"} <= {path for path, _ in script.asked}
    assert await barriers_of(page) == []
    # One that has no broker any more can still be left.
    script.clusters = ["plant"]
    await page.reload()
    await expect(choice).to_have_value("office")
    await choice.select_option("")
    await expect(page).to_have_url(f"{script.url}/groups")
    await expect(choice).to_have_count(0)
    assert faults == []
    await page.close()


async def test_the_pages_name_the_cluster_wherever_the_api_takes_one() -> None:
    listed = re.search(r"OF_BROKERS = .*?v1.*?\((.*?)\)", (STATIC / "api.js").read_text())
    assert listed is not None
    paths = (await described_api())["paths"]
    of_one = {
        path.removeprefix("/api/v1/").split("/")[0]
        for path, operations in paths.items()
        for operation in operations.values()
        if any(one["name"] == "cluster" for one in operation.get("parameters", ()))
    }
    assert set(listed[1].split("|")) == of_one
