"""Whether brokers of a test run have their state files in their log (`pytest --state-in-log`)."""

from __future__ import annotations

from pathlib import Path

from storage.log.state.core.files import LoggedFiles

_chosen: list[bool] = []
_files: dict[Path, LoggedFiles] = {}


def choose() -> None:
    """From now on brokers have them in their log, unless a test says otherwise."""
    _chosen.append(True)


def choose_files() -> None:
    """From now on brokers have files."""
    _chosen.clear()


def is_chosen() -> bool:
    """Whether brokers have them in their log."""
    return bool(_chosen)


def remember(store: Path, files: LoggedFiles) -> None:
    """Keep the files of the broker that is started over a store now."""
    _files.clear()
    _files[store] = files


def files_of(store: Path) -> LoggedFiles | None:
    """The files in the log of the last broker over a store; None = it has, or had, them in its directory."""
    return _files.get(store)
