"""What connections cost the workers of a gateway, from the numbers on its admin port."""

from __future__ import annotations

import http.client
import re
import time
from typing import Any, Final

from holdmq.errors import StartupError, UsageError

EVERY_S: Final = 1.0
"""How often a worker looks at its memory."""
_SAMPLE: Final = re.compile(r'holdmq_gateway_worker_(connections|memory_bytes)\{worker="(\d+)"\} (\S+)\n')

Numbers = dict[str, dict[int, float]]
"""`connections` and `memory_bytes`, each by worker."""


def read_metrics(admin: str) -> str:
    """What HOST:PORT answers to /metrics. UsageError, StartupError."""
    host, _, port = admin.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{admin!r} is no HOST:PORT")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=10)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise StartupError(f"no gateway tells its numbers at {admin}: {error}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise StartupError(f"what answers at {admin} does not tell its numbers: {text.strip()}")
    return text


def read_numbers(admin: str) -> Numbers:
    """Connections and resident bytes by worker, as HOST:PORT tells them. UsageError, StartupError."""
    text = read_metrics(admin)
    numbers: Numbers = {"connections": {}, "memory_bytes": {}}
    for what, worker, value in _SAMPLE.findall(text):
        numbers[what][int(worker)] = float(value)
    if not numbers["memory_bytes"]:
        raise StartupError(f"what answers at {admin} is no gateway, or its workers have not reported yet")
    return numbers


class GatewayMemory:
    """Looks before a run, and again and again while its connections are held."""

    def __init__(self, admin: str) -> None:
        self._admin = admin
        self._before = read_numbers(admin)
        self._now = self._before
        self._looked_at = 0.0

    def look(self) -> None:
        """Look again, if a worker may have something new to tell."""
        if time.monotonic() - self._looked_at >= EVERY_S:
            self._now = read_numbers(self._admin)
            self._looked_at = time.monotonic()

    def found(self) -> dict[str, Any]:
        """The last look beside the first: bytes and connections of all workers, and bytes for each."""
        before, now = self._totals(self._before), self._totals(self._now)
        more_bytes = now["memory_bytes"] - before["memory_bytes"]
        more = now["connections"] - before["connections"]
        return {
            "workers": len(self._now["memory_bytes"]),
            "bytes_before": before["memory_bytes"],
            "bytes": now["memory_bytes"],
            "connections": now["connections"],
            "bytes_per_connection": round(more_bytes / more) if more else 0,
        }

    @staticmethod
    def _totals(numbers: Numbers) -> dict[str, int]:
        return {what: int(sum(by_worker.values())) for what, by_worker in numbers.items()}
