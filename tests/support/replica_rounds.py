"""Rounds of faults on replicas in network namespaces, under load of devices and applications, checked.

`python -m replica_rounds ROUNDS SEED [FAULT …]` prints what each round did and how long nothing was
acknowledged, and a table of that at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from devices import Fleet
from lease_watch import LeaseWatch
from processes import wait_until
from shard_checks import check
from shard_faults import FAILOVERS, NO_FAILOVER, ShardFaults
from shard_load import QUEUES, TOPIC, Application, Clients
from shard_network import DEFAULT_TIMES, PORT, REPLICAS, RoundTimes, ShardNetwork, ShardOptions, shard_network

SERVES_S: Final = 2.0
"""How much longer than its lease a lost leader may be missed."""
FILLS_S: Final = 10.0
"""How long a disk stays full: the log needs a segment by then."""


class Round(NamedTuple):
    """A fault, and the longest time without an acknowledgement from it until it was healed."""

    fault: str
    gap_s: float


class Load:
    """All clients of a run."""

    def __init__(self, shard: ShardNetwork) -> None:
        self.fleet = Fleet(shard.mqtt_port, 8, 5, "devices/{i}/temp")
        self.application = Application(shard.registry)
        self.clients = Clients(shard.registry)
        ends = self.application.ends
        addresses = {name: f"{shard.net.addresses[name]}:{PORT}" for name in REPLICAS}
        self.leases = LeaseWatch(addresses, TOPIC, QUEUES, lambda queue: ends[queue])

    def start(self) -> None:
        """Begin, and come back when all of them got something."""
        self.fleet.start()
        self.application.start()
        wait_until(self._runs, "the load runs")
        self.clients.start()
        self.leases.start()
        wait_until(lambda: bool(self.leases.reports) and self.clients.are_at_work, "all clients are at work")

    def _runs(self) -> bool:
        return self.fleet.acknowledged > 50 and len(self.application.placed) > 50

    def stop_producers(self) -> None:
        """Send nothing more; the clients go on."""
        self.application.stop()
        self.fleet.stop()
        self.leases.stop()

    def end(self) -> None:
        """End all of it."""
        self.stop_producers()
        self.clients.stop()


def run_rounds(
    directory: Path,
    rounds: int,
    seed: int,
    say: Callable[[str], None],
    only: Sequence[str] = (),
    options: ShardOptions | None = None,
) -> list[Round]:
    """Do so many rounds, each kind of fault before one comes again. AssertionError for a broken promise."""
    chance = random.Random(seed)
    found: list[Round] = []
    with shard_network(directory, options or ShardOptions()) as shard:
        load = Load(shard)
        load.start()
        try:
            faults = ShardFaults(shard, chance)
            todo: list[str] = []
            for _ in range(rounds):
                if not todo:
                    todo = [name for name in faults.kinds if not only or name in only]
                    chance.shuffle(todo)
                found.append(_round(faults, todo.pop(), load, chance, say))
            load.stop_producers()
            assert load.fleet.error is None
            assert not load.application.errors, load.application.errors[:3]
            check(shard, load.application, load.fleet, load.clients)
            load.leases.check()
            assert load.leases.reports, "no offset was reported durably"
        finally:
            load.end()
    return found


def _round(
    faults: ShardFaults, name: str, load: Load, chance: random.Random, say: Callable[[str], None]
) -> Round:
    shard, application, fleet = faults.shard, load.application, load.fleet
    ttl_s = shard.options.times.ttl_s
    leader = shard.leader()
    copy = chance.choice([n for n in REPLICAS if n != leader])
    acked, published = len(application.placed), fleet.acknowledged
    began = time.monotonic()
    faults.kinds[name](leader, copy)
    if name in NO_FAILOVER:
        time.sleep(FILLS_S if "disk" in name else ttl_s + 1.0)
    else:
        time.sleep(ttl_s + SERVES_S + 1.0)
        assert len(application.placed) > acked, f"{name}: nothing was acknowledged"
    gap_s = application.longest_gap_since(began)
    faults.heal()
    wait_until(lambda: len(application.placed) > acked + 20, f"{name}: records are acknowledged again")
    wait_until(lambda: fleet.acknowledged > published + 20, f"{name}: devices publish again")
    if name in NO_FAILOVER:
        gap_s = application.longest_gap_since(began)
    assert not load.clients.errors, f"{name}: {load.clients.errors[:3]}"
    assert not load.leases.errors, f"{name}: {load.leases.errors[:3]}"
    load.leases.check()
    say(f"{name:32} {leader} -> {shard.leader()}  nothing acknowledged for {gap_s:5.2f} s")
    return Round(name, gap_s)


def table(found: Sequence[Round]) -> str:
    """Rows of a Markdown table: how long nothing was acknowledged, by kind of fault."""
    gaps: dict[str, list[float]] = defaultdict(list)
    for fault, gap_s in found:
        gaps[fault].append(gap_s)
        gaps["all kills, pauses and cuts" if fault in FAILOVERS else "all others"].append(gap_s)
    lines = ["| fault | rounds | p50, s | p99, s | most, s |", "| --- | --- | --- | --- | --- |"]
    for fault, values in sorted(gaps.items(), key=lambda item: (item[0].startswith("all "), item[0])):
        values.sort()
        at = [values[min(len(values) - 1, int(len(values) * part))] for part in (0.5, 0.99)]
        lines.append(f"| {fault} | {len(values)} | {at[0]:.2f} | {at[1]:.2f} | {values[-1]:.2f} |")
    return "\n".join(lines)


def late(found: Sequence[Round], ttl_s: float) -> list[Round]:
    """Kills, pauses and cuts after which nothing was acknowledged for longer than is promised."""
    return [one for one in found if one.fault in FAILOVERS and one.gap_s > ttl_s + SERVES_S]


def main() -> None:
    """Run rounds and print a table; exit code 1 when a leader was missed for too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("faults", nargs="*", help="only these; none = all")
    parser.add_argument("--default-times", action="store_true", help="a lease of 9 s, as nobody sets it")
    parser.add_argument("--retention", action="store_true", help="only the newest segments are kept")
    parser.add_argument("--other-version", type=Path, help="sources of another version, for some replicas")
    arguments = parser.parse_intermixed_args()
    times = DEFAULT_TIMES if arguments.default_times else RoundTimes()
    options = ShardOptions(times, arguments.retention, arguments.other_version)
    with tempfile.TemporaryDirectory() as directory:
        found = run_rounds(Path(directory), arguments.rounds, arguments.seed, _say, arguments.faults, options)
    print(f"\n{len(found)} rounds, seed {arguments.seed}, ttl {times.ttl_s} s, load {os.getloadavg()}\n")
    print(table(found))
    missed = late(found, times.ttl_s)
    if missed:
        sys.exit(f"longer than ttl + {SERVES_S:g} s: {missed}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
