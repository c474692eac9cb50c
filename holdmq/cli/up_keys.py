"""Access keys of the services that ``holdmq up`` starts: each its own, of the least role that will do."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdmq.cli.key import SECRET_BYTES, replace_keys, with_entry, without_entry
from holdmq.credentials.access_keys import AccessKey, load_keys
from holdmq.credentials.permissions import Role
from holdmq.errors import StartupError
from holdmq.files.private_file import write_private

ROLES: Final = {
    "broker": Role.BROKER,
    "gateway": Role.SERVICE,
    "stats": Role.READER,
    "console": Role.ADMIN,
}
"""Service → what it is. A registry connects to nobody."""

_PREFIX: Final = "up-"


def give_keys(keys_file: Path, directory: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """Return service → the settings that give it its access key; blocking.

    Entries ``up-NAME`` that the keys file lacks, or that are not as they should be, are written into it;
    their secrets are files in `directory`. Raises ConfigError or UsageError when the keys file cannot be
    used, StartupError when something cannot be written.
    """
    keys = load_keys(keys_file)
    before = text = keys_file.read_text(encoding="utf-8")
    settings: dict[str, list[str]] = {}
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in names:
            if name not in ROLES:
                continue
            access_key, secret_file = f"{_PREFIX}{name}", directory / f"{name}.secret"
            # A secret of the configuration's own would be a second one.
            settings[name] = [
                f"client.access_key={access_key}", "client.secret=", f"client.secret_file={secret_file}",
            ]  # fmt: skip
            wanted = AccessKey(access_key, _secret_in(secret_file), roles=frozenset({ROLES[name]}))
            if wanted.secret and keys.get(access_key) == wanted:
                continue
            if access_key in keys:
                text = without_entry(keys_file, text, access_key)
            made = AccessKey(access_key, secrets.token_urlsafe(SECRET_BYTES), roles=wanted.roles)
            # The secret first: killed in between, the next start finds two that differ, and makes new ones.
            write_private(secret_file, f"{made.secret}\n".encode())
            text = with_entry(text, made)
        if text != before:
            replace_keys(keys_file, text)
    except OSError as error:
        raise StartupError(
            f"the access keys of the services cannot be written ({error.filename}: {error.strerror}); holdmq "
            f"up adds its own to security.keys_file, {keys_file}: let this user write there"
        ) from error
    return settings


def _secret_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
