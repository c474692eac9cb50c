"""``holdmq broker`` and ``holdmq broker forget``: the service, and the end of one that is lost for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdmq.cli import services
from holdmq.cli.calls import run_calls
from holdmq.cli.options import CommandGroup, Given, print_json
from holdmq.cli.shown import say
from holdmq.cli.times import show_time
from holdmq.errors import HoldMQError, UsageError
from holdmq.names.topics import is_system_topic
from holdmq.service.process import EXIT_FAILED, EXIT_USAGE
from holdmq.wire.retained_headers import RETAINED_TOPIC
from holdmq.wire.session_headers import SESSION_TOPIC

if TYPE_CHECKING:
    from holdmq.client.lost_brokers import BrokerLoss
    from holdmq.config.model import Config

EXAMPLE: Final = "holdmq broker --config holdmq.toml --set storage.flush=sync"
TOPICS_SHOWN: Final = 20
"""Topics that the sentences name; all that registries name are in the JSON."""

app = CommandGroup("Run a broker: one commit log and its queues; or give one up that is lost.", EXAMPLE)
# Alone it is the service, as the other commands of that kind.
app.info.no_args_is_help = False


@app.always(epilog=f"Example: {EXAMPLE}")
def serve(context: typer.Context, given: Given, accept_backup: services.AcceptBackup = False) -> None:
    """Run a broker, one commit log and its queues, unless a command follows."""
    if context.invoked_subcommand is None:
        raise typer.Exit(services.run("broker", given, services.backup_sets(accept_backup, ["broker"])))


@app.add("forget", example="holdmq broker forget broker-1 --accept-loss")
def forget(
    given: Given,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The broker that is lost for good.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up what it alone kept, at every registry.")
    ] = False,
) -> None:
    """Give up a broker that never comes back: others keep its clients, topics and keys from now on.

    Without --accept-loss it only says what is lost. Exit code 1 while a registry was not told; do it again
    then. Its old directory is refused for ever; an empty one may have the name.
    """
    config = given.configuration()
    if config.replication.replicas and config.broker.name == name:
        raise UsageError(
            f"{name} has copies (replication.replicas): another one leads by itself, or with holdmq replica "
            "promote"
        )
    loss = _run(config, name, accept_loss)
    if loss.refused:
        raise HoldMQError(next(iter(loss.refused.values())))
    if not (loss.is_known or loss.silent):
        raise UsageError(f"no registry knows a broker {name!r}: holdmq cluster brokers lists those that live")
    if given.as_json:
        print_json(_facts(loss))
    else:
        for sentence in _sentences(loss):
            say(sentence)
    if loss.silent:
        for address, reason in loss.silent.items():
            say(f"registry {address} was not asked: {reason}", err=True)
    if not accept_loss:
        if not given.as_json:
            say("nothing is changed; say --accept-loss if all that is to be given up", err=True)
        raise typer.Exit(EXIT_USAGE)
    if loss.silent:
        say("do it again when they are there", err=True)
        raise typer.Exit(EXIT_FAILED)


def _run(config: Config, name: str, accept_loss: bool) -> BrokerLoss:
    from holdmq.client.lost_brokers import LostBrokers

    def work(lost: LostBrokers) -> Any:
        return lost.forget(name) if accept_loss else lost.look(name)

    loss: BrokerLoss = run_calls(config, LostBrokers, work)
    return loss


def _facts(loss: BrokerLoss) -> dict[str, Any]:
    return {
        **loss._asdict(),
        "forgotten_ms": loss.forgotten_ms or None,
        "topics": [row._asdict() for row in loss.topics],
    }


def _sentences(loss: BrokerLoss) -> list[str]:
    name = loss.broker
    found: list[str] = []
    if loss.forgotten_ms:
        where = ", ".join(loss.told) or "no registry"
        found.append(f"{name} is given up since {show_time(loss.forgotten_ms)}, at {where}")
        if not loss.topics:
            return found
    seen = "not known, as registries were started since"
    if loss.silent_ms is not None:
        seen = f"{loss.silent_ms / 1000:.0f} s ago"
    found += [
        f"{name} was heard of last: {seen}",
        f"lost: {_count(loss.sessions)} sessions, with their subscriptions, wills and messages on their way",
        f"lost: {_count(loss.retained)} retained messages",
        f"lost: what only {name} had in {loss.queues_total} queues of {loss.topics_total} topics",
    ]
    ordered = [row for row in loss.topics if row.is_ordered and not is_system_topic(row.topic)]
    if ordered:
        named = ", ".join(f"{row.topic} ({row.queues} queues)" for row in ordered[:TOPICS_SHOWN])
        more = f" and {len(ordered) - TOPICS_SHOWN} more" if len(ordered) > TOPICS_SHOWN else ""
        found.append(f"keys of ordered topics and tables move to the brokers that remain: {named}{more}")
    alone = [row.topic for row in loss.topics if not row.others and not is_system_topic(row.topic)]
    if alone:
        more = f" and {len(alone) - TOPICS_SHOWN} more" if len(alone) > TOPICS_SHOWN else ""
        found.append(f"no other broker has: {', '.join(alone[:TOPICS_SHOWN])}{more}")
    if any(row.topic in (SESSION_TOPIC, RETAINED_TOPIC) and not row.others for row in loss.topics):
        found.append("no other broker keeps sessions and retained messages: restart one, which then does")
    return found


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else str(number)
