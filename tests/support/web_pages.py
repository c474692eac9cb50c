"""A real browser for tests of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, async_playwright, expect

CHROMIUM: Final = "/usr/bin/chromium"
# As root, without a GPU, and without asking anybody on the network for anything.
FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

WAIT_MS: Final = 60_000
"""How long what a page is to show may take: a process that answers it starts meanwhile, on a busy machine."""
AXE: Final = Path(__file__).parents[2] / "build/node/node_modules/axe-core/axe.min.js"
"""Of requirements/node, as `make setup` installs it."""
LAUNCH_MS: Final = 150_000
"""How long Chromium may take to start there."""


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """Run Chromium without a window."""
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=LAUNCH_MS)
        yield browser
        await browser.close()


def faults_of(page: Page) -> list[str]:
    """Return a list that fills with what the page complains of, and with what it asks other hosts for."""
    faults: list[str] = []

    def look(url: str) -> None:
        asked = urlsplit(url)
        if asked.scheme not in ("data", "blob") and asked.hostname != "127.0.0.1":
            faults.append(f"the page asks for {url}")

    page.on("request", lambda request: look(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    return faults


async def barriers_of(page: Page) -> list[str]:
    """Return what axe-core finds that keeps somebody from using the page: the rule, and where."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate(
        """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations.map(
            ({id, nodes}) => `${id}: ${nodes.slice(0, 3).map(({target}) => target.join(" ")).join(", ")}`))"""
    )
    return [str(rule) for rule in found]
