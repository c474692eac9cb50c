"""Puts the commands together, and turns what they raise into a sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Final, NoReturn

import typer

import holdmq
from holdmq.cli import services
from holdmq.cli.hints import with_hint
from holdmq.cli.loading import uncollected
from holdmq.cli.options import CommandGroup
from holdmq.config.model import LogSection
from holdmq.errors import ConfigError, HoldMQError, UsageError
from holdmq.names.visible_text import visible_lines
from holdmq.service import telemetry
from holdmq.service.build import running_build
from holdmq.service.process import EXIT_FAILED, EXIT_USAGE

ENV_TRACEBACK: Final = "HOLDMQ_TRACEBACK"
"""Set to anything: an unexpected error shows its traceback, for a bug report."""

_SINGLE: Final = ("up", *services.MODULES, "pub", "sub", "ping", "top", "trace", "passwd", "loadtest")
"""Commands by themselves, in the order of the help."""

_GROUPS: Final = (
    "cluster",
    "topic",
    "group",
    "message",
    "table",
    "dlq",
    "client",
    "connection",
    "alarm",
    "session",
    "retained",
    "ban",
    "quota",
    "tenant",
    "config",
    "log",
    "kv",
    "replica",
    "key",
    "cert",
)
"""Commands that have commands, in the order of the help; each is a module here with an ``app``."""


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"holdmq {holdmq.__version__}, {running_build()}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and the build.",
        ),
    ] = False,
) -> None:
    # A command says itself what failed; a service sets its own logging up.
    telemetry.setup("cli", LogSection(level="error"))


def command_line(first: str = "") -> CommandGroup:
    """Return the command line for arguments that begin with `first`.

    Only the command of that name is loaded, for all of them take longer than most of them run; all are if
    `first` is none: a help, an option, a mistake.
    """
    line = CommandGroup(
        "HoldMQ: MQTT for millions of devices over one commit log.", "holdmq up --data ./holdmq-data"
    )
    line.callback()(_root)
    known = first in _SINGLE or first in _GROUPS
    for name in [first] if known else [*_SINGLE, *_GROUPS]:
        if name in ("broker", "console"):
            line.add_typer(importlib.import_module(f"holdmq.cli.{name}").app, name=name)
        elif name in services.MODULES:
            services.register(line, name)
        elif name == "loadtest":
            # Its own command line, help included, is loaded when it is asked for.
            line.add(
                name,
                example="holdmq loadtest publish --devices 200 --seconds 10",
                context_settings={
                    "allow_extra_args": True,
                    "ignore_unknown_options": True,
                    "help_option_names": [],
                },
            )(_loadtest)
        elif name in _SINGLE:
            importlib.import_module(f"holdmq.cli.{name}").register(line)
        else:
            line.add_typer(importlib.import_module(f"holdmq.cli.{name}").app, name=name)
    return line


def _loadtest(context: typer.Context) -> None:
    """Load an MQTT server with a fleet of devices, and report what they saw."""
    from loadtest.cli import app as commands

    commands(context.args, prog_name="holdmq loadtest")


def main() -> NoReturn:
    """Run the command line and exit: 0, 1 failed, 2 used wrongly."""
    with uncollected():
        line = command_line(sys.argv[1] if len(sys.argv) > 1 else "")
    try:
        line(prog_name="holdmq")
    except HoldMQError as error:
        _fail(with_hint(error), EXIT_USAGE if isinstance(error, ConfigError | UsageError) else EXIT_FAILED)
    except BrokenPipeError:
        _end_quietly()
    except Exception as error:
        if isinstance(error, ExceptionGroup) and error.split(BrokenPipeError)[1] is None:
            _end_quietly()
        if os.environ.get(ENV_TRACEBACK):
            raise
        detail = f"{type(error).__name__}: {error}"
        _fail(f"this is a bug: {detail}; {ENV_TRACEBACK}=1 shows where it comes from", EXIT_FAILED)
    sys.exit(0)


def _end_quietly() -> NoReturn:
    """Who reads our output has seen enough (`holdmq sub … | head`); Python must not flush into it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_FAILED)


def _fail(sentence: str, code: int) -> NoReturn:
    sys.stderr.write(f"error: {visible_lines(sentence)}\n")
    sys.exit(code)
