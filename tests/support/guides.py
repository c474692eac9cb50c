"""The examples of the guides in docs/, run as a reader would run them.

A `python` block is a program; lines `# prints: …` say what it prints. A `console` block is a shell session:
`$ command`, then what it prints; `…` stands for anything within a line, a line that is `…` for any lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parents[2] / "docs"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK: Final = "=== next command ==="
RUN_S: Final = 150.0
_WITHOUT_LOGS: Final = (
    "import structlog; structlog.configure(logger_factory=structlog.ReturnLoggerFactory())\n"
)
"""A page shows what its program prints, not what the SDK logs meanwhile."""


class Example(NamedTuple):
    """A block of a page, and the line where it begins."""

    language: str
    code: str
    line: int


def examples_of(page: str, *languages: str) -> list[Example]:
    """The blocks of these languages on a page, in their order."""
    text = (DOCS / page).read_text()
    return [
        Example(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
        if found[1] in languages
    ]


def run_python(example: Example, registry: str, directory: Path) -> None:
    """Run a program in a process of its own; AssertionError if it fails or prints something else."""
    code = example.code.replace("127.0.0.1:9876", registry)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _WITHOUT_LOGS + code],
        capture_output=True, text=True, timeout=RUN_S, check=False, cwd=directory,
    )  # fmt: skip
    assert done.returncode == 0, f"line {example.line}: {done.stderr}"
    expected = re.findall(r"^# prints: (.*)$", example.code, re.MULTILINE)
    assert done.stdout.splitlines() == expected, f"line {example.line}"


def run_console(example: Example, flags: list[str], directory: Path) -> None:
    """Run a session, `holdmq` with these flags; AssertionError where it prints something else."""
    commands, expected = _session(example.code)
    script = [f'holdmq() {{ "{sys.executable}" -P -m holdmq.cli "$@" {" ".join(flags)}; }}']
    for command in commands:
        script += [command, f"echo '{_MARK}'"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=RUN_S, check=False, cwd=directory,
    )  # fmt: skip
    printed = done.stdout.split(_MARK + "\n")
    assert len(printed) == len(commands) + 1, f"line {example.line}: {done.stdout}"
    for command, wanted, got in zip(commands, expected, printed[:-1], strict=True):
        assert _pattern(wanted).fullmatch(got), f"line {example.line}: $ {command}\n{got}is not\n{wanted}"


def _session(code: str) -> tuple[list[str], list[str]]:
    commands: list[str] = []
    expected: list[str] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
            expected.append("")
        else:
            expected[-1] += line + "\n"
    return commands, expected


def _pattern(wanted: str) -> re.Pattern[str]:
    lines = [
        "(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n"
        for line in wanted.splitlines()
    ]
    return re.compile("".join(lines))
