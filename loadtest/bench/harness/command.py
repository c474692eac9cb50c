"""The command line of a benchmark: its options, the line that tells them, and how it ends."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from holdmq.errors import HoldMQError
from holdmq.service.build import SOURCES, begin_compiled, running_build

_ROOT: Final = Path(__file__).parents[3]
PAUSE_S: Final = 0.5
"""Between two measurements: what the last one left behind is written by then."""

K = TypeVar("K")
R = TypeVar("R")

Options = argparse.Namespace
Measure = Callable[[Options, Path], Sequence[str] | None]
"""Measures with the options in an empty directory; returns what was not as it should be."""


def say(line: str) -> None:
    """Print a line at once: a benchmark's next one may take minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class BenchCommand:
    """A benchmark's command: it takes `--data`, prints its parameters, and ends with exit code 0 or 1."""

    def __init__(self, text: str | None, **options: Any) -> None:
        """Declare options by their defaults, whose types they take; a list has one value or more.

        A value is ``(default, help)`` or a default alone.
        """
        self._parser = argparse.ArgumentParser(
            description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.add = self._parser.add_argument
        self.error = self._parser.error
        for name, declared in options.items():
            default, hint = declared if isinstance(declared, tuple) else (declared, None)
            flag = f"--{name.replace('_', '-')}"
            if default is False:
                self.add(flag, action="store_true", help=hint)
            elif isinstance(default, list):
                self.add(flag, type=type(default[0]), nargs="+", default=default, help=hint)
            else:
                self.add(flag, type=type(default), default=default, help=hint)
        self.add("--sources", action="store_true", help="measure the sources, though nobody runs them")
        self.add("--data", help="directory to work in (default: a temporary one)")

    def add_settings(self) -> None:
        """Declare `--set`, for settings of the servers."""
        self.add("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the servers")

    def run(
        self, measure: Measure, check: Callable[[Options], str | None] = lambda _: None, **shown: Any
    ) -> int:
        """Run `measure`; exit code 0, or 1 with a sentence when something fails or is not as it should be.

        `check` returns what is wrong with the options. `shown` are parameters that are no options.
        """
        options = self._parser.parse_args()
        if wrong := check(options):
            self.error(wrong)
        if running_build() == SOURCES and not options.sources:
            run_compiled()
        machine = {"build": running_build(), "cores": os.cpu_count(), "python": platform.python_version()}
        shown = {**vars(options), **shown, **machine}
        say("parameters: " + " ".join(f"{name}={value}" for name, value in shown.items()))
        try:
            with tempfile.TemporaryDirectory(prefix="holdmq-bench-", dir=options.data) as directory:
                faults = measure(options, Path(directory)) or ()
        except HoldMQError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        for sentence in faults:
            say(f"NOT AS IT SHOULD BE: {sentence}")
        return 1 if faults else 0


def run_compiled() -> NoReturn:
    """Begin this command again with what was compiled of these sources. Exit code 2 if that is not there."""
    why = begin_compiled(_ROOT)
    sys.stderr.write(f"error: {why}: make compile; or measure the sources, by --sources\n")
    sys.exit(2)


def take_turns(
    rounds: int, targets: Mapping[K, Callable[[], R]], pause_s: float = PAUSE_S
) -> dict[K, list[R]]:
    """Measure the targets in turns, so that a drift of the machine's speed meets all; results by target."""
    results: dict[K, list[R]] = {target: [] for target in targets}
    for _ in range(rounds):
        for target, measure in targets.items():
            results[target].append(measure())
            time.sleep(pause_s)
    return results


def medians(samples: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each column."""
    return [statistics.median(values) for values in zip(*samples, strict=True)]


def show_rates(rates: Sequence[float]) -> str:
    """Return median, least and most of some rates as a text."""
    return f"{statistics.median(rates):>10,.0f} msg/s (min {min(rates):,.0f} max {max(rates):,.0f})"
