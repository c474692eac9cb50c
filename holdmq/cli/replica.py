"""``holdmq replica list | switch | promote``: the copies of a broker, and which one leads."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from holdmq.cli.options import CommandGroup, Given, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import say
from holdmq.errors import ConfigError, HoldMQError, UsageError
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.config.model import Config
    from holdmq.wire.codes import RequestCode
    from holdmq.wire.header import Header
    from holdmq.wire.replica_headers import ReplicaStatusResponse

H = TypeVar("H", bound="Header")

CALL_S = 3.0
SWITCH_S = 10.0
LOOK_S = 0.1

app = CommandGroup(
    "The copies of a replicated broker: what each has, which one leads, and who is to.", "holdmq replica list"
)


@app.add("list", example="holdmq replica list --config broker.toml")
def list_(given: Given) -> None:
    """Ask every replica what it has and does. Exit code 1 when none leads, or one does not answer.

    The epoch is that of the replica's log: a log of a higher one is the newer one, whatever its end.
    """
    config = _replicated(given.configuration())
    found = asyncio.run(_statuses(config))
    is_well = all(not isinstance(status, str) for status in found.values()) and any(
        not isinstance(status, str) and _hands_out(status) for status in found.values()
    )
    if given.as_json:
        print_json({"shard": config.broker.name, "ok": is_well, "replicas": _fields(config, found)})
    else:
        _print(config, found)
    if not is_well:
        raise typer.Exit(EXIT_FAILED)


@app.add("switch", example="holdmq replica switch --to b")
def switch(
    given: Given,
    to: Annotated[str, typer.Option("--to", help="Replica that is to lead; unset = who has most.")] = "",
) -> None:
    """Hand the lead to another replica in sync. Clients see a pause of a second at most."""
    config = _replicated(given.configuration())
    if to and to not in config.replication.addresses():
        raise UsageError(
            f"replication.replicas has no {to!r}, but {', '.join(config.replication.addresses())}"
        )
    leader = asyncio.run(_switch(config, to))
    if given.as_json:
        print_json({"shard": config.broker.name, "leader": leader})
    else:
        say(f"{leader} leads {config.broker.name}")


@app.add("promote", example="holdmq replica promote c --accept-loss")
def promote(
    given: Given,
    replica: Annotated[str, typer.Argument(help="Replica that is to lead with what it has.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up what others have and this one lacks.")
    ] = False,
) -> None:
    """Make a replica lead that may lack acknowledged messages, when all that have them are gone for good."""
    config = _replicated(given.configuration())
    addresses = config.replication.addresses()
    if replica not in addresses:
        raise UsageError(f"replication.replicas has no {replica!r}, but {', '.join(addresses)}")
    found = asyncio.run(_statuses(config))
    for name, status in found.items():
        if not isinstance(status, str) and status.is_serving:
            raise UsageError(f"{name} leads {config.broker.name}: use holdmq replica switch")
    if not accept_loss:
        _print(config, found)
        raise UsageError(
            f"whatever lies behind the end of {replica} is lost; a replica that has more begins anew, so "
            "move its data directory away before it is started again; say --accept-loss if that is meant"
        )
    end = asyncio.run(_promote(config, replica, addresses[replica]))
    if given.as_json:
        print_json({"shard": config.broker.name, "leader": replica, "end": end})
    else:
        say(f"{replica} campaigns for {config.broker.name} with a log of {end} bytes")


def _hands_out(status: ReplicaStatusResponse) -> bool:
    """Whether a replica leads, serves, and is sure that no other one does."""
    return status.is_serving and status.lease_ms > 0


def _replicated(config: Config) -> Config:
    if not config.replication.replicas:
        raise ConfigError(
            "replication.replicas is empty, for a broker with one copy: name the configuration of a replica"
        )
    return config


async def _ask(config: Config, address: str, code: RequestCode, header: Header, kind: type[H]) -> H:
    from holdmq.rpc.client import Client
    from holdmq.rpc.security import Security

    client = Client(address, "client", f"holdmq-cli-{os.getpid()}", security=Security.of(config))
    try:
        return (await client.call(code, header, CALL_S)).header(kind)
    finally:
        await client.close()


async def _statuses(config: Config) -> dict[str, ReplicaStatusResponse | str]:
    """What each replica says, or why it says nothing."""
    from holdmq.wire.codes import RequestCode
    from holdmq.wire.replica_headers import ReplicaStatusRequest, ReplicaStatusResponse

    async def ask(address: str) -> ReplicaStatusResponse | str:
        header = ReplicaStatusRequest(config.broker.name)
        try:
            return await _ask(config, address, RequestCode.REPLICA_STATUS, header, ReplicaStatusResponse)
        except HoldMQError as error:
            return str(error)

    addresses = config.replication.addresses()
    answers = await asyncio.gather(*(ask(address) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


async def _switch(config: Config, to: str) -> str:
    """Ask the leader, and wait until the other one leads."""
    from holdmq.wire.codes import RequestCode
    from holdmq.wire.replica_headers import ReplicaSwitchRequest, ReplicaSwitchResponse

    found = await _statuses(config)
    leader = next((name for name, s in found.items() if not isinstance(s, str) and s.is_serving), None)
    if leader is None:
        raise UsageError(
            f"nobody leads {config.broker.name}: holdmq replica list says what each replica does"
        )
    if to == leader:
        return leader
    header = ReplicaSwitchRequest(config.broker.name, to)
    address = config.replication.addresses()[leader]
    answer = await _ask(config, address, RequestCode.REPLICA_SWITCH, header, ReplicaSwitchResponse)
    deadline = asyncio.get_running_loop().time() + SWITCH_S
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(LOOK_S)
        status = (await _statuses(config))[answer.to]
        if not isinstance(status, str) and status.is_serving:
            return answer.to
    raise HoldMQError(f"{answer.to} does not lead after {SWITCH_S:g} s: see holdmq replica list")


async def _promote(config: Config, replica: str, address: str) -> int:
    from holdmq.wire.codes import RequestCode
    from holdmq.wire.replica_headers import ReplicaPromoteRequest, ReplicaPromoteResponse

    header = ReplicaPromoteRequest(config.broker.name, True)
    return (await _ask(config, address, RequestCode.REPLICA_PROMOTE, header, ReplicaPromoteResponse)).end


def _fields(config: Config, found: dict[str, ReplicaStatusResponse | str]) -> list[dict[str, object]]:
    from holdmq.wire.header import rows as parsed
    from holdmq.wire.replica_headers import EpochRow

    answers = [status for status in found.values() if not isinstance(status, str)]
    # Who knows the highest epoch knows best who is in sync, and its leader before all who have read it.
    best = max(answers, key=lambda status: (status.epoch, status.is_serving), default=None)
    members = None if best is None or not best.epoch else set(best.in_sync)
    behind = _behind_ms(answers)
    rows: list[dict[str, object]] = []
    for name, address in config.replication.addresses().items():
        status = found[name]
        row: dict[str, object] = {"replica": name, "address": address}
        if isinstance(status, str):
            row |= {"role": "unreachable", "reason": status}
        else:
            row |= {
                "role": status.role,
                "serves": _hands_out(status),
                "epoch": status.epoch,
                "log_epoch": max((row.epoch for row in parsed(EpochRow, status.epochs)), default=0),
                "leader": status.leader,
                "whole": status.is_whole,
                "first": status.first,
                "end": status.end,
                "confirmed": status.confirmed,
            }
        row |= {
            "in_sync": None if members is None else name in members,
            "behind_ms": behind.get(name),
        }
        rows.append(row)
    return rows


def _behind_ms(answers: list[ReplicaStatusResponse]) -> dict[str, int]:
    """How long ago each copy had all that the leader had, as the leader says it; empty = none leads."""
    from holdmq.wire.header import rows
    from holdmq.wire.replica_headers import CopyRow

    leader = next((status for status in answers if status.is_serving), None)
    return {} if leader is None else {row.replica: row.behind_ms for row in rows(CopyRow, leader.copies)}


def _print(config: Config, found: dict[str, ReplicaStatusResponse | str]) -> None:
    from rich.console import Console

    table = PlainTable("replica", "role", "in sync", "whole", "epoch", "end", "confirmed", "behind")
    for row in _fields(config, found):
        behind_ms = row["behind_ms"]
        table.add_row(
            str(row["replica"]),
            str(row["role"]),
            _word(row["in_sync"]),
            _word(row.get("whole")),
            str(row.get("log_epoch", "")),
            str(row.get("end", "")),
            str(row.get("confirmed", "")),
            f"{behind_ms / 1e3:.1f} s" if isinstance(behind_ms, int) else "",
        )
    Console().print(table)
    for name, status in found.items():
        if isinstance(status, str):
            say(f"{name} does not answer: {status}")
        elif status.is_serving and not _hands_out(status):
            say(f"{name} hands nothing out: its lease of the lead has run out; look after the coordinator")


def _word(value: object) -> str:
    return "" if value is None else "yes" if value else "no"
