"""A real browser for tests of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

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
    """Return a list that fills with what the page complains of."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    return faults
