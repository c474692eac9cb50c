"""The command line against a real registry and broker: in this process, or as a process of its own."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import structlog
import typer.main
from processes import Stack, running_stack

from holdmq.cli import main

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
WIDTH = {"COLUMNS": "200"}


def examples_of(app: Any) -> dict[str, str]:
    """The example of each command of an app, as its --help shows it, by the command's words."""
    return dict(_examples(typer.main.get_command(app)))


def _examples(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _examples(command, (*path, name))
        if getattr(command, "invoke_without_command", not hasattr(command, "commands")):
            yield " ".join((*path, name)), command.epilog.removeprefix("Example: ")


def command(stack: Stack, *arguments: str) -> list[str]:
    """What runs `holdmq …` against a stack."""
    return [sys.executable, "-P", "-m", "holdmq.cli", *arguments, *flags_of(stack)]


def flags_of(stack: Stack) -> list[str]:
    """What leads a command to a stack."""
    return [f"--set=registry.port={stack.registry_port}"]


def small_stack(directory: Path, **overrides: Any) -> Iterator[Stack]:
    """A registry and a broker, until the generator is closed."""
    with running_stack(directory, "registry", "broker", **overrides) as stack:
        yield stack


def runner(stack: Stack) -> Cli:
    """A function that runs one command to its end in this process: a process costs half a second of CPU."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_here(*arguments, *flags_of(stack), stdin=stdin)

    return run


def process_runner(stack: Stack) -> Cli:
    """A function that runs one command to its end in a process of its own."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_process(*arguments, *flags_of(stack), stdin=stdin)

    return run


def run_process(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "holdmq.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **WIDTH, **environ},
    )


def run_here(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, on standard streams and with a logging set-up of its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with ExitStack() as undo:
        # A file, for a command that reads the descriptor.
        given = undo.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        given.write(stdin)
        given.seek(0)
        undo.enter_context(mock.patch.object(sys, "stdin", given))
        undo.enter_context(mock.patch.object(sys, "argv", ["holdmq", *arguments]))
        undo.enter_context(mock.patch.dict(os.environ, {**WIDTH, **environ}))
        undo.enter_context(redirect_stdout(out))
        undo.enter_context(redirect_stderr(err))
        _keep_logging(undo)
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int), code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(["holdmq", *arguments], code, *texts)


def _keep_logging(undo: ExitStack) -> None:
    """Undo what `telemetry.setup` changes in this process."""
    root = logging.getLogger()
    handlers, level, configured = list(root.handlers), root.level, structlog.get_config()
    was_configured = structlog.is_configured()

    def restore() -> None:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        if was_configured:
            structlog.configure(**configured)
        else:
            structlog.reset_defaults()

    undo.callback(restore)
