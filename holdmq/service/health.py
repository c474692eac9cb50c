"""Says whether the services of this machine are healthy, by their ``/healthz``: for an image's HEALTHCHECK.

``python -m holdmq.service.health`` asks every service that listens at its admin port, of which there must be
one; ``python -m holdmq.service.health stats`` asks those that are named. Ports are those of the
configuration, as far as the environment gives it. Exit code 0: all are healthy; 1: a sentence for each that
is not, on standard error.
"""

from __future__ import annotations

import http.client
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.errors import ConfigError

SERVICES: Final = ("registry", "broker", "gateway", "stats", "console")

ANSWER_S: Final = 5.0
"""How long an answer may take: the admin server answers from a thread of its own."""


def main(names: Sequence[str]) -> int:
    """Ask the services `names`, or those that listen when there are none; return the exit code."""
    unknown = sorted(set(names) - set(SERVICES))
    if unknown:
        sys.stderr.write(f"{', '.join(unknown)}: no such service; there are {', '.join(SERVICES)}\n")
        return 1
    try:
        config = load()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    faults = faults_of(config, names)
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


def faults_of(config: Config, names: Sequence[str]) -> list[str]:
    """Return a sentence for each service that is not healthy; blocking, at most ANSWER_S each.

    Without `names` a service that does not listen is none of this machine's, unless there is no other.
    """
    faults, heard = [], False
    for name in names or SERVICES:
        section = getattr(config, name)
        try:
            # A connection to all addresses (0.0.0.0, ::) goes to this machine.
            status, text = _ask(section.admin_bind, section.admin_port)
        except ConnectionRefusedError:
            if names:
                faults.append(f"{name} does not listen on port {section.admin_port} ({name}.admin_port)")
            continue
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"{name} does not answer on port {section.admin_port}: {error}")
            continue
        heard = True
        if status != HTTPStatus.OK:
            faults.append(f"{name} is not healthy: {text}")
    if not heard and not faults:
        faults.append("no service listens at its admin port here")
    return faults


def _ask(host: str, port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace").strip()
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
