"""What an OSError means for the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from holdmq.errors import StorageError, StoreFullError, StoreReadOnlyError
from holdmq.files.disk import FULL_ERRORS

T = TypeVar("T")
FULL_HINT: Final = "free space on this file system; service resumes by itself"
READ_ONLY_HINT: Final = "check the disk, then restart the broker"


def write_failure(error: OSError, operation: str, path: str, offset: int | None) -> StorageError:
    """The refusal for a failed write: full recovers by itself, everything else is final until restart."""
    reason = error.strerror or str(error)
    if error.errno in FULL_ERRORS:
        return StoreFullError(reason, operation=operation, path=path, offset=offset, hint=FULL_HINT)
    return StoreReadOnlyError(reason, operation=operation, path=path, offset=offset, hint=READ_ONLY_HINT)


def sync_failure(error: OSError, path: str, synced: int) -> StoreReadOnlyError:
    """The refusal after a failed fsync: never retried, as the kernel may have dropped the pages."""
    return StoreReadOnlyError(
        f"{error.strerror or error}; what was acknowledged from offset {synced} on is in doubt",
        operation="fsync",
        path=path,
        offset=synced,
        hint=READ_ONLY_HINT,
    )


def thread_failure(error: BaseException, thread: str) -> StoreReadOnlyError:
    """The refusal after a thread of the store died of a defect: better read-only than silent."""
    return StoreReadOnlyError(
        f"{type(error).__name__}: {error}", operation=thread, hint="restart the broker and report this defect"
    )


def reserve_failure(path: str) -> StoreFullError:
    """The refusal while only the reserve segment is left: it is for what lets old segments go."""
    return StoreFullError(
        "only the reserve for rolling is left", operation="append", path=path, hint=FULL_HINT
    )


def guarded(work: Callable[[], T], fail: Callable[[StorageError], None], path: str, thread: str) -> T | None:
    """Do a part of a thread's work; what makes the store read-only is told to `fail`, and None returned.

    A defect of ours is told as well, and raised: the thread ends with it.
    """
    try:
        return work()
    except StorageError as error:
        fail(error)
    except OSError as error:
        fail(write_failure(error, "write", path, None))
    except BaseException as error:
        fail(thread_failure(error, thread))
        raise
    return None
