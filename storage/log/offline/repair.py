"""Cut a store at its first damage: the one repair there is, and only on request.

Everything from the first damaged record on leaves the log, is kept under cut/, and is reported;
consume queues are written anew. Source: storage.md, Recovery.
"""

from __future__ import annotations

from typing import NamedTuple

from holdmq.errors import StorageError
from storage.core.scan import KeyLevels
from storage.log.consume_queue import Key
from storage.log.flusher import Checkpoint
from storage.log.home import StoreDirectory
from storage.log.offline.store import OfflineStore
from storage.log.recovery import Recovery


class Cut(NamedTuple):
    """The log's end after the cut, and how many bytes were moved to cut/."""

    end: int
    cut_bytes: int


def truncate(store: OfflineStore, key_levels: KeyLevels) -> Cut:
    """Scan the whole log, cut it at the first damage, write all consume queues anew.

    `store` is open and holds the lock. Raises StorageError when it does not, or the disk fails.
    """
    if not store.is_locked:
        raise StorageError("the store cannot be written", operation="truncate", path=str(store.directory))
    home = StoreDirectory(store.disk, store.directory)
    epochs = home.load_epochs(False)
    known: dict[Key, tuple[int, int]] = dict(store.checkpoint.queues)
    # From the first record on, as if nothing were known of any queue.
    checkpoint = Checkpoint(home.checkpoint_file)
    checkpoint.load(True)
    checkpoint.position, checkpoint.store_ms, checkpoint.queues = store.segments.first_position, 0, {}
    checkpoint.first_position = store.segments.first_position
    try:
        home.mark_open()
        for key in store.queues.on_disk():
            store.queues.cut(key, 0)
        recovery = Recovery(store.disk, home, store.segments, store.queues, checkpoint, key_levels)
        recovered = recovery.run(None)
        # What retention or a deletion had given up stays given up.
        for key, (first, following) in recovered.queues.items():
            raised = min(max(first, known.get(key, (0, 0))[0]), following)
            recovered.queues[key] = (raised, following)
        for key, (_, following) in known.items():
            recovered.queues.setdefault(key, (following, following))
        checkpoint.save(recovered.end, recovered.store_ms, recovered.queues)
        epochs.rise(recovered.end)
        home.save_epochs(epochs)
        store.segments.sync()
        home.mark_clean(recovered.end)
    except OSError as error:
        raise StorageError(
            error.strerror or str(error),
            operation="truncate",
            path=str(error.filename or store.directory),
            hint="the cut is not complete: run it again",
        ) from error
    finally:
        store.segments.close()
    return Cut(recovered.end, recovered.cut_bytes)
