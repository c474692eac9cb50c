"""``holdmq ban list | clear``: MQTT clients that are banned for connecting too often."""

from __future__ import annotations

from typing import Annotated

import typer

from holdmq.cli.control import Admin, ask
from holdmq.cli.options import CommandGroup, Given
from holdmq.errors import UsageError

app = CommandGroup(
    "MQTT clients that this machine's gateway has banned for connecting too often.", "holdmq ban list"
)


@app.add("list", example="holdmq ban list --json")
def list_(given: Given, admin: Admin = "") -> None:
    """List the bans, the one that ends first in front."""
    rows = list(ask(given.configuration(), admin, "GET", "/bans"))
    given.table(
        ("client", "address", "connects", "ends in"),
        rows,
        lambda row: (row["principal"], row["address"], row["connects"], f"{row['left_s']:.0f} s"),
    )


@app.add("clear", example="holdmq ban clear meter-42")
def clear(
    given: Given,
    client: Annotated[str | None, typer.Argument(metavar="CLIENT", help="Whose bans to lift.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Lift all bans.")] = False,
    admin: Admin = "",
) -> None:
    """Lift the bans of one client, wherever it connects from, or of all, and waits for wrong passwords."""
    if (client is None) != all_:
        raise UsageError("name a client, or say --all")
    query = {"principal": client, "all": 1 if all_ else None}
    (row,) = ask(given.configuration(), admin, "POST", "/bans", **query)
    given.tell(row, f"{row['lifted']} bans lifted")
