"""Files of users: one `name:secret` a line, as amqtt's, Mosquitto's and `holdmq passwd` write them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdmq.errors import ConfigError, UsageError
from holdmq.private_file import write_private

FILE_MAX_BYTES: Final = 64 << 20
"""A file of users: half a million of them; more belong to a plug-in with a data base."""
NAME_MAX_BYTES: Final = 1024


def read_users(path: Path, what: str) -> dict[str, str]:
    """Read a file's users and their secrets' texts. Raises ConfigError naming file and line."""
    users: dict[str, str] = {}
    for number, line in enumerate(read_text(path, what).splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, secret = line.partition(":")
        if not colon or not name or not secret:
            raise ConfigError(f"line {number} of {path} ({what}) is not of the form name:hash")
        users[name] = secret
    return users


def read_text(path: Path, what: str) -> str:
    """Read a file of the configuration. Raises ConfigError naming it."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} ({what}) cannot be read: {error.strerror}") from error
    if len(raw) > FILE_MAX_BYTES:
        raise ConfigError(f"{path} ({what}) has more than {FILE_MAX_BYTES >> 20} MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} ({what}) is not UTF-8: {error}") from error


def write_users(path: Path, changes: dict[str, str | None], what: str) -> tuple[int, int]:
    """Set or take away (None) users of a file, keeping comments and the order of lines.

    Returns how many were there before, and how many were not. The file is replaced as a whole, readable by
    its owner only. Raises ConfigError, UsageError.
    """
    for name in changes:
        check_name(name)
    text = read_text(path, what) if path.exists() else ""
    left = dict(changes)
    lines: list[str] = []
    found = 0
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise ConfigError(f"{path} ({what}) cannot be written: {error.strerror}") from error
    return found, len(left)


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
