"""State files of a broker that does not run: in its directory, or in its log."""

from __future__ import annotations

from broker.state.home import StateHome
from holdmq.errors import RecordError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile, Loaded
from storage.log.offline.state import logged_files
from storage.log.offline.store import OfflineStore


def state_file(store: OfflineStore, name: str) -> Loaded | None:
    """What a state file holds, None = there is none. Raises StorageError when it cannot be read."""
    directory = store.directory / "config"
    file = AtomicFile(directory / name, store.disk)
    if not StateHome(directory, store.disk).is_log():
        return file.load()
    try:
        raw = logged_files(store).content(f"{directory.name}/{name}")
    except RecordError as error:
        raise StoreFormatError(str(error), operation="read", path=str(file.path)) from error
    return None if raw is None else file.of_bytes(raw)
