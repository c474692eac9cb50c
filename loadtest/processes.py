"""Runs the shares of a plan in processes of their own, and adds up what they saw.

The parent shows progress and nothing else, so that a terminal never disturbs a measurement. Parent and
child talk over a pipe: the child says ("progress", counts), ("connected",), ("done", tally) or
("failed", sentence); the parent says "go" and "stop".
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import uvloop

from holdmq.errors import StartupError
from loadtest.fleet import Fleet, Tally
from loadtest.plan import ConnectPlan, PublishPlan

SPARE_FILES: Final = 64
"""Descriptors of a process that are no connection: its pipe, its loop, its imports."""

PROGRESS_S: Final = 0.25
PROCESSES_MAX: Final = 64
"""More than this on one machine measures its scheduler."""

Plan = ConnectPlan | PublishPlan
Progress = Callable[[str, dict[str, int]], None]
"""Called with the phase (connecting, holding, publishing) and the counts of all processes together."""


def processes_needed(devices: int) -> int:
    """Return how many processes so many connections need under this machine's limit of open files."""
    limit = raise_file_limit()
    return -(-devices // max(1, limit - SPARE_FILES))


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def shares(plan: Plan, processes: int) -> list[Plan]:
    """Divide devices, rate and count over `processes` plans."""
    out: list[Plan] = []
    fleet = plan.fleet
    processes = min(processes, fleet.devices)
    first = 0
    for k in range(processes):
        devices = fleet.devices // processes + (k < fleet.devices % processes)
        part = replace(fleet, devices=devices, first=fleet.first + first, total=fleet.devices)
        first += devices
        if isinstance(plan, PublishPlan):
            count = plan.count // processes + (k < plan.count % processes)
            share = devices / fleet.devices
            # Nothing left of a count is not the same as no bound at all.
            if plan.count and not count:
                break
            out.append(replace(plan, fleet=part, rate=plan.rate * share, count=count))
        else:
            out.append(replace(plan, fleet=part))
    return out


def run(plan: Plan, processes: int = 0, progress: Progress = lambda *_: None) -> Tally:
    """Carry out `plan` in `processes` processes (0 = as many as the limit of open files demands).

    Blocks until it is done; KeyboardInterrupt ends it early, with what was seen until then. Raises
    UsageError for an impossible plan, StartupError when a process fails.
    """
    plan.check()
    processes = processes or processes_needed(plan.fleet.devices)
    if processes > PROCESSES_MAX:
        raise StartupError(
            f"{plan.fleet.devices} connections need {processes} processes under this machine's limit of open "
            f"files, and at most {PROCESSES_MAX} are started; raise the limit (ulimit -n)"
        )
    context = multiprocessing.get_context("spawn")
    children: list[tuple[Any, Any]] = []
    try:
        for part in shares(plan, processes):
            ours, theirs = context.Pipe()
            child = context.Process(target=_child, args=(part, theirs), daemon=True)
            child.start()
            theirs.close()
            children.append((child, ours))
        return _collect([ours for _, ours in children], progress)
    finally:
        for child, ours in children:
            ours.close()
            child.join(5)
            if child.is_alive():
                child.kill()
                child.join()
            child.close()


def _collect(pipes: list[Any], progress: Progress) -> Tally:
    total = Tally()
    counts: dict[Any, dict[str, int]] = {}
    phase, connected, open_pipes = "connecting", 0, list(pipes)
    while open_pipes:
        try:
            ready = multiprocessing.connection.wait(open_pipes)
        except KeyboardInterrupt:
            for pipe in open_pipes:
                pipe.send("stop")
            continue
        for pipe in ready:
            assert isinstance(pipe, multiprocessing.connection.Connection)
            kind, *rest = _receive(pipe)
            if kind == "connected":
                connected += 1
                if connected == len(pipes):
                    for every in open_pipes:
                        every.send("go")
            elif kind == "progress":
                phase, counts[pipe] = rest
                progress(phase, {k: sum(c.get(k, 0) for c in counts.values()) for k in counts[pipe]})
            elif kind == "done":
                total.add(rest[0])
                open_pipes.remove(pipe)
            else:
                raise StartupError(f"a process of the load test failed: {rest[0]}")
    return total


def _receive(pipe: multiprocessing.connection.Connection[Any, Any]) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError) as error:
        raise StartupError("a process of the load test ended without a word; was it killed?") from error


def _child(plan: Plan, pipe: Any) -> None:
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            tally = runner.run(_carry_out(plan, pipe))
        pipe.send(("done", tally.pack()))
    except Exception as error:
        # The parent says it: this process has no terminal of its own.
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        raise


async def _carry_out(plan: Plan, pipe: Any) -> Tally:
    fleet = Fleet(plan.fleet, plan if isinstance(plan, PublishPlan) else None)
    go = asyncio.Event()
    phase = "connecting"

    def told() -> None:
        try:
            word = pipe.recv()
        except EOFError:
            word = "stop"
            loop.remove_reader(pipe.fileno())
        if word == "go":
            go.set()
        else:
            fleet.stop()
            go.set()

    async def report() -> None:
        while True:
            tally = fleet.tally
            pipe.send(
                (
                    "progress",
                    phase,
                    {
                        "connected": tally.connected,
                        "failed": sum(tally.failures.values()),
                        "sent": tally.sent,
                        "acknowledged": tally.acknowledged,
                    },
                )
            )
            await asyncio.sleep(PROGRESS_S)

    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), told)
    tasks = [asyncio.create_task(report()), asyncio.create_task(fleet.keep_alive())]
    try:
        await fleet.connect()
        pipe.send(("connected",))
        await go.wait()
        if isinstance(plan, PublishPlan):
            phase = "publishing"
            await fleet.publish()
        else:
            phase = "holding"
            await fleet.stay(plan.hold_s)
        await fleet.leave()
    finally:
        loop.remove_reader(pipe.fileno())
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
    return fleet.tally
