"""Files of users: one `name:secret` a line, as amqtt's, Mosquitto's and `holdmq passwd` write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdmq.errors import ConfigError, UsageError
from holdmq.files.private_file import locked, read_private, write_private

FILE_MAX_BYTES: Final = 64 << 20
"""A file of users: half a million of them; more belong to a plug-in with a data base."""
NAME_MAX_BYTES: Final = 1024


class UserLine(NamedTuple):
    """What a file says of a user, and where; the first line is 1."""

    secret: str
    number: int


def parse_users(text: str, path: Path, what: str) -> dict[str, UserLine]:
    """The users of a file's text. Raises ConfigError naming file and line."""
    users: dict[str, UserLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, secret = line.partition(":")
        if not colon or not name or not secret:
            raise ConfigError(f"line {number} of {path} ({what}) is not of the form name:hash")
        users[name] = UserLine(secret, number)
    return users


def read_secret_text(path: Path, what: str) -> str:
    """Read a file of users (blocking). ConfigError naming it, also when others than its owner can read it."""
    return _text(read_private(path, what, FILE_MAX_BYTES), path, what)


def read_text(path: Path, what: str) -> str:
    """Read a file of the configuration, whoever else can. Raises ConfigError naming it."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} ({what}) cannot be read: {error.strerror}") from error
    if len(raw) > FILE_MAX_BYTES:
        raise ConfigError(f"{path} ({what}) has more than {FILE_MAX_BYTES >> 20} MiB")
    return _text(raw, path, what)


def _text(raw: bytes, path: Path, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} ({what}) is not UTF-8: {error}") from error


def write_users(
    path: Path,
    changes: Mapping[str, str | None],
    what: str,
    finish: Callable[[str], str] = str,
) -> tuple[int, int]:
    """Set or take away (None) users of a file, keeping comments and the order of lines (blocking).

    `finish` gets the new text and returns what is written. Returns how many were there before, and how many
    were not. Who else writes the file waits. It is replaced as a whole, readable by its owner only. Raises
    ConfigError, UsageError.
    """
    for name in changes:
        check_name(name)
    left = dict(changes)
    found = 0

    def change(text: str) -> str:
        nonlocal found
        lines: list[str] = []
        for line in text.splitlines():
            name = line.strip().partition(":")[0]
            if line.strip().startswith("#") or name not in changes:
                lines.append(line)
            elif name in left:
                found += 1
                secret = left.pop(name)
                if secret is not None:
                    lines.append(f"{name}:{secret}")
        lines += [f"{name}:{secret}" for name, secret in left.items() if secret is not None]
        return finish("".join(f"{line}\n" for line in lines))

    _rewrite(path, change, what)
    return found, len(left)


def replace_secrets(path: Path, changes: Mapping[str, tuple[str, str]], what: str) -> int:
    """Give users the second of two secrets whose line has the first now; how many were (blocking).

    Lines that changed meanwhile are somebody's newer word and stay; so does a file in which nothing fits.
    Raises ConfigError.
    """
    replaced = 0

    def change(text: str) -> str:
        nonlocal replaced
        lines = text.splitlines()
        for index, line in enumerate(lines):
            name, _, secret = line.strip().partition(":")
            if name in changes and secret == changes[name][0]:
                lines[index] = f"{name}:{changes[name][1]}"
                replaced += 1
        return "".join(f"{line}\n" for line in lines) if replaced else text

    if not path.exists():
        return 0
    _rewrite(path, change, what)
    return replaced


def _rewrite(path: Path, change: Callable[[str], str], what: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            before = read_text(path, what)
            after = change(before)
            if after != before:
                write_private(path, after.encode())
    except OSError as error:
        raise ConfigError(f"{path} ({what}) cannot be written: {error.strerror or error}") from error


def check_name(name: str) -> None:
    """Refuse a user name that a line cannot have."""
    if (
        not name
        or ":" in name
        or name != name.strip()
        or name.startswith("#")
        or not name.isprintable()
        or len(name.encode()) > NAME_MAX_BYTES
    ):
        raise UsageError(
            f"{name[:64]!r} is no user name for a file: no colon, no # or space at its ends, no control "
            f"characters, at most {NAME_MAX_BYTES} bytes"
        )
