"""What a copy does when its leader says that it has everything again."""

from __future__ import annotations

from broker.replication.core.actions import Trust
from broker.replication.core.copying import Copying
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyWelcome, FetchGrant
from broker.replication.core.settings import ReplicaSettings
from storage.api.replication import Epoch

STORE = b"store id"
EPOCHS = (Epoch(1, 0),)


def view(is_whole: bool) -> LogView:
    return LogView(STORE, 0, 100, 100, 100, 100, EPOCHS, is_whole)


def test_it_notes_once_that_it_is_whole_while_the_note_is_written() -> None:
    copying = Copying(ReplicaSettings(2), "a", 1, 5, view(False), 0.0)
    copying.begin()
    copying.welcomed(0.1, CopyWelcome(1, STORE, 5, EPOCHS, 0, 100))
    grant = FetchGrant(5, 100, 100, 100, 0, True, False)
    found = [action for _ in range(3) for action in copying.granted(0.2, grant, 0)]
    # The log moves for other reasons while the note is on its way to the disk.
    copying.log_moved(0.3, view(False))
    found += copying.granted(0.4, grant, 0)
    assert found.count(Trust()) == 1
    copying.log_moved(0.5, view(True))
    assert Trust() not in copying.granted(0.6, grant, 0)
    copying.log_moved(0.7, view(False))
    assert Trust() in copying.granted(0.8, grant, 0), "it was distrusted since"
