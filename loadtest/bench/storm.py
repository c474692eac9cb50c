"""A reconnect storm: all clients of a worker are cut off at once and come back, while others publish.

    python -m loadtest.bench.storm --clients 18000 --publishers 1000 --rate 1000

Starts registry, broker and a gateway with one worker. `--clients` connect with MQTT 5: with a password, a
session that outlives the connection, a subscription, and a will that is due `--will-delay-s` after a
connection broke off. `--publishers` send `--rate` messages a second with QoS 1. Then the network fails for
the clients: their connections are reset in one moment, and they come back at once; who is refused comes
again after `--pause-s`.

Exit code 1 if not all are back within `--limit-s` with their sessions, a will was sent, a message of the
publishers was lost, a worker died, or the worker's memory `--settle-s` later is over a tenth more than
before. CPU is what worker and broker used from the cut until the last client was back. Everything runs on
this machine: the fleets take as many cores as they get, which the gateway then has not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import uvloop

from holdmq.errors import StartupError
from holdmq.mqtt import PublishRun
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import TOLD_S, ChildProcess
from loadtest.device import Device, DeviceOwner
from loadtest.fleet import Fleet
from loadtest.gateway_memory import Numbers, read_metrics, read_numbers
from loadtest.peers import Services, free_port, holdmq_services
from loadtest.plan import FleetPlan, PublishPlan
from loadtest.processes import raise_file_limit
from loadtest.usage import cpu_s

USER: Final = "fleet"
PASSWORD: Final = "storm"  # noqa: S105 # of users that live as long as a run
MEMORY_MORE_MAX: Final = 0.1
LIMITS_WAITED: Final = 5.0
"""How many times longer than allowed the clients may take before they give up: to see how long it takes."""
EXPIRY_S: Final = 3600
KEEP_ALIVE_S: Final = 300


class _Wills(Device):
    """Counts what comes."""

    __slots__ = ("messages",)

    def __init__(self, owner: DeviceOwner, plan: FleetPlan, number: int, began: float) -> None:
        super().__init__(owner, plan, number, began)
        self.messages = 0

    def received(self, item: object, now: float) -> None:
        if isinstance(item, PublishRun):
            self.messages += len(item.messages)


class _Nobody:
    """The owner of a device that stands alone."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.is_in = asyncio.Event()

    def device_connected(self, device: Device, took_s: float) -> None:
        self.is_in.set()

    def device_failed(self, device: Device, reason: str) -> None:
        self.failed = reason
        self.is_in.set()


# Child processes: each does what its pipe says, and tells what came of it.


def _clients(pipe: Any, plan: FleetPlan, limit_s: float, pause_s: float) -> None:
    async def run() -> None:
        fleet = Fleet(plan)
        await fleet.connect()
        pipe.send((fleet.present, fleet.tally.connect_s, dict(fleet.tally.failures)))
        pinging = asyncio.create_task(fleet.keep_alive())
        await asyncio.to_thread(pipe.recv)
        fleet.tally.failures.clear()
        fleet.tally.resumed = 0
        began = perf_counter()
        fleet.cut()
        await fleet.reconnect(LIMITS_WAITED * limit_s, pause_s)
        took_s = fleet.last_connected_at - began
        pipe.send((fleet.present, took_s, dict(fleet.tally.failures), fleet.tally.resumed))
        await asyncio.to_thread(pipe.recv)
        pinging.cancel()
        pipe.send((fleet.present, fleet.tally.lost))
        await fleet.leave()

    raise_file_limit()
    uvloop.run(run())


def _publishers(pipe: Any, plan: PublishPlan) -> None:
    async def run() -> None:
        fleet = Fleet(plan.fleet, plan)
        await fleet.connect()
        pipe.send(fleet.present)
        pinging = asyncio.create_task(fleet.keep_alive())

        def stop() -> None:
            with contextlib.suppress(EOFError):
                pipe.recv()
            loop.call_soon_threadsafe(fleet.stop)

        loop = asyncio.get_running_loop()
        threading.Thread(target=stop, daemon=True).start()
        await fleet.publish()
        pinging.cancel()
        tally = fleet.tally
        pipe.send(
            {
                "sent": tally.sent,
                "acknowledged": tally.acknowledged,
                "unanswered": tally.unanswered,
                "skipped": tally.skipped,
                "lost": tally.lost,
                "failures": dict(tally.failures),
                "latency_us": tally.publish_latency.summary(),
                "per_second": dict(tally.done_by_second),
            }
        )
        await fleet.leave()

    raise_file_limit()
    uvloop.run(run())


def _gateway_metrics(admin: str, *names: str) -> dict[str, float]:
    found = dict(
        line.rsplit(" ", 1) for line in read_metrics(admin).splitlines() if line[:1] not in ("", "#")
    )
    return {name: float(found.get(f"holdmq_gateway_{name}", 0)) for name in names}


def _memory(numbers: Numbers) -> int:
    return int(sum(numbers["memory_bytes"].values()))


async def _watch_wills(address: str, stopping: asyncio.Event) -> int:
    host, port = address.split(":")
    owner = _Nobody()
    plan = FleetPlan(
        *(host, int(port), 1),
        keep_alive_s=0,
        client_prefix="watch",
        username=USER,
        password=PASSWORD,
        subscribe="wills/#",
    )
    device = _Wills(owner, plan, 0, perf_counter())
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: device, host, int(port))
    await owner.is_in.wait()
    await stopping.wait()
    if owner.failed is not None:
        raise StartupError(f"nobody watched the wills: {owner.failed}")
    device.leave()
    return device.messages


def storm(services: Services, admin: str, options: Options) -> dict[str, Any]:
    """Run the storm, and return what was seen."""
    address = services.address
    host, port = address.split(":")
    senders = FleetPlan(
        host,
        int(port),
        options.publishers,
        keep_alive_s=KEEP_ALIVE_S,
        mqtt="5",
        client_prefix="send",
        username=USER,
        password=PASSWORD,
    )
    clients = replace(
        senders,
        devices=options.clients,
        ramp_s=options.clients / options.connect_rate,
        client_prefix="storm",
        client_id_bytes=23,
        expiry_s=EXPIRY_S,
        subscribe="cmd/{i}",
        will="wills/{i}",
        will_delay_s=options.will_delay_s,
    )
    publish = PublishPlan(senders, "load/{i}", rate=options.rate, seconds=TOLD_S)
    found: dict[str, Any] = {}
    children: list[ChildProcess] = []
    stopping = threading.Event()
    wills: list[int | str] = []
    """How many were seen, or why nobody could look."""

    def watch() -> None:
        async def run() -> int:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            threading.Thread(
                target=lambda: (stopping.wait(), loop.call_soon_threadsafe(stop.set)), daemon=True
            ).start()
            return await _watch_wills(address, stop)

        try:
            wills.append(uvloop.run(run()))
        except StartupError as error:
            wills.append(str(error))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        fleet = ChildProcess(_clients, clients, options.limit_s, options.pause_s)
        children.append(fleet)
        connected, connect_s, failures = fleet.told()
        found["connected"] = {"clients": connected, "seconds": round(connect_s, 2), "failures": failures}
        if connected < options.clients:
            raise StartupError(f"{connected} of {options.clients} clients connected at first: {failures}")
        sending = ChildProcess(_publishers, publish)
        children.append(sending)
        found["publishers"] = sending.told()
        time.sleep(options.settle_s)
        before = _memory(read_numbers(admin))
        (worker,) = services.workers()
        pids = {"worker": worker, "broker": services.broker_pid}
        used = {name: cpu_s(pid) for name, pid in pids.items()}
        fleet.tell("cut")
        back, took_s, failures, resumed = fleet.told()
        found["cpu_s"] = {name: round(cpu_s(pid) - used[name], 2) for name, pid in pids.items()}
        found["back"] = {
            "clients": back,
            "seconds": round(took_s, 2),
            "sessions_present": resumed,
            "refused_meanwhile": failures,
        }
        time.sleep(options.settle_s)
        after = _memory(read_numbers(admin))
        found["memory"] = {"before": before, "after": after, "more": round(after / before - 1, 4)}
        sending.tell("stop")
        found["published"] = sending.told()
        fleet.tell("end")
        present, lost = fleet.told()
        found["still_there"] = {"clients": present, "lost": lost}
        found["gateway"] = _gateway_metrics(
            admin,
            *("worker_restarts_total", "wills_total", "overload_total", "overload_refused_total"),
            *("takeovers_total", "catchup_turns_total", "catchup_shared_total"),
        )
    finally:
        for child in children:
            child.end()
        stopping.set()
        watching.join(10)
    found["wills_seen"] = wills[0] if wills else None
    return found


def verdict(found: dict[str, Any], options: Options) -> list[str]:
    """What was not as it should be."""
    back, published = found["back"], found["published"]
    wrong: list[str] = []
    if back["clients"] < options.clients:
        wrong.append(f"only {back['clients']} came back within {options.limit_s:g} s")
    if back["seconds"] > options.limit_s:
        wrong.append(f"the last was back after {back['seconds']} s")
    if back["sessions_present"] < back["clients"]:
        wrong.append(f"only {back['sessions_present']} sessions were there")
    if found["wills_seen"] != 0:
        wrong.append(f"wills were sent: {found['wills_seen']}")
    if found["memory"]["more"] > MEMORY_MORE_MAX:
        wrong.append(f"memory is {found['memory']['more']:.1%} more")
    if published["unanswered"] or published["lost"]:
        wrong.append(f"publishers: {published['unanswered']} unanswered, {published['lost']} lost")
    if found["gateway"]["worker_restarts_total"]:
        wrong.append("a worker died")
    return wrong


def measure(options: Options, home: Path) -> list[str]:
    """Run the storm; what was not as it should be."""
    users = home / "users"
    subprocess.run(  # noqa: S603 # this Python, our command
        [sys.executable, "-m", "holdmq.cli", "passwd", str(users), USER, "--batch"],
        input=f"{PASSWORD}\n".encode(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    admin = free_port()
    sets = ["gateway.workers=1", f"gateway.admin_port={admin}", f"access.password_file={users}"]
    with holdmq_services(home, *sets, *options.set) as services:
        found = storm(services, f"127.0.0.1:{admin}", options)
    say(json.dumps(found, indent=2))
    return verdict(found, options)


def main() -> int:
    """Run the storm; exit code 0, or 1 with what was not as it should be."""
    command = BenchCommand(
        __doc__,
        clients=18_000,
        publishers=1_000,
        rate=(1_000.0, "messages per second of all publishers"),
        connect_rate=(1_000.0, "first connects per second"),
        limit_s=(15.0, "how soon all must be back"),
        pause_s=(0.5, "before who was refused comes again"),
        will_delay_s=60,
        settle_s=10.0,
    )
    command.add_settings()
    return command.run(measure, workers=1)


if __name__ == "__main__":
    sys.exit(main())
