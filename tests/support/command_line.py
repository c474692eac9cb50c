"""The command line as a process of its own, against a registry and a broker as real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from processes import Stack, end_all

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def command(stack: Stack, *arguments: str) -> list[str]:
    """What runs `holdmq …` against a stack."""
    flags = [f"--set=registry.port={stack.registry_port}"]
    return [sys.executable, "-P", "-m", "holdmq.cli", *arguments, *flags]


def small_stack(directory: Path, **overrides: Any) -> Iterator[Stack]:
    """A registry and a broker, until the generator is closed."""
    stack = Stack(directory, overrides)
    try:
        for name in ("registry", "broker"):
            stack.start(name, wait=False)
        for name in ("registry", "broker"):
            stack.wait_ready(name)
        yield stack
    finally:
        end_all([stack])


def runner(stack: Stack) -> Cli:
    """A function that runs one command to its end."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(stack, *arguments), input=stdin, capture_output=True, text=True, timeout=50, check=False
        )

    return run
