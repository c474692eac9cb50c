"""``holdmq ban list | clear``: MQTT clients that are banned for connecting too often."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdmq.cli.control import Admin, ask
from holdmq.cli.options import ConfigFile, Json, Sets, configuration, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import say
from holdmq.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="MQTT clients that this machine's gateway has banned for connecting too often.",
    epilog="Example: holdmq ban list",
)


@app.command("list", epilog="Example: holdmq ban list --json")
def list_(admin: Admin = "", config: ConfigFile = None, set_: Sets = None, as_json: Json = False) -> None:
    """List the bans, the one that ends first in front."""
    rows = list(ask(configuration(config, set_), admin, "GET", "/bans"))
    if as_json:
        print_json(rows)
        return
    table = PlainTable("client", "address", "connects", "ends in")
    for row in rows:
        table.add_row(row["principal"], row["address"], str(row["connects"]), f"{row['left_s']:.0f} s")
    Console().print(table)


@app.command(epilog="Example: holdmq ban clear meter-42")
def clear(
    client: Annotated[str | None, typer.Argument(metavar="CLIENT", help="Whose bans to lift.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Lift all bans.")] = False,
    admin: Admin = "",
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Lift the bans of one client, wherever it connects from, or of all, and waits for wrong passwords."""
    if (client is None) != all_:
        raise UsageError("name a client, or say --all")
    query = {"principal": client, "all": 1 if all_ else None}
    (row,) = ask(configuration(config, set_), admin, "POST", "/bans", **query)
    if as_json:
        print_json(row)
    else:
        say(f"{row['lifted']} bans lifted")
