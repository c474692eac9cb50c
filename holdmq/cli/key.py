"""``holdmq key create | list | delete``: the access keys of a keys file."""

from __future__ import annotations

import json
import re
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from holdmq.cli.options import CommandGroup, Given
from holdmq.credentials.access_keys import AccessKey, load_keys, tenant_of_key_fault
from holdmq.credentials.permissions import Role
from holdmq.errors import UsageError
from holdmq.files.private_file import write_private

SECRET_BYTES: Final = 32
"""Random bytes of a secret: as many as the digest that it is used with."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_ENTRY: Final = re.compile(r"\s*\[keys\.(?P<quoted>\"[^\"]*\"|[A-Za-z0-9_-]+)\]\s*(#.*)?\Z")

app = CommandGroup(
    "Access keys: who may connect to brokers and registries, and what each may do.",
    "holdmq key create orders --produce 'orders*' --consume orders --group 'orders-*'",
)

File = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="The keys file; unset = security.keys_file.", show_default=False
    ),
]
_PATTERN = "name or pattern (* ? [a-z]); repeat it."


@app.add(
    "create", example="holdmq key create gateway --role service --file keys.toml --secret-file gateway.secret"
)
def create(
    given: Given,
    name: Annotated[str, typer.Argument(help="Name of the access key: letters, digits, _ . and -.")],
    role: Annotated[
        list[Role] | None,
        typer.Option(
            help="client = what the patterns allow (the default); reader = console and stats; broker; "
            "service = gateways; admin; repeat it.",
            show_default=False,
        ),
    ] = None,
    produce: Annotated[list[str] | None, typer.Option(help=f"Topic to produce to: {_PATTERN}")] = None,
    consume: Annotated[list[str] | None, typer.Option(help=f"Topic to consume from: {_PATTERN}")] = None,
    group: Annotated[list[str] | None, typer.Option(help=f"Consumer group to use: {_PATTERN}")] = None,
    tenant: Annotated[
        str, typer.Option(help="Whose key it is: patterns then are of names within the tenant.")
    ] = "",
    certificate: Annotated[
        list[str] | None, typer.Option(help="Name in a client certificate that is as good; repeat it.")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", help="Write the secret here, and do not print it.")
    ] = None,
    file: File = None,
) -> None:
    """Add an access key with a new secret, which is shown once."""
    path = _path(file, given)
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is no name for an access key: 1 to 128 of A-Z a-z 0-9 _ . -")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if path.exists() and name in load_keys(path):
        raise UsageError(f"{path} has an access key {name!r}: delete it first, or choose another name")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    key = AccessKey(
        name, secret, tuple(certificate or ()), frozenset(role or (Role.CLIENT,)),
        tuple(produce or ()), tuple(consume or ()), tuple(group or ()), tenant,
    )  # fmt: skip
    fault = tenant_of_key_fault(key)
    if fault is not None:
        raise UsageError(fault)
    if secret_file is not None:
        write_private(secret_file, f"{secret}\n".encode())
    replace_keys(path, with_entry(text, key))
    shown = {} if secret_file is not None else {"secret": secret}
    where = (
        f"its secret is in {secret_file}" if secret_file is not None else f"its secret, shown once: {secret}"
    )
    given.tell({"access_key": name, **shown, "file": str(path)}, f"access key {name} is in {path}; {where}")


@app.add("list", example="holdmq key list --file keys.toml")
def list_(given: Given, file: File = None) -> None:
    """List the access keys and what they allow, without their secrets."""
    keys = load_keys(_path(file, given)).values()
    rows = [
        {
            "access_key": key.name,
            "roles": _roles(key),
            "tenant": key.tenant,
            "produce": list(key.produce),
            "consume": list(key.consume),
            "groups": list(key.groups),
            "certificates": list(key.certificates),
            "has_secret": bool(key.secret),
        }
        for key in keys
    ]
    columns = ("access key", "tenant", "roles", "produce", "consume", "groups", "certificates")

    def cells(row: dict[str, Any]) -> list[str]:
        return [row["access_key"], row["tenant"], *(", ".join(row[name]) for name in columns[2:])]

    given.table(columns, rows, cells)


@app.add("delete", example="holdmq key delete orders --file keys.toml")
def delete(
    given: Given, name: Annotated[str, typer.Argument(help="Name of the access key.")], file: File = None
) -> None:
    """Delete an access key: its connections end when the servers see it, within seconds."""
    path = _path(file, given)
    if name not in load_keys(path):
        raise UsageError(f"{path} has no access key {name!r}; `holdmq key list` shows those that it has")
    replace_keys(path, without_entry(path, path.read_text(encoding="utf-8"), name))
    given.tell({"access_key": name, "file": str(path)}, f"access key {name} is no longer in {path}")


def _path(file: Path | None, given: Given) -> Path:
    if file is not None:
        return file
    configured = given.configuration().security.keys_file
    if not configured:
        raise UsageError("no keys file is configured: set security.keys_file, or give --file")
    return Path(configured)


def _roles(key: AccessKey) -> list[str]:
    return [role.value for role in Role if role in key.roles]


def with_entry(text: str, key: AccessKey) -> str:
    """The text of a keys file, with this entry at its end."""
    lines = [f"[keys.{json.dumps(key.name)}]", f"secret = {json.dumps(key.secret)}"]
    lists = {"roles": _roles(key), "certificates": key.certificates, "produce": key.produce,
             "consume": key.consume, "groups": key.groups}  # fmt: skip
    # JSON's strings and arrays of them are TOML's too.
    lines += [f"tenant = {json.dumps(key.tenant)}"] if key.tenant else []
    lines += [f"{field} = {json.dumps(list(values))}" for field, values in lists.items() if values]
    before = f"{text.rstrip()}\n\n" if text.strip() else ""
    return before + "\n".join(lines) + "\n"


def without_entry(path: Path, text: str, name: str) -> str:
    """The `text` of the keys file at `path` without this entry's lines; comments elsewhere stay.

    Raises UsageError when the entry is not written as `holdmq key create` writes one.
    """
    kept: list[str] = []
    is_inside = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            found = _ENTRY.match(line)
            is_inside = found is not None and found["quoted"].strip('"') == name
        if not is_inside:
            kept.append(line)
    left = "".join(kept)
    wanted = tomllib.loads(text)["keys"]
    del wanted[name]
    if tomllib.loads(left).get("keys", {}) != wanted:
        raise UsageError(
            f"the entry {name!r} of {path} is not a table [keys.NAME] of its own: delete it by hand"
        )
    return left


def replace_keys(path: Path, text: str) -> None:
    """Put `text` in place of the keys file, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, text.encode())
