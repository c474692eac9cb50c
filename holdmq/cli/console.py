"""``holdmq console`` and ``holdmq console user add | list | passwd | role | remove``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from holdmq.cli import services
from holdmq.cli.options import CommandGroup, Given, Yes, confirm
from holdmq.errors import StartupError, UsageError

if TYPE_CHECKING:
    from console.identity.accounts import Account, AccountFile

EXAMPLE: Final = "holdmq console --set console.port=8081"
RoleChoice = Literal["viewer", "operator", "admin"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The account.")]
RoleGiven = Annotated[RoleChoice, typer.Option("--role", help="viewer, operator or admin.")]
Batch = Annotated[
    bool, typer.Option("--batch", help="Ask nothing: the password is the first line of standard input.")
]

app = CommandGroup("Run the web console and its HTTP API, or say who may sign in.", EXAMPLE)
# Alone it is the service, as the other commands of that kind.
app.info.no_args_is_help = False
users = CommandGroup("Accounts of the console; one that runs sees a change within a second.",
                     "holdmq console user add ann --role operator")  # fmt: skip
app.add_typer(users, name="user")


@app.always(epilog=f"Example: {EXAMPLE}")
def serve(context: typer.Context, given: Given) -> None:
    """Run the web console and its HTTP API, unless a command follows."""
    if context.invoked_subcommand is None:
        raise typer.Exit(services.run("console", given))


@users.add("add", example="holdmq console user add ann --role operator")
def add(given: Given, name: Name, role: RoleGiven = "viewer", batch: Batch = False) -> None:
    """Add an account, and print its password, or take the one of standard input."""
    account, password = _changed(lambda file: file.add(name, role, _typed(batch)), given)
    _tell(given, account, "" if batch else password, f"{name} may sign in as {role}")


@users.add("list", example="holdmq console user list")
def list_(given: Given) -> None:
    """List the accounts, their roles and whether they are closed."""
    found = _changed(lambda file: file.load(), given).accounts
    rows = [{"name": one.name, "role": one.role, "disabled": one.disabled} for one in found.values()]
    given.table(
        ("account", "role", ""),
        sorted(rows, key=lambda row: str(row["name"])),
        lambda row: (row["name"], row["role"], "closed" if row["disabled"] else ""),
    )


@users.add("passwd", example="holdmq console user passwd admin")
def passwd(given: Given, name: Name, batch: Batch = False) -> None:
    """Give an account a new password, which is printed, or the one of standard input; its sessions end."""
    account, password = _changed(lambda file: file.set_password(name, _typed(batch)), given)
    _tell(given, account, "" if batch else password, f"{name} has a new password")


@users.add("role", example="holdmq console user role ann --role admin")
def role(given: Given, name: Name, role: RoleGiven) -> None:
    """Change an account's role; its sessions end."""
    _tell(given, _changed(lambda file: file.change(name, role=role), given), "", f"{name} is {role} now")


@users.add("remove", example="holdmq console user remove ann --yes")
def remove(given: Given, name: Name, yes: Yes = False) -> None:
    """Remove an account; its sessions end."""
    if not yes:
        confirm(f"Remove the account {name}?")
    _changed(lambda file: file.remove(name), given)
    given.tell({"removed": name}, f"{name} can no longer sign in")


def _typed(batch: bool) -> str:
    if not batch:
        return ""
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise UsageError("no password in the first line of standard input")
    return line


def _changed(work: Any, given: Given) -> Any:
    try:
        from console.identity.accounts import AccountFile, ExistsError, LastAdminError, NotFoundError
    except ModuleNotFoundError as error:
        raise StartupError(
            f"holdmq console needs the package {error.name}; install it: pip install 'holdmq[console]'"
        ) from error
    file: AccountFile = AccountFile(Path(given.configuration().console.data_dir))
    try:
        return work(file)
    except (ExistsError, LastAdminError, NotFoundError) as error:
        raise UsageError(str(error)) from error


def _tell(given: Given, account: Account, password: str, sentence: str) -> None:
    facts: dict[str, Any] = {"name": account.name, "role": account.role}
    if password:
        given.tell({**facts, "password": password}, f"{sentence}; the password is {password}")
    else:
        given.tell(facts, sentence)
