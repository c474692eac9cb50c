"""How long each page of the console takes over a large installation, in a real browser.

    python -m loadtest.bench.console_pages [--topics 5000] [--queues 4] [--groups 2000] [--sessions 100000]
                                           [--brokers 2] [--rounds 5]

Registry, brokers, gateway and console run on this machine; the store is filled through them: topics, with a
message each, and groups, each behind in a topic, by the SDK, sessions by clients that connect, subscribe and
leave. A page's time is from asking for its address, by a browser that has nothing cached, until what it is
about is painted. An answer's time is that of the API alone.
"""

from __future__ import annotations

import asyncio
import http.client
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdmq.client import Admin, GroupAdmin, Message, Producer
from holdmq.errors import StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.figures import quantile
from loadtest.peers import holdmq_console
from loadtest.processes import raise_file_limit
from loadtest.swarm import swarm

IN_HAND: Final = 32
"""Orders to the broker at a time."""
CROWD: Final = 10_000
"""Clients that are connected at a time."""
PAUSE_S: Final = 1.0
"""Between two questions: what the console has asked the cluster is no longer new enough for the next."""
CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
WAIT_MS: Final = 60_000


class MeasuredPage(NamedTuple):
    """A page: its name, its address, and what is there once it shows what it is about."""

    name: str
    path: str
    shown: str


PAGES: Final = (
    # What the browser and this machine take for a line of text: to be read beside the others.
    MeasuredPage("a line of text", "/healthz", "body"),
    MeasuredPage("overview", "/", "#topics tbody tr:nth-child(12)"),
    MeasuredPage("topics", "/topics", "tbody tr:nth-child(50)"),
    MeasuredPage("topics found", "/topics?q=0499&sort=-messages_in", "tbody tr"),
    MeasuredPage("a topic", "/topics/plant-00001", "#about dd"),
    MeasuredPage("groups", "/groups", "tbody tr:nth-child(50)"),
    MeasuredPage("a group", "/groups/application-00001", ".facts dd"),
    MeasuredPage("sessions", "/sessions", "tbody tr:nth-child(50)"),
    MeasuredPage("sessions found", "/sessions?q=meter-000000000000010", "tbody tr:nth-child(50)"),
    MeasuredPage("connections", "/connections", "tbody tr"),
    MeasuredPage("dead letters", "/dead-letters", "main .empty:not([hidden])"),
    MeasuredPage("alarms", "/alarms", "main .empty:not([hidden])"),
    MeasuredPage("analysis", "/analysis", "#history[aria-busy=false]"),
)


ANSWERS: Final = (
    "cluster",
    "topics?limit=50",
    "topics?limit=50&q=0499&sort=-messages_in",
    "topics?limit=50&sort=-messages_stored&after=4900",
    "topics/plant-00001",
    "groups?limit=50&sort=-lag",
    "groups?limit=50&q=0199&sort=group",
    "groups/application-00001",
    "sessions?limit=50",
    "sessions?limit=50&prefix=meter-000000000000010",
    "sessions?limit=50&state=offline",
    "sessions?limit=50&state=online",
    "connections?limit=50",
    "dead-letters",
    "alarms",
)
"""What the pages ask the API for, and the searches of it that are most work."""


async def _many(count: int, work: Callable[[int], Awaitable[object]]) -> float:
    """Do `work` for every number below `count`; seconds it took."""
    began = time.perf_counter()
    numbers = iter(range(count))

    async def turns() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(turns() for _ in range(IN_HAND)))
    return time.perf_counter() - began


async def fill(registry: str, topics: int, queues: int, groups: int) -> None:
    """Create topics with a message each, and groups that have it yet to consume."""
    async with Admin([registry]) as admin, Producer([registry]) as producer:

        async def add_topic(number: int) -> None:
            name = f"plant-{number:05}"
            await admin.create_topic(name, queues)
            await producer.send(Message(name, b"21"))

        took = await _many(topics, add_topic)
        say(f"fill      {topics:,} topics of {queues} queues at each broker in {took:.1f} s")
    async with GroupAdmin([registry]) as group_admin:

        async def add_group(number: int) -> None:
            name = f"application-{number:05}"
            await group_admin.update(name)
            await group_admin.reset(name, f"plant-{number % topics:05}", "earliest")

        took = await _many(groups, add_group)
        say(f"fill      {groups:,} groups in {took:.1f} s")


def fill_sessions(target: str, sessions: int) -> None:
    """Connect clients with a session and a subscription, and let them go."""
    began = time.perf_counter()
    for first in range(0, sessions, CROWD):
        with swarm(target, "meter") as crowd:
            crowd.connect(min(CROWD, sessions - first), subscribe="plant-00001/{id}", first=first)
            crowd.disconnect()
    say(f"fill      {sessions:,} sessions in {time.perf_counter() - began:.1f} s")


def ask(console: str, rounds: int) -> None:
    """Ask for what is behind each page `rounds` times, in turns; say median and most."""
    took: dict[str, list[float]] = {path: [] for path in ANSWERS}
    for _ in range(rounds):
        for path in ANSWERS:
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            connection = http.client.HTTPConnection(console, timeout=WAIT_MS / 1e3)
            connection.request("GET", f"/api/v1/{path}")
            response = connection.getresponse()
            response.read()
            connection.close()
            if response.status != http.client.OK:
                raise StartupError(f"GET /api/v1/{path} was answered {response.status}")
            took[path].append(time.perf_counter() - began)
    _say_times("answer", took)


def _say_times(kind: str, took: dict[str, list[float]]) -> None:
    width = max(map(len, took))
    for name, found in took.items():
        found.sort()
        median, most = quantile(found, 0.5) * 1e3, found[-1] * 1e3
        say(f"{kind:9} {name:{width}} median {median:6,.0f} ms, most {most:6,.0f} ms")


async def look(console: str, rounds: int) -> None:
    """Open each page `rounds` times, in turns; say median and most."""
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise StartupError("Python package playwright is not installed: make setup") from None
    took: dict[str, list[float]] = {page.name: [] for page in PAGES}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for _ in range(rounds):
            for page in PAGES:
                took[page.name].append(await _open(browser, f"http://{console}{page.path}", page.shown))
        await browser.close()
    _say_times("page", took)


async def _open(browser: Any, url: str, shown: str) -> float:
    """Seconds until the page at `url` shows it, in a context of its own."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    began = time.perf_counter()
    await page.goto(url)
    await page.wait_for_selector(shown, timeout=WAIT_MS, state="attached")
    # Painted, not only there.
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    took = time.perf_counter() - began
    await context.close()
    return took


def measure(options: Options, directory: Path) -> None:
    """Fill an installation, and look at it."""
    raise_file_limit()
    with holdmq_console(directory, "console.auth=none", brokers=options.brokers) as services:
        asyncio.run(fill(services.registry, options.topics, options.queues, options.groups))
        fill_sessions(services.gateway, options.sessions)
        ask(services.console, options.rounds)
        asyncio.run(look(services.console, options.rounds))


if __name__ == "__main__":
    command = BenchCommand(
        __doc__, topics=5_000, queues=4, groups=2_000, sessions=100_000, brokers=2, rounds=5
    )
    sys.exit(command.run(measure))
