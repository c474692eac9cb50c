"""``holdmq passwd``: users of the MQTT gateway and their passwords."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from holdmq.cli.options import CommandGroup, Output
from holdmq.cli.progress import steps_bar
from holdmq.errors import ConfigError, UsageError

BATCH_MAX: Final = 100_000
"""Users of one batch: an hour of hashing on one core."""


def register(line: CommandGroup) -> None:
    """Add the command to the command line."""
    line.add("passwd", example="holdmq passwd users.passwd meter-42")(passwd)


def passwd(
    output: Output,
    file: Annotated[Path, typer.Argument(help="The file of users; made if it is not there.")],
    user: Annotated[str, typer.Argument(help="The user; with --batch it may be left out.")] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Take the user away.")] = False,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch",
            help="Ask nothing: the password is the first line of standard input; without USER all its lines "
            "are user:password.",
        ),
    ] = False,
    scram: Annotated[
        bool,
        typer.Option("--scram", help="Write a verifier for SCRAM-SHA-256, for access.scram_file."),
    ] = False,
) -> None:
    """Set a user's password in a file for access.password_file (or access.scram_file), or take the user away.

    The file has hashes, from which nobody gets the passwords; gateways that run see the change in seconds.
    """
    from gateway.access.scram_file import with_key
    from gateway.access.user_file import parse_users, read_text, write_users

    finish = with_key if scram else str
    what = "access.scram_file" if scram else "access.password_file"
    if delete:
        if batch or not user:
            raise UsageError("--delete takes a file and a user, and nothing else")
        if user not in parse_users(read_text(file, what), file, what):
            raise UsageError(f"{file} has no user {user!r}")
        write_users(file, {user: None}, what, finish)
        _say(output, file, f"user {user} is no longer in {file}", deleted=1)
        return
    wanted = _wanted(user, batch)
    if file.exists():
        _check_kind(file, scram)
    changes: dict[str, str | None] = {}
    with steps_bar("passwords", len(wanted)) as report:
        for name, word in wanted.items():
            changes[name] = _secret(name, word, scram)
            report(len(changes))
    changed, added = write_users(file, changes, what, finish)
    told = f"user {user} is" if user else f"{len(changes)} users are"
    _say(
        output,
        file,
        f"{told} in {file}: {added} new, {changed} changed",
        added=added,
        changed=changed,
    )


def _wanted(user: str, batch: bool) -> dict[str, str]:
    from gateway.access.user_file import check_name

    if user:
        check_name(user)
    if not batch:
        if not user:
            raise UsageError("whose password? holdmq passwd FILE USER, or --batch")
        return {user: typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)}
    lines = sys.stdin.read().splitlines()
    if user:
        if not lines or not lines[0]:
            raise UsageError("no password in the first line of standard input")
        return {user: lines[0]}
    wanted: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, colon, password = line.partition(":")
        if not colon or not password:
            raise UsageError(f"line {number} of standard input is not of the form user:password")
        check_name(name)
        wanted[name] = password
    if not wanted or len(wanted) > BATCH_MAX:
        raise UsageError(f"a batch has 1 to {BATCH_MAX} users, this one {len(wanted)}")
    return wanted


def _secret(name: str, password: str, scram: bool) -> str:
    from holdmq.credentials.password_hash import PASSWORD_MAX_BYTES, hash_password

    if not password or len(password.encode()) > PASSWORD_MAX_BYTES:
        raise UsageError(f"the password of {name!r} has to have 1 to {PASSWORD_MAX_BYTES} bytes")
    if scram:
        from gateway.access.scram_file import make_verifier
        from gateway.session.scram import saslprep

        try:
            if saslprep(name) != name:
                raise UsageError(f"SCRAM knows the user {name!r} as {saslprep(name)!r}: use that name")
            return str(make_verifier(password))
        except ValueError as error:
            raise UsageError(f"user {name!r}: {error}") from error
    return hash_password(password.encode())


def _check_kind(file: Path, scram: bool) -> None:
    """Do not put hashes of one kind into a file of the other. Who could read it cannot after this."""
    from gateway.access import passwords, scram_file
    from gateway.access.user_file import read_text

    try:
        if scram:
            scram_file.ScramFile.parse(read_text(file, scram_file.WHAT), file)
        else:
            passwords.PasswordFile.parse(read_text(file, passwords.WHAT), file)
    except ConfigError as error:
        raise UsageError(f"{error}; nothing was changed") from error


def _say(output: Output, file: Path, sentence: str, **numbers: int) -> None:
    output.tell({"file": str(file), **numbers}, sentence)
