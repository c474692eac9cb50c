"""Connected clients listed, searched, shown and disconnected, of very many at a gateway of several workers.

    python -m loadtest.bench.clients --clients 100000 --workers 8

Starts registry, broker and a gateway, and connects `--clients` with clean sessions and a subscription each.
Then a tool asks as `holdmq client` does: for the first page by client id, for one sorted by the time of the
connect, for the page behind it, for a pattern that few fit, for an address that all have, and for one client;
`--rounds` times each, in turns. At last one client, and a tenth of all by a pattern, are disconnected.

Exit code 1 if a question took longer than `--limit-s`, found others than are there, or a worker was silent.
The clients run on this machine as well.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from holdmq.client.connected import ClientAdmin
from holdmq.errors import StartupError
from holdmq.wire.client_headers import ClientSelection
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import ChildProcess
from loadtest.peers import holdmq_broker, holdmq_gateway
from loadtest.processes import raise_file_limit
from loadtest.swarm import Swarm

PER_PROCESS: Final = 12_500
"""Clients of one process: far below the usual limit of open files."""
PREFIX: Final = "meter"
IN_FLIGHT: Final = 50
"""Connects of one process at a time."""
PAGE: Final = 50
SETTLE_S: Final = 2.0
LEAVE_S: Final = 60.0

Ask = Callable[[ClientAdmin], Awaitable[int]]
"""Asks, and returns how many clients the answer is about."""


def _clients(pipe: Any, address: str, first: int, count: int) -> None:
    """In a child process: connect some clients, and keep them until told to end."""
    raise_file_limit()
    swarm = Swarm(address, PREFIX)
    pipe.send(swarm.connect(count, clean=True, subscribe="cmd/{id}", first=first, in_flight=IN_FLIGHT))
    with contextlib.suppress(EOFError):
        pipe.recv()  # until its parent needs them no more


def _client_id(number: int) -> str:
    """The id that Swarm gives a client."""
    return f"{PREFIX}-{number:0{22 - len(PREFIX)}d}"


def _questions(clients: int) -> dict[str, tuple[Ask, int]]:
    """What is asked, by name, and how many clients each is about."""

    async def first_page(admin: ClientAdmin) -> int:
        page = await admin.page(count=PAGE)
        return page.total if len(page.clients) == PAGE and not page.silent else -1

    async def newest(admin: ClientAdmin) -> int:
        page = await admin.page(sort="-connected", count=PAGE)
        return page.total if len(page.clients) == PAGE and not page.silent else -1

    async def behind(admin: ClientAdmin) -> int:
        after = json.dumps([_client_id(clients // 2)] * 2)
        page = await admin.page(after=after, count=PAGE)
        return page.total if len(page.clients) == PAGE and not page.silent else -1

    async def pattern(admin: ClientAdmin) -> int:
        return (await admin.page(ClientSelection("*00042"), count=PAGE)).total

    async def address(admin: ClientAdmin) -> int:
        return (await admin.page(ClientSelection("", address="127.0.0.0/8"), count=PAGE)).total

    async def one(admin: ClientAdmin) -> int:
        found = await admin.show(_client_id(7))
        return 0 if found is None else found.subscriptions

    with_42 = len(range(42, clients, 100_000))
    return {
        "first page by client id": (first_page, clients),
        "the newest": (newest, clients),
        "a page in the middle": (behind, clients),
        "a pattern that few fit": (pattern, with_42),
        "an address that all have": (address, clients),
        "one client": (one, 1),
    }


async def _ask(registry: str, options: Options) -> list[str]:
    faults: list[str] = []
    times: dict[str, list[float]] = {}

    async def timed(name: str, ask: Ask, wanted: int, admin: ClientAdmin) -> None:
        began = time.perf_counter()
        found = await ask(admin)
        times.setdefault(name, []).append(time.perf_counter() - began)
        if found != wanted:
            faults.append(f"{name}: {found} instead of {wanted}")

    async with ClientAdmin([registry]) as admin:
        questions = _questions(options.clients)
        for _ in range(options.rounds):
            for name, (ask, wanted) in questions.items():
                await timed(name, ask, wanted, admin)

        async def kick_one(admin: ClientAdmin) -> int:
            return (await admin.kick(ClientSelection("", exact_id=_client_id(8)))).clients

        async def kick_many(admin: ClientAdmin) -> int:
            return (await admin.kick(ClientSelection("*3"))).clients

        tenth = len(range(3, options.clients, 10))
        await timed("kick one", kick_one, 1, admin)
        await timed("kick a tenth", kick_many, tenth, admin)
        began = time.perf_counter()
        while (await admin.page(count=1)).total > options.clients - 1 - tenth:
            if time.perf_counter() - began > LEAVE_S:
                faults.append(f"not all that were kicked are gone after {LEAVE_S:g} s")
                break
        say(f"{tenth:,} kicked clients were gone {time.perf_counter() - began:.2f} s after the answer")
    for name, seconds in times.items():
        say(f"{name:28} median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s")
        if max(seconds) > options.limit_s:
            faults.append(f"{name} took {max(seconds):.2f} s")
    return faults


def measure(options: Options, home: Path) -> list[str]:
    """Connect, ask, and return what was not as it should be."""
    children: list[ChildProcess] = []
    # The clients have the machine's cores while they connect: workers late by that are not to refuse them.
    sets = (
        f"gateway.workers={options.workers}",
        f"gateway.connections_max={options.clients}",
        "gateway.overload_lag_ms=60000",
        *options.set,
    )
    with (
        holdmq_broker(home, *options.set) as broker,
        holdmq_gateway(home / "gateway", broker.registry, *sets) as gateway,
    ):
        try:
            for first in range(0, options.clients, PER_PROCESS):
                count = min(PER_PROCESS, options.clients - first)
                children.append(ChildProcess(_clients, gateway.address, first, count))
            took_s = max(child.told() for child in children)
            say(f"{options.clients:,} clients connected in {took_s:.1f} s")
            time.sleep(SETTLE_S)
            return uvloop.run(_ask(broker.registry, options))
        finally:
            for child in children:
                child.end()


def check(options: Options) -> str | None:
    """Return what is wrong with the options."""
    if options.clients < 2 * PAGE:
        return f"--clients is {2 * PAGE} or more"
    return None


def main() -> int:
    """Run it; exit code 0, or 1 with what was not as it should be."""
    raise_file_limit()
    command = BenchCommand(
        __doc__,
        clients=100_000,
        workers=8,
        rounds=5,
        limit_s=(1.0, "how long a question may take"),
    )
    command.add_settings()
    return command.run(measure, check)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StartupError as error:
        sys.exit(str(error))
