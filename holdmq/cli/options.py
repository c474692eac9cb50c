"""Options that every command has, and how results are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdmq.config.model import Config
from holdmq.config.sources import ENV_CONFIG, load
from holdmq.names.visible_text import visible

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help=f"The TOML file; the variable {ENV_CONFIG} does the same.", show_default=False
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one key, as section.key=value; repeat it.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The MQTT client id.")]
QueuesPerBroker = Annotated[
    int,
    typer.Option(
        "--queues", min=0, max=1024, help="Queues on every broker; 0 = broker.topic_queues_default."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def configuration(path: Path | None, sets: list[str] | None) -> Config:
    """Return the configuration that the options name. Raises ConfigError."""
    return load(path, sets or ())


def confirm(question: str) -> None:
    """Ask, on standard error; whoever does not say yes ends the command with exit code 1."""
    typer.confirm(visible(question), abort=True, err=True)


def print_json(value: Any) -> None:
    """Write `value` as one line of JSON to standard output, at once."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
