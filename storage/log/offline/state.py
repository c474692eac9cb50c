"""State files that the log has, read while no broker runs."""

from __future__ import annotations

from holdmq.errors import RecordError, StoreFormatError
from storage.core.table_records import changes_in
from storage.log.offline.store import Finding, OfflineStore
from storage.log.offline.tables import opened_tables
from storage.log.state.core.files import CONFIG_TOPIC, LoggedFiles


def logged_files(store: OfflineStore) -> LoggedFiles:
    """The broker's state files as the tables and the log behind them have them. Raises StorageError.

    What lies behind damage counts as well: `storage.log.offline.verify` names the damage.
    """
    files = LoggedFiles()
    try:
        with opened_tables(store.directory) as tables:
            position = max(tables.applied_position, store.segments.first_position)
            for row in tables.rows(CONFIG_TOPIC):
                files.apply(row.key, row.value)
        for item in store.walk(lambda _: 1, lambda _done, _total: None, position):
            if not isinstance(item, Finding) and CONFIG_TOPIC in item.topics():
                for row in changes_in(item, {CONFIG_TOPIC})[0]:
                    files.apply(row.key, row.value)
    except RecordError as error:
        raise StoreFormatError(
            f"its state files cannot be read: {error}", operation="read", path=str(store.directory)
        ) from error
    return files
