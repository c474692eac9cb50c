"""Progress on a terminal, of what takes longer than a moment; nothing is drawn into a pipe or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

PROGRESS_AFTER_S: Final = 1.0
"""What is done sooner needs no bar."""


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show how many of `what` are done, as the yielded function is told, and for how long it has run."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(f"{{task.completed:,}} {what}"), TimeElapsedColumn())
    with _drawn(*columns) as report:
        yield lambda done: report(done, None)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something is going on, and for how long, whatever it is that is waited for meanwhile."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(what), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task("", total=None)
        yield


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of bytes; the yielded function is told those done and all."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    with _drawn(TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as report:
        yield report


@contextmanager
def steps_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of `total` steps; the yielded function is told those done."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    with _drawn(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as report:
        yield lambda done: report(done, total)


@contextmanager
def _drawn(*columns: ProgressColumn) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("", total=None)
    began = monotonic()
    is_shown = False

    def report(done: int, total: int | None) -> None:
        nonlocal is_shown
        if not is_shown and monotonic() - began >= PROGRESS_AFTER_S:
            is_shown = True
            progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if is_shown:
            progress.stop()
