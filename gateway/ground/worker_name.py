"""What a worker is called, for people and for who has to tell it from all others."""

from __future__ import annotations

import os
import secrets
import socket
from typing import NamedTuple


class WorkerName(NamedTuple):
    """A worker as people know it: its gateway's host and its number there; `worker_id` is nobody else's."""

    gateway: str
    worker: int
    worker_id: str


def worker_name(worker: int) -> WorkerName:
    """Return the name of this process."""
    host = socket.gethostname()
    return WorkerName(host, worker, f"{host}-{os.getpid()}-{secrets.token_hex(4)}")
