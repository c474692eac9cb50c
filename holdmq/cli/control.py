"""What commands ask a process on this machine for, most often a gateway, through its admin port."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from holdmq.config.model import Config
from holdmq.errors import StartupError, UsageError
from holdmq.service.admin import CONTROL_HEADER

SILENCE_S: Final = 10.0
"""How long a gateway may say nothing: while a trace runs it writes at least an empty line each second."""

Admin = Annotated[
    str,
    typer.Option(
        "--admin",
        metavar="HOST:PORT",
        help="Admin port of the process; from the configuration if not given.",
        show_default=False,
    ),
]


def ask(
    config: Config, admin: str, method: str, path: str, service: str = "gateway", **query: object
) -> Iterator[dict[str, Any]]:
    """The rows of a gateway's (or another service's) answer, as they come; None in `query` is left out.

    Raises UsageError for what it calls a mistake, StartupError when there is none.
    """
    host, port = _place(config, admin, service)
    given = {name: str(value) for name, value in query.items() if value is not None}
    connection = http.client.HTTPConnection(host, port, timeout=SILENCE_S)
    try:
        connection.request(method, f"{path}?{urlencode(given)}", headers={CONTROL_HEADER: "1"})
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise UsageError(_why(answer, service))
        for line in answer:
            if line.strip():
                yield json.loads(line)
    except (OSError, http.client.HTTPException) as error:
        raise StartupError(
            f"no {service} answers at {host}:{port} ({error}); is it running here? --admin names another "
            "one's admin port"
        ) from error
    finally:
        connection.close()


def _place(config: Config, admin: str, service: str) -> tuple[str, int]:
    if not admin:
        section = getattr(config, service)
        bind = section.admin_bind
        on_this_machine = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 # what is bound to elsewhere
        return on_this_machine.get(bind, bind), section.admin_port
    host, _, port = admin.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{admin!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def _why(answer: http.client.HTTPResponse, service: str) -> str:
    text = answer.read(4096).decode(errors="replace").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the {service} refuses: {text}"
